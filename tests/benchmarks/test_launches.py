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


def clean(**more):
    """Returns an environment in which XLA's optimizations are not turned off."""
    others = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    return others | more


LOSS = """
import jax, jax.numpy as jnp
from cocondenser_jax.plan.machines import find_machine, prepare_to_plan
from cocondenser_jax.pretrain.objectives import corpus_contrastive_sum
prepare_to_plan()
machine = find_machine("h100-1")
place = jax.sharding.SingleDeviceSharding(machine.devices[0])
on_a_device = jax.vmap(lambda *x: corpus_contrastive_sum(*x, "d"), axis_name="d")
def loss(vectors, origins):
    return jnp.sum(on_a_device(vectors, origins))
shape = jax.ShapeDtypeStruct
arrays = shape((1, 65536, 768), jnp.float32), shape((1, 65536, 2), jnp.int32)
mapped = jax.jit(jax.value_and_grad(loss), in_shardings=place, out_shardings=place)
print(mapped.lower(*arrays).compile(machine.options).memory_analysis().temp_size_in_bytes)
"""


def test_the_loss_of_65536_rows_takes_little_memory():
    """All their scores would be 16 GiB, and as much for the gradient."""
    pytest.importorskip("jax_plugins.xla_cuda13")
    printed = subprocess.check_output([sys.executable, "-c", LOSS], env=clean(), text=True)
    assert int(printed) <= 0.6 * 2**30


def test_both_attentions_are_compiled_for_a_gpu():
    pytest.importorskip("jax_plugins.xla_cuda13")
    command = [sys.executable, "-m", "benchmarks.launches", "--config=configs/quickstart.py"]
    overrides = ["--config.train.chunk_size=4", "--topology=a100-40gb-1", "--attention"]
    printed = subprocess.check_output([*command, *overrides], env=clean(), text=True)
    ours, theirs = printed.splitlines()
    assert ours.startswith("ours: ")
    assert theirs.startswith("JAX's: ")
    for line in (ours, theirs):
        assert int(line.split()[1]) >= 5  # two products, a softmax, and their gradients
