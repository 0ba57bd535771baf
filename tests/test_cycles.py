"""What benchmarks/cycles.py reads of a compiled program, and which chunks are short."""

from pathlib import Path

import numpy as np

from benchmarks.cycles import estimated_cycles, share_of_full_chunks
from cocondenser_jax.configs import default
from cocondenser_jax.corpus.batches import make_batch
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.pretrain.experiment import resolve
from tests.world import make_texts, write_store


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
    config.train.chunk_size = 2
    config.probe.every = 0
    store = open_store(Path(folder))
    experiment = resolve(config, store)
    batch = make_batch(store, experiment.batches, 0)
    # Four spans on each of eight devices, sorted; those of up to 14 tokens are computed short.
    tokens_8x4 = np.sort(np.sum(batch.attention_mask_SxL, axis=1).reshape(8, 4), axis=1)
    is_full_8x2 = tokens_8x4[:, 1::2] > 14
    assert 0 < is_full_8x2.mean() < 1
    assert share_of_full_chunks(experiment, folder, 8) == is_full_8x2.mean()
