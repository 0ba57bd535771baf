"""Batches of several corpora, each with a weight."""

from pathlib import Path

import numpy as np
import pytest

from cocondenser_jax.corpus.batches import (
    BatchSpec,
    batch_examples,
    epoch_examples,
    make_batch,
    read_batches,
    steps_per_epoch,
)
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.errors import UserError


def test_a_weight_is_the_passes_over_a_store_in_an_epoch(mixed):
    both = open_store(Path(f"4*{mixed['some']},0.5*{mixed['many']}"))
    spec = BatchSpec(seed=1, batch_size=25, length=30, example="span")
    assert epoch_examples(both, spec) == 4 * 20 + 0.5 * 40 == 100
    drawn = np.concatenate([batch_examples(both, spec, step) for step in range(4)])
    counts = np.bincount(drawn, minlength=60)
    assert (counts[:20] == 4).all()
    assert counts[20:].sum() == 20
    assert counts[20:].max() == 1
    pairs = spec._replace(example="spans", batch_size=5)
    assert epoch_examples(both, pairs) == 4 * 5 + 0.5 * 10


@pytest.mark.parametrize("example", ["span", "spans", "cloze"])
def test_every_batch_has_the_same_quota_of_each_corpus_and_nothing_twice(mixed, example):
    both = open_store(Path(f"2*{mixed['some']},0.5*{mixed['many']}"))
    spec = BatchSpec(seed=1, batch_size=7, length=30, example=example)
    n_first = 5 if example == "spans" else 20
    for step in range(3 * steps_per_epoch(both, spec)):
        drawn = batch_examples(both, spec, step)
        assert len(set(drawn)) == 7
        # 10 and 5 pairs, 40 and 20 spans an epoch: 4.67 and 2.33 of 7.
        assert (drawn < n_first).sum() == 5
        even = spec._replace(batch_size=6)
        halves = [batch_examples(both, even, step, host=host, n_hosts=2) for host in range(2)]
        assert np.concatenate(halves).tolist() == batch_examples(both, even, step).tolist()


@pytest.mark.parametrize(
    ("weights", "batch_size", "said"),
    [
        ((4, 0.5), 26, "takes 21 spans of .*some .* expected 1 to 20"),
        ((0.01, 1), 10, "takes 0 spans of .*some .* expected 1 to 20"),
        ((0.5, 100), 41, "takes 0 spans of .*some "),
        ((0.5, 1), 53, "takes 42 spans of .*many .* expected 1 to 40"),
    ],
)
def test_a_corpus_that_is_too_small_for_its_weight_is_refused(mixed, weights, batch_size, said):
    both = open_store(Path(f"{weights[0]}*{mixed['some']},{weights[1]}*{mixed['many']}"))
    spec = BatchSpec(seed=1, batch_size=batch_size, length=30, example="span")
    with pytest.raises(UserError, match=said):
        read_batches(both, spec, first_step=0, n_steps=1)
    with pytest.raises(UserError, match=said):
        make_batch(both, spec, 0)
