"""The verdict of a comparison: the value that decides, and the line that is printed."""

import pytest

from cocondenser_jax.retriever.compare.report import Evaluation, ResultRow, result_rows
from cocondenser_jax.retriever.compare.verdict import Verdict, decide, describe_power, judge
from tests.world import comparison_of


def against(value, p):
    """Returns the comparison of a value with 0.5."""
    return comparison_of(p, value - 0.5, value)


def row(name, value, p=None):
    """Makes a row of a model, or of BM25; without a p it is the one that all are tested against."""
    model = name.removesuffix(" + BM25").removesuffix("BM25")
    return ResultRow(
        name=name,
        model=model,
        is_fused=name.endswith(" + BM25"),
        metrics={"nDCG@10": value, "MRR@10": 1 - value},
        tests={} if p is None else {"nDCG@10": against(value, p), "MRR@10": against(0.5, 0.5)},
        seconds=1.0,
    )


BEFORE = [row("BM25", 0.3, 0.01), row("published", 0.4, 0.01), row("published + BM25", 0.5)]


@pytest.mark.parametrize(
    ("value", "p", "shown", "outcome", "winner"),
    [
        (0.6, 0.049, "0.049", "helped", "adapted + BM25"),
        (0.6, 0.05, "0.05", "no difference", "published + BM25"),
        (0.45, 0.0001, "≤ 0.0001", "harmed", "published + BM25"),
    ],
)
def test_the_verdict_is_about_the_best_before_and_the_best_after(value, p, shown, outcome, winner):
    verdict = judge([*BEFORE, row("adapted", 0.1, 0.0), row("adapted + BM25", value, p)])
    assert verdict == Verdict(
        outcome=outcome,
        metric="nDCG@10",
        best="adapted + BM25",
        before="published + BM25",
        test=against(value, p),
    )
    assert verdict.winner == winner
    compared = f"adapted + BM25 {value:.4f}, published + BM25 0.5000"
    change = value - 0.5
    difference = f"{change:+.4f} ({change - 0.1:+.4f} to {change + 0.1:+.4f})"
    power = " | 100 queries show differences of 0.14 and more"
    assert verdict.line() == (
        f"{outcome} | nDCG@10 | {compared} | {difference} | p {shown}"
        f"{power if outcome == 'no difference' else ''}"
    )


def test_a_model_whose_name_begins_like_the_adapted_one_is_not_the_adapted_one():
    verdict = judge([*BEFORE, row("adapted-by-others", 0.9, 0.0), row("adapted", 0.6, 0.0)])
    assert (verdict.best, verdict.outcome) == ("adapted", "helped")


def test_vectors_that_are_cut_decide_nothing():
    part = row("adapted", 0.9, 0.0)._replace(name="adapted, 8 of 32", part="8 of 32")
    verdict = judge([*BEFORE, part, row("adapted", 0.6, 0.0)])
    assert (verdict.best, verdict.test["mean"]) == ("adapted", 0.6)


def test_a_model_that_is_left_as_it_is_makes_no_difference():
    verdict = judge(BEFORE)
    assert (verdict.outcome, verdict.test) == ("no difference", None)
    assert verdict.line() == "no difference | nDCG@10 | none of the change is kept"
    assert verdict.winner == "published + BM25"


@pytest.mark.parametrize(
    ("difference", "p", "outcome"),
    [
        (0.1, 0.049, "helped"),
        (-0.1, 0.049, "harmed"),
        (0.1, 0.05, "no difference"),
        (-0.1, 0.05, "no difference"),
        (0.0, 1.0, "no difference"),
    ],
)
def test_a_difference_counts_below_the_level(difference, p, outcome):
    assert decide(difference, p) == outcome


def ranking(name, values):
    per_query = {f"q{i}": {"nDCG@10": v, "MRR@10": 1 - v} for i, v in enumerate(values)}
    mean = sum(values) / len(values)
    metrics = {"mean": {"nDCG@10": mean, "MRR@10": 1 - mean}, "per_query": per_query}
    return Evaluation(name=name, model=name, is_fused=False, metrics=metrics, seconds=2.0)


def test_all_are_tested_against_the_best_of_the_baselines():
    low, middle, high = [0.1] * 8, [0.4] * 8, [0.9] * 8
    rankings = [ranking("low", low), ranking("middle", middle), ranking("high", high)]
    rows = {row.name: row for row in result_rows(rankings, ["low", "middle"])}
    assert rows["middle"].tests == {}
    # All eight queries differ alike: two of the 256 assignments are as extreme.
    for name, difference in (("low", -0.3), ("high", 0.5)):
        for metric, sign in (("nDCG@10", 1), ("MRR@10", -1)):
            test = rows[name].tests[metric]
            assert test["randomization_p"] == 2 / 256
            assert test["difference"] == pytest.approx(sign * difference)
            assert test["interval"] == pytest.approx([sign * difference] * 2)
    assert [row.metrics["nDCG@10"] for row in rows.values()] == pytest.approx([0.1, 0.4, 0.9])


def test_a_line_says_what_so_many_queries_show():
    test = comparison_of(0.5, n_queries=1035)
    assert describe_power(test) == "1,035 queries show differences of 0.14 and more"
    few = comparison_of(1.0, n_queries=5) | {"detectable": None}
    assert describe_power(few) == "5 queries show no difference, however large"
