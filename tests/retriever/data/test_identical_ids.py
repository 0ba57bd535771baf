"""Queries that are passages, and queries that are only numbered like passages."""

import functools

import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.data import folder, identical_ids
from cocondenser_jax.retriever.data.folder import read_asked
from tests.lines import whole
from tests.world import write_qrels, write_records


def test_results_with_the_id_of_their_query_are_dropped():
    run = {"a": {"a": 3.0, "b": 2.0, "c": 1.0}, "b": {"c": 2.0, "b": 1.0}, "q": {"a": 1.0}, "c": {}}
    kept = {"a": {"b": 2.0, "c": 1.0}, "b": {"c": 2.0}, "q": {"a": 1.0}, "c": {}}
    assert identical_ids.drop_identical_ids(run) == kept
    assert identical_ids.without_identical_id("a", run["a"], 1) == {"b": 2.0}
    assert [*identical_ids.drop_identical_ids(run)["a"]] == ["b", "c"]


@pytest.mark.parametrize("qrels", [{}, {"a": {"a": 0}}, {"q": {"a": 1}}])
def test_identical_ids_are_counted(qrels, caplog):
    run = {"a": {"a": 3.0, "b": 2.0}, "b": {"c": 1.0}, "q": {"a": 1.0}}
    found = {
        "run": identical_ids.finds_itself(run, run),
        "one": identical_ids.finds_itself(run, ["b"]),
    }
    identical_ids.warn_of_identical_ids(found, qrels)
    (message,) = caplog.messages
    assert message.startswith("1 of 3 queries of run have a result with their own id: ")
    assert "--ignore_identical_ids" in message
    caplog.clear()
    identical_ids.warn_of_identical_ids(found, {"a": {"a": 1}})
    assert not caplog.records


def test_several_rankings_are_counted_in_one_line(caplog):
    runs = {"x": {"a": {"a": 1.0}, "b": {"c": 1.0}}, "y": {"b": {}}, "z": {"c": {"c": 1.0}}}
    found = {name: identical_ids.finds_itself(run, "abc") for name, run in runs.items()}
    identical_ids.warn_of_identical_ids(found, {})
    (message,) = caplog.messages
    assert message.startswith("1 of 3 queries of x, 1 of 3 queries of z have a result with")


def test_judgments_of_a_split_or_of_any_that_queries_find_themselves_are_refused(
    tmp_path, monkeypatch
):
    asked = functools.partial(read_asked, ignore_identical_ids=True)
    write_records(tmp_path / "queries.jsonl", [{"_id": name, "text": "a"} for name in "12"])
    asked(tmp_path, None)  # nothing is judged
    write_qrels(tmp_path / "qrels" / "test.tsv", {"1": {"2": 1, "1": 0}})
    write_qrels(tmp_path / "qrels" / "dev.tsv", {"1": {"2": 1}, "2": {"2": 1}})
    write_qrels(tmp_path / "qrels" / "a.tsv", {"1": {"2": 1}})  # it is read before that one
    read = []
    read_qrels = folder.read_qrels
    monkeypatch.setattr(folder, "read_qrels", lambda path: read.append(path) or read_qrels(path))
    assert asked(tmp_path, "test").qrels == {"1": {"2": 1, "1": 0}}
    assert len(read) == 1  # may be many
    read_asked(tmp_path, "dev")
    for split in ("dev", None):
        with pytest.raises(
            UserError,
            match=whole(
                "ignore_identical_ids: 1 queries have a relevant passage with their own id "
                "(2), so their ids say nothing about each other"
            ),
        ):
            asked(tmp_path, split)
    asked(tmp_path / "queries.jsonl", None)  # a file, of queries alone


def test_results_are_watched_as_they_come():
    results = [("a", {"b": 2.0, "a": 1.0}), ("b", {"b": 1.0}), ("c", {"a": 1.0}), ("d", {})]
    found: dict[str, bool] = {}
    watched = identical_ids.watch_identical_ids(iter(results), found)
    assert next(iter(watched)) == results[0]
    assert found == {"a": True}
    assert list(watched) == results[1:]
    assert found == {"a": True, "b": True, "c": False, "d": False}
