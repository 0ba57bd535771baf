"""The step that `make bench-gpu` times, compiled for an H100 that is not here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# As `flax_side` makes it, until it would run.
PROGRAM = """
import json, sys, tempfile
from pathlib import Path
from benchmarks import accelerator, step
from cocondenser_jax.corpus.batches import BatchSpec
from cocondenser_jax.pretrain import devices
from cocondenser_jax.plan.machines import find_machine, prepare_to_plan

class Made(Exception):
    pass

def mapped_step(config, settings, used):
    raise Made(config, settings)

prepare_to_plan()
devices.mapped_step = mapped_step
size = accelerator.GPU.size
if sys.argv[1] != "all":
    size = size._replace(layers=2, hidden=64, documents=16, chunk_size=8)
with tempfile.TemporaryDirectory() as folder:
    step.write_model(Path(folder), size)
    try:
        step.flax_side(Path(folder), size, "bfloat16", 1)
    except Made as made:
        config, settings = made.args
spec = BatchSpec(seed=0, batch_size=size.documents, length=step.LENGTH)
machine = find_machine("h100-1")
program = devices.compile_step(config, settings, spec, machine.devices, machine.options)
memory = program.memory_analysis()
needed = memory.argument_size_in_bytes + memory.temp_size_in_bytes
print(json.dumps([config.num_hidden_layers, needed / 2**30, machine.gpu_memory]))
"""


@pytest.mark.timeout(1800)
def test_the_step_of_bench_gpu_is_compiled_for_a_gpu():
    """Of a small network; of BERT-base in `make plan-gpu`."""
    pytest.importorskip("jax_plugins.xla_cuda13")
    scale = os.environ.get("PLAN_GPU", "small")
    # XLA's optimizations are not turned off there.
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    command = [sys.executable, "-c", PROGRAM, scale]
    printed = subprocess.check_output(command, cwd=ROOT, env=environment, text=True)
    n_layers, needed, available = json.loads(printed.splitlines()[-1])
    assert n_layers == (12 if scale == "all" else 2)
    assert 0 < needed < available
