"""Rankings and their tests, made by hand."""

from pathlib import Path

import pytest

from cocondenser_jax.retriever.compare.rankings import (
    NO_VECTORS,
    Ranking,
    describe_power,
    first_of,
    measure,
    vectors_cell,
    with_tests,
)
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


def test_of_equal_rankings_the_first_is_the_one_to_beat():
    rankings = [ranking("one", [0.4] * 8), ranking("two", [0.4] * 8), ranking("low", [0.1] * 8)]
    for baselines, best in (((), "one"), (("two", "low"), "two"), (("low",), "low")):
        assert [row.name for row in with_tests(rankings, baselines) if not row.tests] == [best]


def test_what_is_recorded_of_a_ranking():
    tests = {"m": comparison_of(0.5)}
    row = Ranking("a + BM25", Path("a.trec"), "a", True, (7, 32), 1.5, {"q": ["p"]})
    row = row._replace(metrics={"mean": {"m": 0.5, "n": 0.25}, "per_query": {}}, tests=tests)
    assert [*row.record().items()] == [  # in this order
        ("name", "a + BM25"),
        ("model", "a"),
        ("is_fused", True),
        ("tests", tests),
        ("seconds", 1.5),
        ("vectors", (7, 32)),
        ("metrics", {"m": 0.5, "n": 0.25}),
    ]
    assert (row.metric, row.score) == ("m", 0.5)


def test_the_first_ten_of_each_query_are_kept():
    names = [f"p{i}" for i in range(12)]
    run = {"q": {name: -float(i) for i, name in enumerate(names)}, "p1": {"p1": 2.0, "p2": 1.0}}
    queries = ["q", "p1", "none"]
    assert first_of(run, queries) == {"q": names[:10], "p1": ["p1", "p2"], "none": []}
    alone = first_of(run, queries, ignore_identical_ids=True)
    assert alone == {"q": names[:10], "p1": ["p2"], "none": []}
    judged = {"q": {"p0": 1}, "p1": {"p2": 1}}
    for ignored, first in (False, ["p1", "p2"]), (True, ["p2"]):
        found = measure(ranking("a", [0]), run, judged, ["MRR@10"], ignore_identical_ids=ignored)
        assert found.first["p1"] == first
        assert found.metrics["per_query"]["p1"]["MRR@10"] == 1 / len(first)


def test_a_cell_of_vectors():
    assert vectors_cell((1_234_567, 1024)) == "1,234,567 x 1,024"
    assert vectors_cell(NO_VECTORS) == ""


def test_a_line_says_what_so_many_queries_show():
    test = comparison_of(0.5, n_queries=1035)
    assert describe_power(test) == "1,035 queries show differences of 0.14 and more"
    few = comparison_of(1.0, n_queries=5) | {"detectable": None}
    assert describe_power(few) == "5 queries show no difference, however large"
