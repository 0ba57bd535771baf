"""Queries that are passages, and queries that are only numbered like passages."""

import functools

import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.data import folder, own_passages
from cocondenser_jax.retriever.data.folder import read_asked
from tests.world import write_qrels, write_records


@pytest.mark.parametrize(
    ("passage", "same"),
    [
        ("Why is the sky blue?", True),
        ("why is  the sky\nblue", True),
        ("Why is the sky blue? Because of how air scatters light.", True),  # a title
        ("physics light Why is the sky blue?", True),  # a text behind its title
        ("Asked why, is the sky blue? It is.", False),
        ("Why is the sky", False),
        ("The sky is blue. Why?", False),
        ("", False),
    ],
)
def test_a_passage_is_a_query_if_it_has_its_words(passage, same):
    assert own_passages.is_same_text("Why is the sky blue?", passage) == same


@pytest.mark.parametrize("text", ["", "?!", "天空为什么是蓝色的"])
def test_texts_without_words_or_spaces(text):
    assert own_passages.is_same_text(text, text) == (len(text) > 2)
    assert not own_passages.is_same_text(text, "words")


QUERIES = {
    "1": "red apples",
    "2": "blue skies",
    "3": "green leaves",
    "4": "grey",
    "5": "no passage",
}
PASSAGES = {"1": "fruit Red apples", "2": "sailing", "3": "green leaves", "4": "grey", "6": "grey"}


def test_own_passages_have_the_text_of_their_query_and_are_not_its_answer(caplog):
    caplog.set_level("INFO")
    qrels = {"1": {"6": 1}, "2": {"1": 1}, "3": {"3": 1}, "4": {"4": 0, "1": 1}, "5": {"6": 1}}
    found = own_passages.find_own_passages(QUERIES, PASSAGES, qrels, "data")
    assert found == {"1", "4"}
    expected = "data: 2 of 5 queries are passages with the same id, which are left out"
    assert caplog.messages == [expected]
    caplog.clear()
    numbered_alike = {"2": {"1": 1}, "5": {"6": 1}}
    assert own_passages.find_own_passages(QUERIES, PASSAGES, numbered_alike, "data") == set()
    assert not caplog.messages


def test_without_texts_they_are_those_that_are_mostly_found_first():
    first, later = {"1": 3.0, "a": 2.0}, {"a": 3.0, "2": 2.0}
    run = {"1": first, "2": later, "3": {"b": 2.0, "3": 9.0}, "4": {"a": 1.0}}
    likely = own_passages.likely_own_passages
    assert likely(run, run) == {"1", "2", "3"}
    assert likely(run, ["1", "2", "4"]) == set()
    assert likely(run, ["2", "4", "x"]) == set()
    assert likely(run, ["3"]) == {"3"}


def test_results_with_the_id_of_their_query_are_dropped():
    run = {"a": {"a": 3.0, "b": 2.0, "c": 1.0}, "b": {"c": 2.0, "b": 1.0}, "q": {"a": 1.0}, "c": {}}
    kept = {"a": {"b": 2.0, "c": 1.0}, "b": {"c": 2.0}, "q": {"a": 1.0}, "c": {}}
    assert own_passages.drop_identical_ids(run) == kept
    assert own_passages.drop_identical_ids(run, 1) == {**kept, "a": {"b": 2.0}}
    assert [*own_passages.drop_identical_ids(run)["a"]] == ["b", "c"]


def test_own_results_are_counted(caplog):
    run = {"a": {"a": 3.0, "b": 2.0}, "b": {"b": 1.0}, "q": {"a": 1.0}}
    own_passages.warn_of_own_results(run, ["a", "q", "x"])
    (message,) = caplog.messages
    assert message.startswith("1 of 3 queries have a result with their own id: ")
    assert "--ignore_identical_ids" in message
    caplog.clear()
    own_passages.warn_of_own_results(run, ["q", "x"])
    assert not caplog.records


def test_judgments_of_a_split_or_of_any_that_queries_find_themselves_are_refused(
    tmp_path, monkeypatch
):
    asked = functools.partial(read_asked, ignore_identical_ids=True)
    write_records(tmp_path / "queries.jsonl", [{"_id": name, "text": "a"} for name in "12"])
    asked(tmp_path, None)  # nothing is judged
    write_qrels(tmp_path / "qrels" / "test.tsv", {"1": {"2": 1, "1": 0}})
    write_qrels(tmp_path / "qrels" / "dev.tsv", {"1": {"2": 1}, "2": {"2": 1}})
    read = []
    read_qrels = folder.read_qrels
    monkeypatch.setattr(folder, "read_qrels", lambda path: read.append(path) or read_qrels(path))
    assert asked(tmp_path, "test").qrels == {"1": {"2": 1, "1": 0}}
    assert len(read) == 1  # may be many
    read_asked(tmp_path, "dev")
    for split in ("dev", None):
        with pytest.raises(UserError, match=r"1 queries have a relevant passage .* own id \(2\)"):
            asked(tmp_path, split)
    asked(tmp_path / "queries.jsonl", None)  # a file, of queries alone


@pytest.mark.parametrize(
    ("qrels", "asked_of"), [({}, ["a", "b"]), ({"b": {"b": 1, "a": 0}, "a": {"a": 0}}, ["a"])]
)
def test_results_are_watched_as_they_come(qrels, asked_of, caplog):
    results = [("a", {"b": 2.0, "a": 1.0}), ("b", {"b": 1.0}), ("c", {"a": 1.0}), ("d", {})]
    asked = []

    def find_own(names):
        asked.append(names)
        return {"a"}

    watched = own_passages.watch_own_results(iter(results), find_own, qrels)
    assert next(iter(watched)) == results[0]
    assert not asked
    assert list(watched) == results[1:]
    assert asked == [asked_of]
    assert "1 of 4 queries have a result with their own id" in caplog.text
