"""What `adapt` says of a comparison, with judgments and without."""

import pytest

from cocondenser_jax.analysis.report import ResultRow
from cocondenser_jax.evaluation.ranking import evaluate_run
from cocondenser_jax.quickstart import adapt as adapting
from cocondenser_jax.quickstart.adapt import judge
from cocondenser_jax.retrieval.fuse import fuse_runs


def row(name, value, p=1.0):
    return ResultRow(name, {"nDCG@10": value}, {"nDCG@10": p}, 1.0)


BEFORE = [row("BM25", 0.3), row("published", 0.4), row("published + BM25", 0.5)]


@pytest.mark.parametrize(
    ("value", "p", "shown", "word", "search"),
    [
        (0.6, 0.049, "0.049", "helped", "adapted + BM25"),
        (0.6, 0.05, "0.05", "no difference", "published + BM25"),
        (0.45, 0.0001, "≤ 0.0001", "harmed", "published + BM25"),
    ],
)
def test_the_verdict_is_about_the_best_before_and_the_best_after(value, p, shown, word, search):
    rows = [*BEFORE, row("adapted", 0.1, 0.0), row("adapted + BM25", value, p)]
    verdict, after = judge(rows, "published + BM25")
    compared = f"adapted + BM25 {value:.4f}, published + BM25 0.5000"
    assert verdict == f"{word} | nDCG@10 | {compared} | {value - 0.5:+.4f} | p {shown}"
    assert after == search


def test_a_model_that_is_left_as_it_is_makes_no_difference():
    verdict, after = judge(BEFORE, "published + BM25")
    assert verdict == "no difference | nDCG@10 | no share of the change agrees"
    assert after == "published + BM25"


@pytest.mark.parametrize(
    ("places", "word"), [((1, 0), "helped"), ((0, 1), "harmed"), ((1, 1), "no difference")]
)
def test_without_judgments_the_verdict_is_on_the_spans_that_queries_are_from(places, word):
    """A model has the own span at a place of its ranking, BM25 ranks others only."""
    queries = [f"{i}" for i in range(20)]
    others = {f"other {i}": 1.0 - i / 10 for i in range(3)}

    def run(place):
        return {query: {**others, query: (0.95, 2.0)[place == 0]} for query in queries}

    lexical = {query: dict(others) for query in queries}
    verdict = adapting._judge_unlabeled(lexical, *map(run, places))
    qrels = {query: {query: 1} for query in queries}
    means = [
        evaluate_run(qrels, fuse_runs([lexical, run(place)], "min_max"), ["nDCG@10"])["mean"]
        for place in places
    ]
    published, adapted = (mean["nDCG@10"] for mean in means)
    compared = f"adapted + BM25 {adapted:.4f}, published + BM25 {published:.4f}"
    assert verdict.startswith(f"{word} | nDCG@10 | {compared} | {adapted - published:+.4f} | p ")
