"""Measures against an implementation of a few lines, on runs with ties and missing queries."""

import numpy as np
import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.evaluation.ranking import evaluate_run

MEASURES = ("MRR@10", "Recall@5", "Recall@100", "nDCG@10", "Success@3")


def by_hand(name, grades, ranking):
    measure, cutoff = name.split("@")
    top = ranking[: int(cutoff)]
    relevant = {passage for passage, grade in grades.items() if grade > 0}
    if measure == "MRR":
        return next((1 / i for i, passage in enumerate(top, 1) if passage in relevant), 0.0)
    if measure == "Recall":
        return len(relevant.intersection(top)) / len(relevant) if relevant else 0.0
    if measure == "Success":
        return float(bool(relevant.intersection(top)))
    ideal = sorted((grade for grade in grades.values() if grade > 0), reverse=True)[: int(cutoff)]
    gain = sum(max(grades.get(p, 0), 0) / np.log2(i + 1) for i, p in enumerate(top, 1))
    best = sum(grade / np.log2(i + 1) for i, grade in enumerate(ideal, 1))
    return gain / best if best else 0.0


@pytest.mark.parametrize("seed", range(5))
def test_random_runs_with_ties_and_missing_queries(seed):
    rng = np.random.default_rng(seed)
    passages = [f"d{i}" for i in range(60)]
    qrels, run, rankings = {}, {}, {}
    for i in range(30):
        judged = rng.choice(passages, rng.integers(1, 8), replace=False)
        qrels[f"q{i}"] = {str(p): int(rng.integers(0, 4)) for p in judged}
        found = [str(p) for p in rng.permutation(passages)[: rng.integers(0, 60)]]
        if i % 5:
            # Few distinct scores: most are tied, and the order of insertion decides.
            run[f"q{i}"] = {p: float(rng.integers(0, 4)) for p in found}
            rankings[f"q{i}"] = sorted(found, key=lambda p: -run[f"q{i}"][p])
    run["not judged"] = {"d1": 1.0}

    figures = evaluate_run(qrels, run, MEASURES)

    for name in MEASURES:
        values = [by_hand(name, qrels[q], rankings.get(q, [])) for q in qrels]
        assert figures["mean"][name] == pytest.approx(np.mean(values), abs=1e-12)
        assert [figures["per_query"][q][name] for q in qrels] == pytest.approx(values, abs=1e-12)


def test_a_query_without_result_counts_zero(caplog):
    qrels = {"q1": {"a": 1}, "q2": {"b": 1}, "q3": {"c": 1}, "q4": {"d": 1}}
    figures = evaluate_run(qrels, {"q1": {"a": 3.0}, "q2": {}}, ["MRR@10"])
    assert figures["mean"] == {"MRR@10": 0.25}
    assert "3 of 4 judged queries have no result" in caplog.text
    assert evaluate_run(qrels, {}, ["MRR@10"])["mean"] == {"MRR@10": 0.0}


def test_what_cannot_be_evaluated():
    with pytest.raises(UserError, match="no judged queries"):
        evaluate_run({}, {"q": {"a": 1.0}})
    for name in ("MRT@10", "MRR@ten", "10", ""):
        with pytest.raises(UserError, match=f"unknown measure '{name}'"):
            evaluate_run({"q": {"a": 1}}, {}, [name])
