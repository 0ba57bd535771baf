"""What benchmarks/cycles.py reads of a compiled program, and which chunks are short."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cycles import (
    estimated_cycles,
    fraction_of_full_chunks,
    host_transfers,
)
from cocondenser_jax.configs import default
from cocondenser_jax.corpus.batches import make_batch
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.pretrain.experiment import resolve
from tests.world import make_texts, write_store

GATHER = "%x.3 = f32[512,256]{1,0:T(8,128)} all-gather(%y), channel_id=1, dimensions={0}"
REDUCE = (
    "%z = (f32[]{:T(256)}, bf16[8,2]{1,0}, /*index=2*/f32[4]{0}) all-reduce-start(%a, %b, %c)\n"
    "%w = (f32[]{:T(256)}, bf16[8,2]{1,0}, f32[4]{0}) all-reduce-done(%z)"
)


def test_transfers_to_the_host_are_found():
    assert host_transfers(GATHER + REDUCE) == 0
    outfeed = "%o = token[] outfeed(%x, %token)"
    callback = '%c = f32[] custom-call(%x), custom_call_target="xla_python_cpu_callback"'
    assert host_transfers(f"{GATHER}\n{outfeed}\n{callback}") == 2


def test_the_step_exchanges_vectors_cotangents_and_gradients_once():
    pytest.importorskip("libtpu")
    # In a process where XLA's optimizations are not turned off.
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    command = [sys.executable, "-m", "benchmarks.cycles", "--config=configs/quickstart.py"]
    overrides = ("train.chunk_size=4", "train.dtype=bfloat16", "model.hidden_dropout_prob=0.1")
    command += [f"--config.{override}" for override in overrides]
    printed = subprocess.check_output(command, env=environment, text=True)
    found = dict(line.split(": ") for line in printed.splitlines() if ": " in line)
    # 128 vectors of 128 numbers in float32; their cotangents; 4.5 million parameters.
    # And two whole numbers for each, the document and the text.
    assert set(found) == {
        "all-gather f32",
        "all-gather s32",
        "all-reduce f32",
        "transfers to or from the host",
    }
    assert found["all-gather s32"] == "1 (0.001 MB)"
    assert found["all-gather f32"] == "1 (0.066 MB)"
    assert found["all-reduce f32"].startswith("2 (")
    assert found["transfers to or from the host"] == "0"


def test_cycles_are_added_up_over_loops_branches_and_layers():
    """As libtpu writes them: 100 once, 8 times 30, and in each of the eight one of two branches."""

    def costs(n, path=""):
        name = f' metadata={{op_name="jit(_fun)/while/body/{path}"}},' if path else ""
        config = f'backend_config={{"window_config":{{"estimated_cycles":"{n}"}}}}'
        return f"  %x.{n} = f32[2]{{0:T(256)}} fusion(%p), kind=kLoop, calls=%f,{name} {config}"

    backward = "transpose(jvp(Condenser))/Condenser._backbone"
    short = costs(7, "branch_0_fun/Condenser.encode/Condenser._backbone/embeddings/norm/mul")
    text = "\n".join(
        [
            "HloModule jit__fun, entry_computation_layout={()->f32[2]{0}}",
            "%short.1 (p: f32[2]) -> f32[2] {",
            short,
            "}",
            "%full.1 (p: f32[2]) -> f32[2] {",
            costs(20, f"{backward}/layers_0/layers_0._attend/key/dot_general"),
            costs(21, f"{backward}/layers_11/layers_11._attend/key/add"),
            costs(3, "jvp(Condenser)/head_1/mlp_norm/jit(_where)/select_n"),
            "}",
            "%body.1 (p: (s32[], f32[2])) -> (s32[], f32[2]) {",
            "  %c.1 = f32[2]{0} conditional(%i, %p, %p), branch_computations={%short.1, %full.1}",
            costs(30),
            "}",
            "%condition.1 (p: (s32[], f32[2])) -> pred[] {",
            "  %constant.9 = s32[]{:T(256)} constant(8)",
            "  ROOT %lt.1 = pred[] compare(%i, %constant.9), direction=LT",
            "}",
            "ENTRY %main.1_spmd (p: f32[2]) -> f32[2] {",
            "  %while.1 = (s32[], f32[2]{0}) while(%t), condition=%condition.1, body=%body.1",
            costs(100, "add"),
            "}",
        ]
    )
    rest = {"outside of the network": 100, "without a name": 8 * 30}
    attend = {"gradient, layers/attend/key": 8 * 41, "forward, head/mlp_norm": 8 * 3}
    assert estimated_cycles(text) == rest | attend
    assert estimated_cycles(text, min) == rest | {"first pass, embeddings/norm": 8 * 7}


def test_chunks_are_short_where_all_of_their_spans_are(tmp_path):
    folder = write_store(tmp_path, make_texts(48))
    config = default.get_config().unlock()
    config.data.update({"store": str(folder), "batch_size": 16, "length": 16})
    config.seed = 44  # draws some chunk that is short
    config.train.chunk_size = 2
    config.probe.every = 0
    store = open_store(Path(folder))
    experiment = resolve(config, store)
    batch = make_batch(store, experiment.batches, 0)
    # Four spans on each of eight devices, sorted; those of up to 14 tokens are computed short.
    tokens_8x4 = np.sort(np.sum(batch.attention_mask_SxL, axis=1).reshape(8, 4), axis=1)
    is_full_8x2 = tokens_8x4[:, 1::2] > 14
    assert 0 < is_full_8x2.mean() < 1
    assert fraction_of_full_chunks(experiment, folder, 8) == is_full_8x2.mean()
