"""What benchmarks/launches.py says of a compiled step."""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

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
    launches = [Launch("fusion", "", arrays, times=2, reads=())]
    written = 2 * (4 * 2500 + 50 + 2 * 1000) / 1e4
    assert describe(launches, 50) == (
        f"2 launches, {written:.3f} GB written, 2.000 GB of them attention's squares"
    )


def clean(**more):
    """Returns an environment in which XLA's optimizations are not turned off."""
    others = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    return others | more


def printed_by(*arguments):
    """Returns the lines that the program prints for one H100."""
    pytest.importorskip("jax_plugins.xla_cuda13")
    command = [sys.executable, "-m", "benchmarks.launches", "--topology=h100-1", *arguments]
    return subprocess.check_output(command, env=clean(), text=True).splitlines()


# By XLA alone it is 75 and 81 launches, 4,447 and 4,573 MB.
@pytest.mark.parametrize(
    ("rate", "most_launches", "most_megabytes"), [(0.0, 41, 2_550), (0.1, 41, 2_600)]
)
def test_a_layer_of_bert_base_stays_within_its_budget(rate, most_launches, most_megabytes):
    """Of 128 spans, with its gradient."""
    model = {"num_hidden_layers": 2, "skip_from": 1}
    model |= dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), rate)
    overrides = [f"--config.model.{name}={value}" for name, value in model.items()]
    lines = printed_by("--layer", "--config.train.chunk_size=128", *overrides)
    words = {line.split()[0]: line.replace(",", "").split() for line in lines}
    assert int(words["gpu:"][1]) <= most_launches
    assert int(words["gpu:"][3]) <= most_megabytes
    assert int(words["xla:"][3]) > 1.5 * most_megabytes  # else nothing is counted


@pytest.mark.timeout(1800)
@pytest.mark.skipif(os.environ.get("PLAN_GPU") != "all", reason="make plan-gpu: BERT-base")
def test_the_papers_step_stays_within_its_budget():
    """Chunks of 64, with dropout: launches a step, and gigabytes written a span."""
    lines = printed_by("--config=configs/cocondenser.py", "--config.train.steps=12552")
    kinds = [line for line in lines if "chunk" not in line]
    passes = [line.partition(" launches, ")[2] for line in lines if "chunk" in line]
    n_launches = sum(int(line.rpartition(": ")[2].replace(",", "")) for line in kinds)
    written = sum(float(each.split()[0]) for each in passes)
    assert n_launches <= 48_000
    assert written / 64 <= 0.153


KERNEL = """
import jax, jax.numpy as jnp
from cocondenser_jax.model.attention import AttentionSettings
from cocondenser_jax.model.joint import attend_jointly
from cocondenser_jax.plan.machines import find_machine, prepare_to_plan
prepare_to_plan()
machine = find_machine("{machine}")
place = jax.sharding.SingleDeviceSharding(machine.devices[0])
def both(product, bias, mask, seeds, cotangent):
    attend = lambda product, bias: attend_jointly(
        product, bias, mask, seeds, AttentionSettings(12, 0.1, *{more}), "{platform}")
    context, pull_back = jax.vjp(attend, product, bias)
    return context, pull_back(cotangent)
shape = jax.ShapeDtypeStruct
arrays = (shape((8, {length}, 2304), jnp.bfloat16), shape((2304,), jnp.float32),
          shape((8, {length}), bool), shape((8, 12), jnp.uint32),
          shape((8, {length}, 768), jnp.bfloat16))
mapped = jax.jit(both, in_shardings=place, out_shardings=place)
mapped.lower(*arrays).compile(machine.options)
"""

LOCAL = 64, 1e4  # window and rotary positions
NORM = """
import jax, jax.numpy as jnp
from cocondenser_jax.model.sum_norm import NormSettings, add_and_normalize
from cocondenser_jax.plan.machines import find_machine, prepare_to_plan
prepare_to_plan()
machine = find_machine("{machine}")
place = jax.sharding.SingleDeviceSharding(machine.devices[0])
def both(hidden, branch, scale, bias, seeds, cotangent):
    normalize = lambda *terms: add_and_normalize(
        terms[0], terms[1], terms[2:], seeds, NormSettings(1e-12, 0.1))
    out, pull_back = jax.vjp(normalize, hidden, branch, scale, bias)
    return out, pull_back(cotangent)
shape = jax.ShapeDtypeStruct
rows, weights = shape((8, 128, 768), jnp.bfloat16), shape((768,), jnp.float32)
arrays = rows, rows, weights, weights, shape((8, 128), jnp.uint32), rows
mapped = jax.jit(both, in_shardings=place, out_shardings=place)
mapped.lower(*arrays).compile(machine.options)
"""

MACHINES = [("h100-1", 112), ("h100-1", 1000), ("v5e-8", 112)]
if os.environ.get("PLAN_GPU") == "all":
    MACHINES += [("a100-80gb-1", 128), ("l4-1", 128), ("rtx4090-1", 128), ("v4-8", 128)]
    MACHINES += [("v6e-8", 512), ("a100-80gb-1", 1000), ("l4-1", 1000), ("rtx4090-1", 1000)]


@pytest.mark.parametrize(("machine", "length"), MACHINES)
def test_the_kernels_are_compiled_for_machines_that_are_not_here(machine, length):
    is_tpu = machine.startswith("v")
    pytest.importorskip("libtpu" if is_tpu else "jax_plugins.xla_cuda13")
    platform, more = "tpu" if is_tpu else "gpu", LOCAL if length > 512 else ()
    program = KERNEL.format(machine=machine, platform=platform, length=length, more=more)
    programs = [program] if is_tpu else [program, NORM.format(machine=machine)]
    for each in programs:
        subprocess.run([sys.executable, "-c", each], env=clean(), check=True, capture_output=True)


@pytest.mark.parametrize(
    ("kernel", "length", "most_spilled"),
    [("attention", 128, 84), ("block_attention", 1000, 0), ("norm", 0, 0)],
)
def test_the_kernels_keep_their_numbers_in_registers(kernel, length, most_spilled, tmp_path):
    """On an H100, as NVIDIA's assembler says: bytes that spill from registers to memory."""
    pytest.importorskip("jax_plugins.xla_cuda13")
    (assembler,) = Path(sysconfig.get_path("purelib")).glob("nvidia/*/bin/ptxas")
    more = LOCAL if length > 512 else ()
    of_kind = NORM if kernel == "norm" else KERNEL
    program = of_kind.format(machine="h100-1", platform="gpu", length=length, more=more)
    environment = clean(XLA_FLAGS=f"--xla_dump_to={tmp_path}")
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    spilled = {}
    for path in tmp_path.glob("*.ptx"):
        if not (found := re.search(rf"\.entry ({kernel}\w*)", path.read_text())):
            continue
        command = [str(assembler), "-v", "-arch=sm_90a", str(path), "-o", os.devnull]
        said = subprocess.run(command, check=True, capture_output=True, text=True)
        numbers = re.findall(r"(\d+) bytes spill stores", said.stderr + said.stdout)
        spilled[found[1]] = int(numbers[0])
    assert spilled.keys() == {kernel, f"{kernel}_gradient"}
    assert spilled[kernel] == 0
    assert spilled[f"{kernel}_gradient"] <= most_spilled


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
