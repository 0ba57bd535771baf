"""Candidates for hard batches; plans of a run."""

import numpy as np
import pytest
from transformers import TrainerControl, TrainerState

from cocondenser_jax.collection.folder import passage_text, read_corpus, read_queries
from cocondenser_jax.collection.layouts import Passage
from cocondenser_jax.finetune import samplers, schedule
from cocondenser_jax.finetune.training_data import TrainingData, to_judgments, training_pairs
from cocondenser_jax.retrieval import models
from cocondenser_jax.retrieval.bm25 import bm25_run

_bm25 = samplers.bm25_candidates  # some tests replace it


IDS = [f"q{i}" for i in range(24)], [f"d{i}" for i in range(24)]
SETTINGS = samplers.BatchSettings("hard", 4, batch_scores="encoder", batch_depth=100, seed=3)


@pytest.fixture(scope="module")
def data(beir):
    qrels = {query: {passage: 1} for query, passage in zip(*IDS, strict=True)}
    return TrainingData(
        training_pairs(qrels),
        to_judgments(qrels),
        read_queries(beir),
        {p.id: passage_text(p) for p in read_corpus(beir)},
        candidates={},
        n_negatives=0,
        seed=3,
        files={},
    )


@pytest.fixture(scope="module")
def texts(data):
    return [data.queries[query] for query in IDS[0]], [data.passages[p] for p in IDS[1]]


def test_the_encoders_candidates_are_the_best_inner_products(model_folder, texts):
    model = models.load_retriever(model_folder, 8, 16).train()
    found = samplers.encoder_candidates(model, *texts, depth=5).toarray()
    assert model.training
    model.eval()
    scores_NxN = model.encode_query(texts[0]) @ model.encode_document(texts[1]).T
    best_NxK = np.argsort(-scores_NxN, axis=1, kind="stable")[:, :5]
    expected_NxN = np.zeros_like(scores_NxN)
    np.put_along_axis(expected_NxN, best_NxK, np.take_along_axis(scores_NxN, best_NxK, 1), 1)
    assert (found != 0).sum() == 24 * 5
    np.testing.assert_allclose(found, expected_NxN, rtol=1e-5)
    assert samplers.encoder_candidates(model, *texts, depth=100).nnz == 24 * 24


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


class Run:
    """The part of a trainer that its callbacks see."""

    def __init__(self, planner, n_steps, n_epochs):
        self.planner, self.n_epochs = planner, n_epochs
        self.state = TrainerState(max_steps=n_steps * n_epochs)
        self.control = TrainerControl()

    def step(self, number):
        self.state.global_step = number
        self.planner.on_step_end(None, self.state, self.control)


def test_plans_follow_bm25_then_the_encoder_half_way(
    model_folder, data, texts, tmp_path, monkeypatch, caplog
):
    model = models.load_retriever(model_folder, 8, 16)
    options = {"seed": 3, "conflicts": schedule.false_negatives(*IDS)}

    def start():
        planner = samplers.HardPlans(tmp_path / "plans", model, data, SETTINGS)
        return planner, Run(planner, 6, 2)

    planner, run = start()
    bm25 = samplers.bm25_candidates(*texts, 100)
    first = planner.plan(0)
    np.testing.assert_array_equal(first, schedule.hard_plan(bm25, 4, **options))
    assert sorted(first.flat) == list(range(24))

    for step in (1, 2):
        run.step(step)
    assert [path.name for path in (tmp_path / "plans").iterdir()] == ["epoch-0000.npz"]
    run.step(3)
    half_way = samplers.encoder_candidates(model, *texts, 100)
    monkeypatch.setattr(samplers, "encoder_candidates", None)  # the end of the epoch is too late
    expected = schedule.hard_plan(half_way, 4, epoch=1, **options)
    saved = schedule.load_plan(tmp_path / "plans" / "epoch-0001.npz")
    np.testing.assert_array_equal(saved, expected)
    for step in (4, 5, 6):
        run.step(step)
    assert not np.array_equal(first, expected)

    # A run that resumes at step 4 does not plan again, nor has the last epoch.
    planner, run = start()
    for step in (5, 6):
        run.step(step)
    np.testing.assert_array_equal(planner.plan(1), expected)
    for step in range(7, 13):
        run.step(step)
    assert len(list((tmp_path / "plans").iterdir())) == 2

    # A plan that is damaged or lost is made again, with the encoder of that moment.
    monkeypatch.setattr(samplers, "encoder_candidates", lambda *args: half_way)
    plan = tmp_path / "plans" / "epoch-0001.npz"
    for damage in (lambda: plan.write_bytes(plan.read_bytes()[:-100]), plan.unlink):
        damage()
        caplog.clear()
        np.testing.assert_array_equal(start()[0].plan(1), expected)
        assert "cannot read the plan" in caplog.text


@pytest.mark.effect("retriever batch_scores", "retriever batch_depth")
def test_bm25_may_plan_every_epoch_and_as_deep_as_asked(data, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(samplers, "encoder_candidates", None)
    conflicts = schedule.false_negatives(*IDS)
    settings = SETTINGS._replace(batch_scores="bm25", batch_depth=3)
    planner = samplers.HardPlans(tmp_path / "plans", None, data, settings)
    run = Run(planner, 6, 2)
    plans = [planner.plan(0)]
    bm25 = samplers.bm25_candidates(*texts, 3)
    monkeypatch.setattr(samplers, "bm25_candidates", None)  # once is enough
    for step in range(1, 7):
        run.step(step)
    plans.append(planner.plan(1))
    for epoch, plan in enumerate(plans):
        expected = schedule.hard_plan(bm25, 4, seed=3, epoch=epoch, conflicts=conflicts)
        np.testing.assert_array_equal(plan, expected)
        other = schedule.hard_plan(_bm25(*texts, 100), 4, seed=3, epoch=epoch, conflicts=conflicts)
        assert not np.array_equal(plan, other)
