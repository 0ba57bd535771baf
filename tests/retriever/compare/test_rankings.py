"""Rankings and their tests, made by hand."""

from pathlib import Path

import pytest

from cocondenser_jax.retriever.compare.rankings import Ranking, describe_power, with_tests
from tests.world import comparison_of


def ranking(name, values):
    per_query = {f"q{i}": {"nDCG@10": v, "MRR@10": 1 - v} for i, v in enumerate(values)}
    mean = sum(values) / len(values)
    metrics = {"mean": {"nDCG@10": mean, "MRR@10": 1 - mean}, "per_query": per_query}
    return Ranking(name, Path(name), metrics=metrics)


def test_all_are_tested_against_the_best_of_the_baselines():
    low, middle, high = [0.1] * 8, [0.4] * 8, [0.9] * 8
    rankings = [ranking("low", low), ranking("middle", middle), ranking("high", high)]
    rows = {row.name: row for row in with_tests(rankings, ["low", "middle"])}
    assert rows["middle"].tests == {}
    # All eight queries differ alike: two of the 256 assignments are as extreme.
    for name, difference in (("low", -0.3), ("high", 0.5)):
        for metric, sign in (("nDCG@10", 1), ("MRR@10", -1)):
            test = rows[name].tests[metric]
            assert test["randomization_p"] == 2 / 256
            assert test["difference"] == pytest.approx(sign * difference)
            assert test["interval"] == pytest.approx([sign * difference] * 2)
    assert [row.score for row in rows.values()] == pytest.approx([0.1, 0.4, 0.9])


def test_a_line_says_what_so_many_queries_show():
    test = comparison_of(0.5, n_queries=1035)
    assert describe_power(test) == "1,035 queries show differences of 0.14 and more"
    few = comparison_of(1.0, n_queries=5) | {"detectable": None}
    assert describe_power(few) == "5 queries show no difference, however large"
