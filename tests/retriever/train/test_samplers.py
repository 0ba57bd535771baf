"""Candidates for hard batches; the batches of a run."""

import functools
import logging

import numpy as np
import pytest
import torch

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.data.folder import passage_text, read_corpus, read_queries
from cocondenser_jax.retriever.data.layouts import Passage
from cocondenser_jax.retriever.search import models
from cocondenser_jax.retriever.search.bm25 import bm25_run
from cocondenser_jax.retriever.train import hard_batches, samplers
from cocondenser_jax.retriever.train.training_data import (
    Epoch,
    TrainingData,
    to_judgments,
    training_pairs,
)
from tests.lines import whole

_bm25 = samplers.bm25_candidates  # some tests replace it


IDS = [f"q{i}" for i in range(24)], [f"d{i}" for i in range(24)]
SETTINGS = samplers.BatchSettings(
    batches="hard", batch_size=4, batch_scores="encoder", batch_depth=100, seed=3
)


@pytest.fixture(scope="module")
def data(beir):
    qrels = {query: {passage: 1} for query, passage in zip(*IDS, strict=True)}
    return TrainingData(
        pairs=training_pairs(qrels),
        judgments=to_judgments(qrels, teacher=None),
        queries=read_queries(beir),
        passages={p.id: passage_text(p) for p in read_corpus(beir)},
        candidates={},
        n_negatives=0,
        seed=3,
        checksums={},
    )


@pytest.fixture(scope="module")
def texts(data):
    return [data.queries[query] for query in IDS[0]], [data.passages[p] for p in IDS[1]]


def test_copies_of_a_passage_are_kept_apart(data, tmp_path):
    """Passages d1, d3, ... have the text of the one before, under another id."""
    passages = {p: data.passages[f"d{int(p[1:]) // 2 * 2}"] for p in IDS[1]}
    doubled = data._replace(passages=passages)
    batches_of = samplers.hard_batches_by_epoch(
        SETTINGS._replace(batch_scores="bm25"), doubled, None, tmp_path
    )
    for batch in batches_of(0):
        assert len({passages[data.pairs[int(pair)]["positive_id"]] for pair in batch}) == 4


def test_another_process_waits_for_the_batches_of_the_first(data, tmp_path, monkeypatch):
    made = np.arange(24).reshape(6, 4)

    class OfTheSecond:
        is_main_process = False

        def wait_for_everyone(self):
            hard_batches.save_batches(tmp_path / "epoch-0000.npz", made)  # as the first does

    monkeypatch.setattr(samplers, "PartialState", OfTheSecond)
    batches_of = samplers.hard_batches_by_epoch(SETTINGS, data, None, tmp_path)
    np.testing.assert_array_equal(batches_of(0), made)


def test_an_epoch_has_as_many_batches_as_it_says():
    make = functools.partial(samplers.random_batches, 7, 3, 5)  # one of seven pairs is left
    sampler = samplers.EpochBatchSampler(make, Epoch(1), 7, 3)
    assert [*sampler] == make(1).tolist() != make(0).tolist()
    assert len(sampler) == 2


def test_candidates_have_their_places_among_many_pairs(monkeypatch):
    monkeypatch.setattr(samplers, "bm25_run", lambda *_: {"0": {"70000": 2.0}, "1": {"3": 1.0}})
    found = _bm25(["a", "b"], [""] * 70_001, depth=1)
    assert (found.shape, found[0, 70_000], found[1, 3], found.nnz) == ((2, 70_001), 2.0, 1.0, 2)


def test_the_encoders_candidates_are_the_best_inner_products(model_folder, texts, caplog):
    model = models.load_retriever(model_folder, 8, 16).train()
    caplog.clear()
    caplog.set_level(logging.INFO, samplers.__name__)
    found = samplers.encoder_candidates(model, *texts, depth=5).toarray()
    assert caplog.messages == ["scoring all pairs for the batches of an epoch"]
    assert model.training
    model.eval()
    scores_NxN = model.encode_query(texts[0]) @ model.encode_document(texts[1]).T
    best_NxK = np.argsort(-scores_NxN, axis=1, kind="stable")[:, :5]
    expected_NxN = np.zeros_like(scores_NxN)
    np.put_along_axis(expected_NxN, best_NxK, np.take_along_axis(scores_NxN, best_NxK, 1), 1)
    assert (found != 0).sum() == 24 * 5
    np.testing.assert_allclose(found, expected_NxN, rtol=1e-5)
    assert samplers.encoder_candidates(model, *texts, depth=100).nnz == 24 * 24


@pytest.mark.parametrize("side", ["query", "passage"])
def test_an_encoder_that_has_diverged_makes_no_batches(texts, side):
    class Diverged:
        training = True

        def encode_query(self, found, **options):
            return np.full((len(found), 4), np.nan if side == "query" else 1, np.float32)

        def encode_document(self, found, **options):
            return np.full((len(found), 4), np.nan if side == "passage" else 1, np.float32)

        def train(self, mode):
            pass

    with pytest.raises(UserError, match=f"24 vectors are not finite, first that of the {side}"):
        samplers.encoder_candidates(Diverged(), *texts, depth=5)


def test_bm25s_candidates_are_its_run(texts):
    queries = [*texts[0], "unheardofword"]
    found = samplers.bm25_candidates(queries, [*texts[1], "another text"], depth=6)
    corpus = [Passage(f"p{i}", "", text) for i, text in enumerate([*texts[1], "another text"])]
    run = bm25_run(corpus, dict(enumerate(queries)), 6)
    assert found.shape == (25, 25)
    for i, results in enumerate(run.values()):
        row = slice(*found.indptr[i : i + 2])
        assert [f"p{j}" for j in found.indices[row]] == list(results)
        np.testing.assert_allclose(found.data[row], list(results.values()))
    assert not run[24]
    assert found.nnz > 24


def test_hard_batches_follow_bm25_then_the_encoder(
    model_folder, data, texts, tmp_path, monkeypatch
):
    model = models.load_retriever(model_folder, 8, 16)
    options = {"seed": 3, "conflicts": hard_batches.false_negatives(*IDS)}

    def start():
        return samplers.batches_by_epoch(SETTINGS, data, model, tmp_path / "batches")

    batches_of = start()
    bm25 = samplers.bm25_candidates(*texts, 100)
    first = batches_of(0)
    np.testing.assert_array_equal(first, hard_batches.greedy_batches(bm25, 4, **options))
    assert sorted(first.flat) == list(range(24))

    seen = []
    for epoch in (1, 2):
        with torch.no_grad():  # as if it were trained
            for parameter in model.parameters():
                parameter.mul_(1.1)
        by_now = samplers.encoder_candidates(model, *texts, 100)
        expected = hard_batches.greedy_batches(by_now, 4, epoch=epoch, **options)
        np.testing.assert_array_equal(batches_of(epoch), expected)
        seen.append(expected.tolist())
    assert seen[0] != seen[1]

    # A run that resumes reads the file; one that is lost is made again.
    path = tmp_path / "batches" / "epoch-0002.npz"
    saved = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(samplers, "encoder_candidates", None)
        np.testing.assert_array_equal(start()(2), expected)
    path.unlink()
    np.testing.assert_array_equal(start()(2), expected)
    path.write_bytes(saved[:-100])
    with pytest.raises(
        UserError,
        match=whole(
            "cannot read the batches in TMP…epoch-0002.npz, delete it to make them again: …"
        ),
    ):
        start()(2)


@pytest.mark.effect("retriever data.batch_scores", "retriever data.batch_depth")
def test_bm25_may_score_every_epoch_and_as_deep_as_asked(data, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(samplers, "encoder_candidates", None)
    conflicts = hard_batches.false_negatives(*IDS)
    settings = SETTINGS._replace(batch_scores="bm25", batch_depth=3)
    batches_of = samplers.batches_by_epoch(settings, data, None, tmp_path / "batches")
    bm25 = samplers.bm25_candidates(*texts, 3)
    epochs = [batches_of(0)]
    monkeypatch.setattr(samplers, "bm25_candidates", None)  # once is enough
    epochs.append(batches_of(1))
    deep = _bm25(*texts, 100)
    for epoch, batches_MxB in enumerate(epochs):
        expected = hard_batches.greedy_batches(bm25, 4, seed=3, epoch=epoch, conflicts=conflicts)
        np.testing.assert_array_equal(batches_MxB, expected)
        other = hard_batches.greedy_batches(deep, 4, seed=3, epoch=epoch, conflicts=conflicts)
        assert not np.array_equal(batches_MxB, other)
