"""Metrics against an implementation of a few lines, on runs with ties and missing queries."""

import random
import subprocess
import sys

import ir_measures
import numpy as np
import pytest
import pytrec_eval
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.data.ranking import (
    evaluate_run,
    metric_name,
    parse_metric,
    warn_of_cutoffs,
)
from cocondenser_jax.retriever.data.trec import read_run, write_run
from tests.lines import whole

METRICS = (
    "MRR@10", "MRR@100", "Recall@5", "Recall@20", "Recall@50", "Recall@100", "Recall@1000",
    "nDCG@10", "Success@3",
)  # fmt: skip


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("ndcg@10", "nDCG@10"),
        ("recall@100", "Recall@100"),
        ("mrr@10", "MRR@10"),
        ("NDCG@10", "NDCG@10"),
        ("judged@10", "Judged@10"),
        ("p(rel=2)@5", "P(rel=2)@5"),
        ("nope@10", "nope@10"),
        ("@10", "@10"),
        ("", ""),
    ],
)
def test_a_metric_may_be_typed_in_any_case(typed, name):
    assert metric_name(typed) == name
    if name in ("nope@10", "@10", ""):
        return
    assert parse_metric(typed) == ir_measures.parse_measure(name)
    assert list(evaluate_run({"q": {"a": 1}}, {"q": {"a": 1.0}}, [typed])["mean"]) == [name]


def by_hand(name, grades, ranking):
    metric, cutoff = name.split("@")
    top = ranking[: int(cutoff)]
    relevant = {passage for passage, grade in grades.items() if grade > 0}
    if metric == "MRR":
        return next((1 / i for i, passage in enumerate(top, 1) if passage in relevant), 0.0)
    if metric == "Recall":
        return len(relevant.intersection(top)) / len(relevant) if relevant else 0.0
    if metric == "Success":
        return float(bool(relevant.intersection(top)))
    ideal = sorted((grade for grade in grades.values() if grade > 0), reverse=True)[: int(cutoff)]
    gain = sum(max(grades.get(p, 0), 0) / np.log2(i + 1) for i, p in enumerate(top, 1))
    best = sum(grade / np.log2(i + 1) for i, grade in enumerate(ideal, 1))
    return gain / best if best else 0.0


@pytest.mark.parametrize("seed", range(5))
def test_random_runs_with_ties_and_missing_queries(seed):
    rng = np.random.default_rng(seed)
    passages = [f"d{i}" for i in range(1500)]
    qrels, run, rankings = {}, {}, {}
    for i in range(30):
        judged = rng.choice(passages, rng.integers(1, 300), replace=False)
        qrels[f"q{i}"] = {str(p): int(rng.integers(0, 4)) for p in judged}
        found = [str(p) for p in rng.permutation(passages)[: rng.integers(0, 1500)]]
        if i % 5:
            # Few distinct scores: most are tied, and the order of insertion decides.
            run[f"q{i}"] = {p: float(rng.integers(0, 4)) for p in found}
            rankings[f"q{i}"] = sorted(found, key=lambda p: -run[f"q{i}"][p])
    run["not judged"] = {"d1": 1.0}

    metrics = evaluate_run(qrels, run, METRICS)

    for name in METRICS:
        values = [by_hand(name, qrels[q], rankings.get(q, [])) for q in qrels]
        assert metrics["mean"][name] == pytest.approx(np.mean(values), abs=1e-12)
        assert [metrics["per_query"][q][name] for q in qrels] == pytest.approx(values, abs=1e-12)


PASSAGES = st.sampled_from([f"d{i}" for i in range(30)])
QUERIES = [f"q{i}" for i in range(3)]
# Ties, in double precision too, and any other number that a run may hold.
SCORES = st.sampled_from([1.0, 2.0, 2.0 + 1e-12, -1.0, 0.0]) | st.floats(-1e30, 1e30)


@settings(max_examples=60, deadline=None)
@given(
    qrels=st.dictionaries(
        st.sampled_from(QUERIES),
        st.dictionaries(PASSAGES, st.integers(-1, 3), min_size=1),
        min_size=1,
    ),
    run=st.dictionaries(st.sampled_from([*QUERIES, "unjudged"]), st.dictionaries(PASSAGES, SCORES)),
)
def test_any_run_gets_the_metrics_that_trec_eval_gives_its_file(tmp_path_factory, qrels, run):
    assume(not any(run.values()) or any(run.get(query) for query in qrels))
    path = tmp_path_factory.mktemp("any") / "run.trec"
    write_run(path, run)
    written = read_run(path)

    metrics = evaluate_run(qrels, run, METRICS)["per_query"]

    assert evaluate_run(qrels, written, METRICS)["per_query"] == metrics
    names = {f"Recall@{k}": f"recall_{k}" for k in (5, 20, 50, 100, 1000)}
    names |= {"nDCG@10": "ndcg_cut_10", "Success@3": "success_3"}
    asked = {"recall.5,20,50,100,1000", "ndcg_cut.10", "success.3"}
    expected = pytrec_eval.RelevanceEvaluator(qrels, asked).evaluate(written)
    # trec_eval has no cutoff for this one: the run is cut instead.
    top = {query: dict(list(found.items())[:10]) for query, found in written.items()}
    ranks = pytrec_eval.RelevanceEvaluator(qrels, {"recip_rank"}).evaluate(top)
    assert metrics.keys() == qrels.keys()
    for query in qrels:
        ranking = sorted(run.get(query, {}), key=lambda p: -np.float32(run[query][p]))
        by_hand_too = {name: by_hand(name, qrels[query], ranking) for name in METRICS}
        assert metrics[query] == pytest.approx(by_hand_too, abs=1e-12)
        for name, theirs in names.items():
            value = expected[query][theirs] if query in expected else 0.0
            assert metrics[query][name] == pytest.approx(value, abs=1e-12)
        value = ranks[query]["recip_rank"] if query in ranks else 0.0
        assert metrics[query]["MRR@10"] == pytest.approx(value, abs=1e-12)


def test_a_query_without_relevant_passage_counts_zero_as_in_trec_eval():
    qrels = {"q1": {"a": 1}, "q2": {"a": 0, "b": 0}}
    run = {"q1": {"a": 1.0}, "q2": {"a": 2.0, "c": 1.0}}
    names = {"MRR": "recip_rank", "Recall@20": "recall_20", "nDCG@10": "ndcg_cut_10"}
    metrics = evaluate_run(qrels, run, list(names))
    theirs = pytrec_eval.RelevanceEvaluator(qrels, set(names.values())).evaluate(run)
    for name, their_name in names.items():
        assert [metrics["per_query"][q][name] for q in qrels] == [1.0, 0.0]
        assert [theirs[q][their_name] for q in qrels] == [1.0, 0.0]
        assert metrics["mean"][name] == 0.5


def test_negative_grades_harm_nothing():
    program = """
from cocondenser_jax.retriever.data.ranking import evaluate_run
for _ in range(5000):
    qrels = {"q": {"a": -2, "b": -1000, "c": 1}, "r": {"d": -11}}
    found = evaluate_run(qrels, {"q": {"a": 3.0, "b": 2.0, "c": 1.0}, "r": {"d": 1.0}})
print(found["mean"]["MRR@10"])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, f"{1 / 6}\n"), done.stderr


@pytest.mark.parametrize(
    "name", ["infAP", "Bpref", "AP(judged_only=True)", "nDCG(judged_only=True)@10", "nDCG@10", "AP"]
)
def test_a_passage_with_a_negative_grade_is_not_judged(name):
    rng = random.Random(0)
    grades = (-1, 0, 1, 2)
    qrels = {f"q{q}": {f"d{d}": rng.choice(grades) for d in range(30)} for q in range(5)}
    run = {query: {f"d{d}": rng.random() for d in range(60)} for query in qrels}
    measure = ir_measures.parse_measure(name)
    expected = ir_measures.calc_aggregate([measure], qrels, run)[measure]
    assert evaluate_run(qrels, run, [name])["mean"][name] == pytest.approx(expected)
    if name not in ("nDCG@10", "AP"):
        judged = {query: {d: max(g, 0) for d, g in row.items()} for query, row in qrels.items()}
        other = ir_measures.calc_aggregate([measure], judged, run)[measure]
        assert expected != pytest.approx(other, abs=0.02)


def test_a_query_without_result_counts_zero(caplog):
    qrels = {"q1": {"a": 1}, "q2": {"b": 1}, "q3": {"c": 1}, "q4": {"d": 1}}
    metrics = evaluate_run(qrels, {"q1": {"a": 3.0}, "q2": {}}, ["MRR@10"], name="three lack")
    assert metrics["mean"] == {"MRR@10": 0.25}
    assert caplog.messages == [
        "three lack: 3 of 4 judged queries have no result: they count as 0",
        "three lack: no ranking is longer than 1, so MRR@10 stops there",
    ]
    assert evaluate_run(qrels, {}, ["MRR@10"])["mean"] == {"MRR@10": 0.0}


def test_a_metric_that_is_zero_for_every_query_is_questioned(caplog):
    qrels = {"q1": {"d1": 1}, "q2": {"d2": 1}}
    run = {query: {"x": 3.0, **grades} for query, grades in qrels.items()}
    evaluate_run(qrels, run, ["MRR@2", "Success@1"], name="mine")
    warning = (
        "is 0 for each of the 2 judged queries; do the run and the judgments use the same ids?"
    )
    assert caplog.messages == [f"mine: Success@1 {warning}"]
    caplog.clear()
    evaluate_run(qrels, {query: {"x": 2.0, "y": 1.0} for query in qrels}, ["MRR@2", "Success@1"])
    assert caplog.messages == [f"the run: MRR@2, Success@1 {warning}"]
    caplog.clear()
    late = {"q1": {**{f"x{i}": 300.0 - i for i in range(200)}, "d1": 1.0}, "q2": {"x": 1.0}}
    assert evaluate_run(qrels, late, ["MRR@1000"])["mean"]["MRR@1000"] == 1 / 201 / 2
    assert "is 0" not in caplog.text
    caplog.clear()
    evaluate_run(qrels, {**run, "q2": {"d2": 1.0}}, ["Success@1"])
    assert caplog.messages == []


def test_a_cutoff_beyond_every_ranking_is_said_once(caplog):
    run = {"q": {"b": 2.0, "a": 1.0}, "r": {"a": 1.0}}
    for _ in range(2):
        evaluate_run({"q": {"a": 1}}, run, ["MRR@2", "Recall@3", "AP"], name="mine")
    assert caplog.messages == ["mine: no ranking is longer than 2, so Recall@3 stops there"]
    caplog.clear()
    warn_of_cutoffs("x", run, {"Recall@2": 2, "Recall@3": 3, "nDCG@10": 10})
    warn_of_cutoffs("none", {}, {"Recall@2": 2})
    assert caplog.messages == ["x: no ranking is longer than 2, so Recall@3, nDCG@10 stop there"]


def test_what_cannot_be_evaluated():
    with pytest.raises(UserError, match=whole("there are no judged queries to evaluate")):
        evaluate_run({}, {"q": {"a": 1.0}})
    with pytest.raises(
        UserError,
        match=whole(
            "mine has no result for any of the 1 judged queries: its ids look like "
            "r, theirs like q; is this the right split?"
        ),
    ):
        evaluate_run({"q": {"a": 1}}, {"r": {"a": 1.0}}, name="mine")


@pytest.mark.parametrize(
    "name",
    "MRT@10 MRR@ten 10 MRR@ MRR@0 Recall Recall@0 Recall@-5 Recall@1.5 Recall@True P(rel=0)@5"
    " nDCG@99999999999999999999 P(rel=99999999999)@5 alpha_nDCG@10 ERR@10".split(),
)
def test_metrics_that_are_none(name):
    with pytest.raises(
        UserError,
        match=whole(
            f"unknown metric '{name}': expected, for instance, MRR@10, Recall@100, nDCG@10"
        ),
    ):
        evaluate_run({"q": {"a": 1}}, {"q": {"a": 1.0}}, [name])


def test_other_metrics_of_trec_eval():
    qrels, run = {"q": {"a": 1, "b": 2, "c": 2}}, {"q": {"x": 3.0, "a": 2.0, "b": 1.0}}
    names = ("MRR", "P@2", "P(rel=2)@3", "AP", "Judged@2")
    assert evaluate_run(qrels, run, names)["mean"] == pytest.approx(
        {"MRR": 0.5, "P@2": 0.5, "P(rel=2)@3": 1 / 3, "AP": (1 / 2 + 2 / 3) / 3, "Judged@2": 0.5}
    )


def test_each_name_of_a_metric_gets_its_value():
    metrics = evaluate_run({"q": {"a": 1}}, {"q": {"x": 3.0, "a": 2.0}}, ["RR@10", "P@2", "MRR@10"])
    assert metrics["mean"] == {"RR@10": 0.5, "P@2": 0.5, "MRR@10": 0.5}


# As in ArguAna: the queries are passages, and each finds itself first.
OF_PASSAGES = {
    "a": {"a": 9.0, "x": 3.0, "b": 2.0},
    "b": {"b": 9.0, "c": 4.0, "y": 3.0},
    "c": {"a": 5.0, "c": 4.0, "z": 3.0},
    "q": {"a": 5.0, "w": 4.0},
}
ANSWERS = {"a": {"x": 1}, "b": {"y": 1}, "c": {"z": 1}, "q": {"w": 1}}


def test_identical_ids_are_left_out_by_the_rule_of_beir(caplog):
    metrics = evaluate_run(ANSWERS, OF_PASSAGES, ["MRR@2"], ignore_identical_ids=True)
    assert not caplog.records
    found = {query: values["MRR@2"] for query, values in metrics["per_query"].items()}
    assert found == {"a": 1.0, "b": 0.5, "c": 0.5, "q": 0.5}
    # As beir.retrieval.evaluation does before pytrec_eval: results[query].pop(query).
    popped = {q: {p: s for p, s in row.items() if p != q} for q, row in OF_PASSAGES.items()}
    evaluator = pytrec_eval.RelevanceEvaluator(ANSWERS, {"recip_rank"})
    assert found == {q: v["recip_rank"] for q, v in evaluator.evaluate(popped).items()}
    assert evaluate_run(ANSWERS, OF_PASSAGES, ["MRR@2"])["mean"]["MRR@2"] == 0.25


def test_a_line_says_that_ids_are_identical(caplog):
    evaluate_run(ANSWERS, OF_PASSAGES, ["MRR@2"], name="mine")
    (record,) = caplog.records
    assert record.getMessage().startswith("3 of 4 queries of mine have a result with")
    caplog.clear()
    evaluate_run({"q": {"w": 1}}, OF_PASSAGES, ["MRR@2"])
    assert not caplog.records


def test_ids_that_are_judged_to_find_themselves_are_kept(caplog):
    qrels = {"1": {"1": 1}, "2": {"2": 1, "3": 1}, "3": {"1": 0, "3": 0}}
    run = {"1": {"1": 2.0}, "2": {"2": 2.0}, "3": {"1": 2.0}, "4": {"4": 1.0}}
    assert evaluate_run(qrels, run, ["Success@1"])["mean"]["Success@1"] == pytest.approx(2 / 3)
    assert not caplog.records
    with pytest.raises(
        UserError,
        match=whole(
            "ignore_identical_ids: 2 queries have a relevant passage with their own id "
            "(1, 2), so their ids say nothing about each other"
        ),
    ):
        evaluate_run(qrels, run, ["Success@1"], ignore_identical_ids=True)


@pytest.mark.parametrize("name", ["P(foo=2)@5", "nDCG(foo=2)@10", "MRR(cut=10)"])
def test_a_parameter_that_a_metric_lacks_is_one_line(name):
    said = f"unknown metric '{name}': expected, for instance, MRR@10, Recall@100, nDCG@10"
    with pytest.raises(UserError, match=whole(said)):
        parse_metric(name)


def test_only_the_name_of_a_metric_is_spelled_anew():
    assert metric_name("r(rel=2)@5") == "R(rel=2)@5"
