"""The verdict of a comparison: the value that decides, and the line that is printed."""

from pathlib import Path

import pytest

from cocondenser_jax.retriever.compare.changes import Ranking
from cocondenser_jax.retriever.compare.comparison import Compared
from cocondenser_jax.retriever.compare.report import Evaluation, comparison_table, result_rows
from cocondenser_jax.retriever.compare.trial import Trial
from cocondenser_jax.retriever.compare.verdict import describe_power, judge
from tests.world import comparison_of

# What queries score by each ranking without adapting, unless a test says otherwise.
BEFORE = {"BM25": 0.3, "published": 0.4, "published + BM25": 0.5}


def compare_rankings(n_queries, **values):
    """Compares rankings that have the same value for every query, or the given ones."""
    evaluations = []
    for name, value in (BEFORE | {n.replace("_", " + "): v for n, v in values.items()}).items():
        values_Q = value if isinstance(value, list) else [value] * n_queries
        # As in a real comparison, "x + BM25" is fused, and BM25 is no model's.
        model = name.removesuffix("BM25").removesuffix(" + ")
        evaluations.append(
            ranking(name, values_Q)._replace(model=model, is_fused=name.endswith(" + BM25"))
        )
    rows = result_rows(evaluations, [*BEFORE])
    rankings = {each.name: Ranking(each.name, Path(), each.metrics, {}) for each in evaluations}
    return Compared(rows, Trial(Path("data")), rankings)


# Where all n queries differ alike, the p of a test is 2 / 2^n. Holm's method multiplies the p of
# the table's four tests, which are equal here, by four, and of the two tests for harm by two.
@pytest.mark.parametrize(
    ("n_queries", "fused", "outcome", "winner", "p"),
    [
        (8, 0.6, "helped", "adapted + BM25", 4 * 2 / 2**8),
        # By itself, this test's p is 0.031.
        (6, 0.6, "undecided", "published + BM25", 4 * 2 / 2**6),
        (7, 0.6, "undecided", "published + BM25", 4 * 2 / 2**7),
        (8, 0.5, "undecided", "published + BM25", 1.0),
        (8, 0.45, "harmed", "published + BM25", 2 * 2 / 2**8),
        (6, 0.45, "undecided", "published + BM25", 4 * 2 / 2**6),
    ],
)
def test_the_verdict_is_by_corrected_tests(n_queries, fused, outcome, winner, p):
    verdict = judge(compare_rankings(n_queries, adapted=0.41, adapted_BM25=fused))
    assert (verdict.outcome, verdict.winner) == (outcome, winner)
    assert (verdict.after, verdict.before) == ("adapted + BM25", "published + BM25")
    assert verdict.p == pytest.approx(p)
    assert verdict.test["difference"] == pytest.approx(fused - 0.5)


def test_what_the_table_shows_and_what_the_verdict_says_are_one_p():
    compared = compare_rankings(6, adapted=0.41, adapted_BM25=0.6)
    (line,) = [line for line in comparison_table(compared.rows) if line[0] == "adapted + BM25"]
    assert line[3] == "0.12"
    assert " | p 0.12 | " in judge(compared).line()


def test_a_ranking_that_loses_is_harm_although_the_best_one_gains():
    """Alone, all queries lose; fused, all gain: whoever searches by vectors alone is harmed."""
    verdict = judge(compare_rankings(8, adapted=0.3, adapted_BM25=0.6))
    assert (verdict.outcome, verdict.winner) == ("harmed", "published + BM25")
    assert (verdict.after, verdict.before) == ("adapted", "published")
    assert verdict.p == pytest.approx(2 * 2 / 2**8)
    assert verdict.line() == (
        "harmed | nDCG@10 | adapted 0.3000, published 0.4000 | -0.1000 (-0.1000 to -0.1000)"
        " | p 0.016"
    )


def test_a_small_loss_of_all_queries_is_found_beside_a_large_one_by_chance():
    by_chance = [0.5] * 7 + [-3.0]
    verdict = judge(compare_rankings(8, adapted=by_chance, adapted_BM25=0.49))
    assert (verdict.outcome, verdict.after) == ("harmed", "adapted + BM25")


def test_the_line_says_which_differences_so_many_queries_show():
    verdict = judge(compare_rankings(8, adapted=0.41, adapted_BM25=0.6))
    figures = "adapted + BM25 0.6000, published + BM25 0.5000 | +0.1000 (+0.1000 to +0.1000)"
    assert verdict.line() == f"helped | nDCG@10 | {figures} | p 0.031"
    mixed = judge(compare_rankings(8, adapted=0.41, adapted_BM25=[0.6, 0.5] * 4))
    assert mixed.line().endswith(" | 8 queries show differences of 0.062 and more")


def test_a_model_whose_name_begins_like_the_adapted_one_is_not_the_adapted_one():
    compared = compare_rankings(8, adapted=0.41, adapted_BM25=0.6)
    more = compare_rankings(8, **{"adapted-by-others": 0.9})
    named = more.rows[-1]
    verdict = judge(compared._replace(rows=[*compared.rows, named]))
    assert (verdict.after, verdict.outcome) == ("adapted + BM25", "helped")


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
