"""Batches as a function of (data, seed, step), against the plain reading of what they should be."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cocondenser_jax.corpus import batches
from cocondenser_jax.corpus.batches import (
    Batch,
    BatchSpec,
    batch_documents,
    make_batch,
    read_batches,
)
from cocondenser_jax.corpus.build import build_store
from cocondenser_jax.corpus.store import TokenStore, open_store
from cocondenser_jax.errors import UserError

SPEC = BatchSpec(seed=7, documents_per_step=8, length=16)
N_DOCUMENTS = 24


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory, wordpiece_folder: Path) -> TokenStore:
    """Documents of a different word each, so that every span tells its document."""
    folder = tmp_path_factory.mktemp("batches")
    rng = np.random.default_rng(0)
    lines = []
    for i in range(N_DOCUMENTS):
        name = f"{'abcdefghijklmnopqrstuvwxyz'[i]} "
        spans = [name * int(n) for n in rng.integers(9, 15, 2 + i % 5)]
        lines.append(json.dumps({"_id": str(i), "spans": spans}) + "\n")
    (folder / "text.jsonl").write_text("".join(lines))
    build_store(str(folder / "text.jsonl"), str(wordpiece_folder), folder / "store", max_tokens=16)
    return open_store(folder / "store")


def originals(batch: Batch) -> np.ndarray:
    """The spans' ids with the masks taken back."""
    ids = batch.input_ids_SxL.copy()
    rows, slots = np.nonzero(batch.weights_SxM)
    ids[rows, batch.masked_positions_SxM[rows, slots]] = batch.labels_SxM[rows, slots]
    return ids


def test_spans_are_cls_tokens_sep_padding(store: TokenStore) -> None:
    batch = make_batch(store, SPEC, 0)
    ids = originals(batch)
    assert ids.shape == (16, 16)
    for row, mask in zip(ids, batch.attention_mask_SxL, strict=True):
        n = int(mask.sum())
        assert mask[:n].all()
        assert row[0] == store.cls_id
        assert row[n - 1] == store.sep_id
        assert (row[n:] == store.pad_id).all()
        assert not np.isin(row[1 : n - 1], store.special_ids).any()
        assert len(set(row[1 : n - 1].tolist())) == 1  # tokens of one document only
    positions = batch.masked_positions_SxM[batch.weights_SxM > 0]
    assert positions.min() >= 1


def test_pairs_are_two_spans_of_one_document_and_documents_differ(store: TokenStore) -> None:
    words = originals(make_batch(store, SPEC, 3))[:, 1]
    np.testing.assert_array_equal(words[0::2], words[1::2])
    assert len(set(words[0::2].tolist())) == SPEC.documents_per_step


def test_every_document_once_per_epoch_in_a_new_order(store: TokenStore) -> None:
    epochs = [
        np.concatenate(
            [originals(make_batch(store, SPEC, step))[::2, 1] for step in range(first, first + 3)]
        )
        for first in (0, 3)
    ]
    assert len(set(epochs[0].tolist())) == N_DOCUMENTS
    assert set(epochs[0].tolist()) == set(epochs[1].tolist())
    assert epochs[0].tolist() != epochs[1].tolist()


def test_pairs_are_two_different_spans_and_uniform(store: TokenStore) -> None:
    reads: list[np.ndarray] = []

    class Spy:
        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        def read_spans(self, spans_N: np.ndarray, length: int) -> object:
            reads.append(spans_N)
            return store.read_spans(spans_N, length)

    for step in range(300):
        make_batch(Spy(), SPEC, step)  # type: ignore[arg-type]
    pairs = np.concatenate(reads).reshape(-1, 2)
    assert (pairs[:, 0] != pairs[:, 1]).all()
    document = np.searchsorted(store.first_span_D, pairs[:, 0], side="right") - 1
    n_spans = np.diff(store.first_span_D)
    chosen = int(np.flatnonzero(n_spans == 4)[0])
    local = pairs[document == chosen] - store.first_span_D[chosen]
    assert (local < 4).all()
    assert (local >= 0).all()
    counts = np.zeros((4, 4))
    np.add.at(counts, tuple(local.T), 1)
    off_diagonal = counts[~np.eye(4, dtype=bool)]
    expected = off_diagonal.sum() / 12
    assert ((off_diagonal - expected) ** 2 / expected).sum() < 31.3  # chi-squared, 11 dof, 0.1 %


@pytest.mark.parametrize("n_hosts", [2, 4])
def test_hosts_hold_parts_of_the_same_batch(store: TokenStore, n_hosts: int) -> None:
    whole = make_batch(store, SPEC, 5)
    parts = [make_batch(store, SPEC, 5, host=host, n_hosts=n_hosts) for host in range(n_hosts)]
    for name, expected in whole._asdict().items():
        joined = np.concatenate([getattr(part, name) for part in parts])
        np.testing.assert_array_equal(joined, expected)


def test_a_batch_depends_on_seed_and_step_only(store: TokenStore) -> None:
    steps = list(read_batches(store, SPEC, first_step=0, n_steps=5))
    later = list(read_batches(store, SPEC, first_step=3, n_steps=5))
    assert len(steps) == 5
    assert len(later) == 2
    for left, right in zip(steps[3:], later, strict=True):
        for a, b in zip(left, right, strict=True):
            np.testing.assert_array_equal(a, b)
    other = make_batch(store, SPEC._replace(seed=8), 0)
    assert (other.input_ids_SxL != steps[0].input_ids_SxL).any()


def test_order_pairs_and_masks_are_drawn_anew_for_every_seed_and_step(
    store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = [SPEC._replace(seed=seed) for seed in range(4)]
    assert len({tuple(batch_documents(store, spec, 0)) for spec in specs}) == 4

    pairs, draws = [], []
    mask, read = batches.mask_whole_words, TokenStore.read_spans

    def read_spans(self: TokenStore, spans_N: np.ndarray, length: int) -> Any:
        pairs.append(tuple(spans_N))
        return read(self, spans_N, length)

    def mask_whole_words(*arguments: Any, **settings: Any) -> Any:
        draws.append(arguments[3])
        return mask(*arguments, **settings)

    monkeypatch.setattr(TokenStore, "read_spans", read_spans)
    monkeypatch.setattr(batches, "mask_whole_words", mask_whole_words)
    # The same documents in every step: what differs is what is drawn.
    monkeypatch.setattr(batches, "document_order", lambda store, seed: np.arange(10_000) % 8)
    for spec in specs[:2]:
        for step in range(40):
            make_batch(store, spec, step)
    assert len(set(pairs)) == len(pairs) == 80
    numbers = np.concatenate(draws)
    assert len(np.unique(numbers)) == numbers.size


def test_batches_that_cannot_be_filled_are_refused(store: TokenStore) -> None:
    with pytest.raises(UserError, match="has only 24"):
        read_batches(store, SPEC._replace(documents_per_step=25), first_step=0, n_steps=1)
    with pytest.raises(UserError, match="not a multiple of 3 hosts"):
        read_batches(store, SPEC, first_step=0, n_steps=1, n_hosts=3)
