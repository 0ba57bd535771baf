"""Batches of several corpora, each with a weight."""

import math
from pathlib import Path

import numpy as np
import pytest

from cocondenser_jax.corpus import order
from cocondenser_jax.corpus.batches import BatchSpec, make_batch
from cocondenser_jax.corpus.order import (
    batch_examples,
    epoch_examples,
    require_examples,
    steps_per_epoch,
)
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.errors import UserError
from tests.lines import whole


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
def test_every_batch_has_its_part_of_each_corpus_and_nothing_twice(mixed, example):
    both = open_store(Path(f"2*{mixed['some']},0.5*{mixed['many']}"))
    spec = BatchSpec(seed=1, batch_size=7, length=30, example=example)
    n_first = 5 if example == "spans" else 20
    n_drawn = 0
    for step in range(3 * steps_per_epoch(both, spec)):
        drawn = batch_examples(both, spec, step)
        assert len(set(drawn)) == 7
        # 10 and 5 pairs, 40 and 20 spans an epoch: 4.67 and 2.33 of 7.
        n_drawn += (drawn < n_first).sum()
        assert n_drawn == math.floor((step + 1) * 14 / 3)
        even = spec._replace(batch_size=6)
        halves = [batch_examples(both, even, step, host=host, n_hosts=2) for host in range(2)]
        assert np.concatenate(halves).tolist() == batch_examples(both, even, step).tolist()


def test_the_first_document_of_a_corpus_is_held_out_of_it_alone(mixed, monkeypatch):
    both = open_store(Path(f"2*{mixed['some']},0.5*{mixed['many']}"))
    spec = BatchSpec(seed=1, batch_size=7, length=30, example="span")
    monkeypatch.setattr(order, "held_out", lambda *_: np.array([both.corpora[1].first_document]))
    assert [pool.size for pool in order._pools(both, spec)] == [20, 40 - 1]


@pytest.mark.parametrize(
    ("weights", "batch_size", "said"),
    [
        (
            (4, 0.5),
            26,
            (
                "config.data.batch_size 26 takes 21 spans of TMP/some into each batch; "
                "expected 1 to 20, the number that is not held out, because no batch "
                "contains one twice"
            ),
        ),
        (
            (0.5, 100),
            41,
            (
                "config.data.batch_size 41 takes 41 spans of TMP/many into each batch; "
                "expected 1 to 40, the number that is not held out, because no batch "
                "contains one twice"
            ),
        ),
        (
            (0.5, 1),
            53,
            (
                "config.data.batch_size 53 takes 43 spans of TMP/many into each batch; "
                "expected 1 to 40, the number that is not held out, because no batch "
                "contains one twice"
            ),
        ),
        (
            (1, 1),
            61,
            (
                "config.data.batch_size 61 takes 61 spans of 1*TMP/some,1*TMP/many into each "
                "batch; expected 1 to 60, the number that is not held out, because no batch "
                "contains one twice"
            ),
        ),
    ],
)
def test_a_corpus_that_is_too_small_for_its_weight_is_refused(mixed, weights, batch_size, said):
    both = open_store(Path(f"{weights[0]}*{mixed['some']},{weights[1]}*{mixed['many']}"))
    spec = BatchSpec(seed=1, batch_size=batch_size, length=30, example="span")
    with pytest.raises(UserError, match=whole(said)):
        require_examples(both, spec, n_hosts=1)
    with pytest.raises(UserError, match=whole(said)):
        make_batch(both, spec, 0)


def test_a_corpus_without_examples_is_refused(monkeypatch):
    none = order._Pool(Path("a"), 1.0, np.array([0]), np.array([0]))
    monkeypatch.setattr(order, "_pools", lambda *_: [none])
    said = (
        "config.data.batch_size 8 takes 8 documents of two spans of a into each batch; expected 1"
        " to 0, the number that is not held out, because no batch contains one twice"
    )
    with pytest.raises(UserError, match=whole(said)):
        require_examples(None, BatchSpec(seed=1, batch_size=8, length=30), n_hosts=1)


@pytest.mark.parametrize(
    "weights", [(2, 1), (0.5, 1), (4, 1), (0.001, 1), (1, 0.01), (2, 3, 0.1), (1, 0.02, 3, 4, 5)]
)
def test_a_corpus_is_read_as_often_as_its_weight_says(monkeypatch, weights):
    """To one or two examples in all, though a batch has a fraction of one of the smallest."""
    sizes = [20, 1000, 30, 40, 77][: len(weights)]
    ends = np.cumsum(sizes)
    pools = [
        order._Pool(Path(str(i)), weights[i], ends[i : i + 1], np.array([size]))
        for i, size in enumerate(sizes)
    ]
    monkeypatch.setattr(order, "_pools", lambda *_: pools)
    spec = BatchSpec(seed=1, batch_size=25, length=30, example="span")
    epoch = sum(weight * size for weight, size in zip(weights, sizes, strict=True))
    n_steps = round(2 * epoch / spec.batch_size)
    counts = np.zeros(ends[-1], int)
    for step in range(n_steps):
        drawn = batch_examples(None, spec, step)  # type: ignore[arg-type]
        assert len(set(drawn.tolist())) == spec.batch_size
        counts[drawn] += 1
    for weight, of_pool in zip(weights, np.split(counts, ends[:-1]), strict=True):
        exact = weight * len(of_pool) * n_steps * spec.batch_size / epoch
        assert abs(of_pool.sum() - exact) < 2.5
        # A pass leaves out what fills no whole batch.
        assert of_pool.max() <= exact / len(of_pool) + 2
