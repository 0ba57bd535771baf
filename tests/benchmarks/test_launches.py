"""What benchmarks/launches.py says of a compiled step."""

import os
import subprocess
import sys

import pytest

from benchmarks.launches import describe, describe_launches
from cocondenser_jax.plan.compiled import Launch
from tests.plan.test_compiled import STEP


def test_kinds_are_counted_and_each_pass_described():
    assert describe_launches(STEP, 8) == [
        "fusion: 3",
        "cuBLAS: 3",
        "Triton: 3",
        "copy: 3",
        "all-reduce: 1",
        "a chunk in pass 1: 4 launches, 0.000 GB written, 0.000 GB of them attention's squares",
    ]


def test_square_arrays_are_those_of_the_length():
    arrays = [("f32", (10**5, 50, 50)), ("pred", (10**5, 50)), ("bf16", (10**5, 50, 20))]
    launches = [Launch("fusion", "", arrays, times=2)]
    written = 2 * (4 * 2500 + 50 + 2 * 1000) / 1e4
    assert describe(launches, 50) == (
        f"2 launches, {written:.3f} GB written, 2.000 GB of them attention's squares"
    )


def test_both_attentions_are_compiled_for_a_gpu():
    pytest.importorskip("jax_plugins.xla_cuda13")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    command = [sys.executable, "-m", "benchmarks.launches", "--config=configs/quickstart.py"]
    overrides = ["--config.train.chunk_size=4", "--topology=a100-40gb-1", "--attention"]
    printed = subprocess.check_output([*command, *overrides], env=environment, text=True)
    ours, theirs = printed.splitlines()
    assert ours.startswith("ours: ")
    assert theirs.startswith("JAX's: ")
    for line in (ours, theirs):
        assert int(line.split()[1]) >= 5  # two products, a softmax, and their gradients
