"""Fusion against its definitions, written out passage by passage."""

import math

import numpy as np
import pytest

from cocondenser_jax.cli import main
from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.data.trec import ranked, read_run, write_run
from cocondenser_jax.retriever.search.fuse import check_runs, fuse_runs
from tests.lines import refusal, whole


def some_run(seed, n_queries=4):
    rng = np.random.default_rng(seed)
    return {
        f"q{q}": {
            f"d{d}": float(rng.normal(7 * seed, 3)) for d in rng.choice(40, 25, replace=False)
        }
        for q in range(seed, seed + n_queries)  # not the same queries in every run
    }


RUNS = [some_run(seed) for seed in range(3)]


def reciprocal_rank(run, query, passage):
    scores = run.get(query, {})
    return 1 / (60 + 1 + sum(s > scores[passage] for s in scores.values()))


def share_of_range(run, query, passage):
    scores = run[query]
    return (scores[passage] - min(scores.values())) / (max(scores.values()) - min(scores.values()))


@pytest.mark.parametrize(
    ("method", "value"), [("rrf", reciprocal_rank), ("min_max", share_of_range)]
)
@pytest.mark.parametrize("weights", [None, [0.2, 5.0, 1.0]])
def test_a_passage_has_the_weighted_sum_of_its_values(method, value, weights):
    fused = fuse_runs(RUNS, method, weights, depth=1000)
    assert set(fused) == {f"q{i}" for i in range(6)}
    for query, found in fused.items():
        passages = {passage for run in RUNS for passage in run.get(query, {})}
        expected = {
            passage: sum(
                weight * value(run, query, passage)
                for run, weight in zip(RUNS, weights or [1, 1, 1], strict=True)
                if passage in run.get(query, {})
            )
            for passage in passages
        }
        assert found == pytest.approx(expected, rel=1e-12)
        assert list(found) == sorted(found, key=found.get, reverse=True)
        top = fuse_runs(RUNS, method, weights, depth=7)[query]
        assert list(top.items()) == list(found.items())[:7]


def test_equal_sums_are_in_the_order_of_the_runs_and_written_apart(tmp_path):
    runs = [{"q": {"b": 2.0, "a": 1.0}}, {"q": {"a": 9.0, "b": 8.0, "c": 7.0}}]
    fused = fuse_runs(runs, "rrf")
    assert fused["q"]["a"] == fused["q"]["b"]
    write_run(tmp_path / "run", fused)
    written = read_run(tmp_path / "run")["q"]
    assert list(written) == ["b", "a", "c"]
    assert np.all(np.diff(np.float32(list(written.values()))) < 0)


def test_sums_that_single_precision_cannot_tell_apart_keep_their_order():
    low, high = 1.0, 1.0 + 2**-40
    runs = [{"q": {"low": low, "high": high, "x": 3.0, "y": -1.0}}, {"q": {"y": 1.0}}]
    assert np.float32(low) == np.float32(high)
    found = fuse_runs(runs, "min_max")["q"]
    assert [p for p, _ in ranked(found) if p in ("low", "high")] == ["high", "low"]


def test_scores_without_a_range_count_in_full():
    runs = [{"q": {"a": 5.0, "b": 5.0}}, {"q": {"b": 2.0}}]
    assert fuse_runs(runs, "min_max") == {"q": {"b": 2.0, "a": 1.0}}


@pytest.mark.parametrize(("n", "least"), [(1000, 0.9899), (1500, 0.9899), (100, 0.98999)])
def test_scores_that_differ_little_have_the_values_of_the_formula(tmp_path, n, least):
    scores = {f"d{i}": float(s) for i, s in enumerate(np.linspace(0.99, least, n, dtype="f4"))}
    write_run(tmp_path / "run", {"q": scores})
    for run in ({"q": scores}, read_run(tmp_path / "run")):
        found = fuse_runs([run, {"q": {}}], "min_max", depth=n)["q"]
        expected = {passage: share_of_range(run, "q", passage) for passage in scores}
        assert found == expected
        assert found[f"d{n - 1}"] == 0
        assert found[f"d{n // 2}"] == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("score", [5.0, -7.3, 1e-6])
def test_scores_that_were_equal_before_they_were_written_count_in_full(tmp_path, score):
    write_run(tmp_path / "run", {"q": dict.fromkeys("abcdefgh", score)})
    written = read_run(tmp_path / "run")
    assert len(set(written["q"].values())) == 8
    assert set(fuse_runs([written, {"q": {}}], "min_max")["q"].values()) == {1.0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"runs": RUNS[:1]},
            whole(
                "runs=1, weights=[1.0], depth=100: expected two runs or more, a weight "
                "above 0 for each, and a depth of at least 1"
            ),
        ),
        (
            {"weights": [1, 2]},
            whole(
                "runs=3, weights=[1, 2], depth=100: expected two runs or more, a weight "
                "above 0 for each, and a depth of at least 1"
            ),
        ),
        (
            {"weights": [1, 0, 2]},
            whole(
                "runs=3, weights=[1, 0, 2], depth=100: expected two runs or more, a "
                "weight above 0 for each, and a depth of at least 1"
            ),
        ),
        (
            {"weights": [1, math.nan, 2]},
            whole(
                "runs=3, weights=[1, nan, 2], depth=100: expected two runs or more, a "
                "weight above 0 for each, and a depth of at least 1"
            ),
        ),
        (
            {"weights": [1, math.inf, 2]},
            whole(
                "runs=3, weights=[1, inf, 2], depth=100: expected two runs or more, a "
                "weight above 0 for each, and a depth of at least 1"
            ),
        ),
        (
            {"depth": 0},
            whole(
                "runs=3, weights=[1.0, 1.0, 1.0], depth=0: expected two runs or more, a "
                "weight above 0 for each, and a depth of at least 1"
            ),
        ),
    ],
)
def test_what_cannot_be_fused_is_named(arguments, message):
    with pytest.raises(UserError, match=message):
        fuse_runs(**{"runs": RUNS, **arguments})


SIDES = {"a": {"q1": {"d": 1.0}, "q2": {"d": 1.0}}, "b": {"q2": {"d": 1.0}, "q3": {"d": 2.0}}}


def test_queries_that_a_run_lacks_are_counted(caplog):
    check_runs(SIDES)
    assert [record.getMessage() for record in caplog.records] == [
        "a has no result for 1 of 3 queries",
        "b has no result for 1 of 3 queries",
    ]
    caplog.clear()
    check_runs({"a": SIDES["a"], "b": SIDES["a"]})
    assert not caplog.records


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({}, whole("b has no results: there is nothing to fuse")),
        ({"q1": {}, "q2": {}}, whole("b has no results: there is nothing to fuse")),
        ({"q3": {"d": 1.0}}, whole("no query is in two of the runs a, b: nothing to fuse")),
    ],
)
def test_a_run_without_results_is_not_fused(other, message):
    with pytest.raises(UserError, match=message):
        check_runs({"a": SIDES["a"], "b": other})


@pytest.mark.parametrize(("other", "status"), [("", 2), ("q2 Q0 e 1 1.0 t\n", 0)])
def test_the_command_names_the_empty_run(tmp_path, capsys, other, status):
    write_run(tmp_path / "a.trec", SIDES["a"])
    (tmp_path / "b.trec").write_text(other)
    command = ["fuse", f"--run_out={tmp_path / 'out.trec'}"]
    assert main([*command, *(f"--run={tmp_path / name}.trec" for name in "ab")]) == status
    assert (tmp_path / "out.trec").exists() == (status == 0)
    if status:
        assert refusal(capsys) == f"{tmp_path}/b.trec has no results: there is nothing to fuse"
