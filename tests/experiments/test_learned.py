"""Whether a base has learned: its last held-out loss beside that of token frequencies."""

import json
import math

import numpy as np
import pytest

from cocondenser_jax.corpus.batches import BatchSpec, held_out_batch
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.errors import UserError
from experiments.learned import held_out_losses, require_learned
from tests.world import make_texts, write_store

CONFIG = {
    "seed": 3,
    "data": {"batch_size": 4, "length": 16, "mask_probability": 0.3},
    "probe": {"documents": 4},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("learned"), make_texts(48))


def write_run(folder, losses):
    """A run whose probe measured some losses, one after the other, and logged others beside."""
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"config": CONFIG}))
    lines = [{"step": i + 1, "probe/mlm_loss": loss} for i, loss in enumerate(losses)]
    text = "".join(json.dumps(line) + "\n" for line in [*lines, {"step": 9, "loss": 0.1}])
    (folder / "metrics.jsonl").write_text(text)
    return folder


def test_the_last_loss_counts_beside_that_of_the_frequencies(store, tmp_path):
    losses = held_out_losses(write_run(tmp_path / "run", [3.0, 0.5, 2.0]), store)
    assert losses["MLM loss"] == 2.0
    opened = open_store(store)
    spans = opened.read_spans(np.arange(opened.n_spans), 14)
    ids = [row[:n] for row, n in zip(spans.ids_NxL, spans.n_tokens_N, strict=True)]
    counts = 1 + np.bincount(np.concatenate(ids), minlength=opened.vocab_size)
    spec = BatchSpec(3, 4, 16, "span", mask_probability=0.3, held_out=4)
    batch = held_out_batch(opened, spec)
    slots = zip(batch.labels_SxM.flat, batch.weights_SxM.flat, strict=True)
    masked = [int(label) for label, weight in slots if weight]
    expected = -sum(math.log(counts[x] / counts.sum()) for x in masked) / len(masked)
    assert losses["frequencies"] == pytest.approx(expected)


def test_what_is_learned_is_how_far_the_loss_is_below(store, tmp_path):
    run = write_run(tmp_path / "run", [0.5, 2.0])
    below = held_out_losses(run, store)["frequencies"] - 2.0
    assert require_learned(run, store, below)["below"] == below
    with pytest.raises(UserError, match=r"has learned too little .* loss of 2\.000 is"):
        require_learned(run, store, below + 1e-6)
    for number, losses in enumerate(([0.5, math.nan], [0.5, math.inf])):
        run = write_run(tmp_path / f"{number}", losses)
        with pytest.raises(UserError, match="has learned too little"):
            require_learned(run, store, -math.inf)
    with pytest.raises(UserError, match="has no probe/mlm_loss: expected a run with a probe"):
        held_out_losses(write_run(tmp_path / "none", []), store)
