"""Passages without ids have numbers, unless something shows that they have others."""

import pyarrow
import pyarrow.parquet
import pytest

from cocondenser_jax.corpus.sources import read_documents
from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.data.folder import (
    read_corpus,
    read_named,
    read_split,
    survey_passages,
)
from cocondenser_jax.retriever.data.layouts import Passage
from tests.lines import whole
from tests.world import COMPRESSIONS, write_qrels, write_records


def as_documents(passages):
    """Returns what pre-training reads of the same passages."""
    return [(p.id, f"{p.title}\n{p.text}".strip()) for p in passages]


@pytest.mark.parametrize("suffix", COMPRESSIONS)
@pytest.mark.parametrize(
    ("name", "content", "passages"),
    [
        ("a.jsonl", '{"text": "one"}\n\n{"text": "2", "title": "T"}\n', ["1||one", "3|T|2"]),
        ("a.txt", "one\ntwo\n", ["1||one", "2||two"]),
        ("a.txt", "one\nof two\n\n\nthree\n", ["1||one\nof two", "5||three"]),
        ("a.tsv", "text\tid\none\td1\n", ["d1||one"]),
    ],
)
def test_files_are_read_as_for_pretraining(tmp_path, suffix, name, content, passages):
    path = tmp_path / f"{name}{suffix}"
    path.write_bytes(COMPRESSIONS[suffix](content.encode()))
    expected = [Passage(*passage.split("|")) for passage in passages]
    for source in (path, str(path), tmp_path):
        assert list(read_corpus(source)) == expected
    assert [document[:2] for document in read_documents(str(path))] == as_documents(expected)


def test_a_folder_of_files_has_their_names_before_the_numbers(tmp_path, caplog):
    caplog.set_level("INFO")
    (tmp_path / "a b%.txt").write_text("one\n")
    write_records(tmp_path / "c.jsonl", [{"text": "two"}])
    rows = {"title": ["T"], "text": ["three"]}
    pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "d.parquet")
    passages = list(read_corpus(f"{tmp_path}/*"))
    assert passages == [
        # A run's ids have no white space.
        Passage("a%20b%25.txt:1", "", "one"),
        Passage("c.jsonl:1", "", "two"),
        Passage("d.parquet:1", "T", "three"),
    ]
    (said,) = (each for each in caplog.records if "numbered by line or row" in each.message)
    assert said.levelname == "INFO"
    caplog.clear()
    write_records(tmp_path / "corpus.jsonl", [{"_id": "d1", "text": "of a data folder"}])
    assert list(read_corpus(tmp_path)) == [Passage("d1", "", "of a data folder")]
    assert "numbered" not in caplog.text


def test_a_dataset_is_read_by_its_name(tmp_path):
    (tmp_path / "train.csv").write_text("id,title,text,url\n7,,a,u\n8,T,b,v\n")
    expected = [Passage("7", "", "a"), Passage("8", "T", "b")]
    assert list(read_corpus(f"hf:{tmp_path}")) == expected
    found = list(read_corpus("pydocs:ml_collections"))
    assert found == [
        Passage(name, "", text) for name, text, _ in read_documents("pydocs:ml_collections")
    ]


def test_a_document_that_is_cut_is_one_passage(tmp_path):
    path = write_records(tmp_path / "a.jsonl", [{"spans": ["one", "two"], "id": 1}])
    assert list(read_corpus(path)) == [Passage("1", "", "one\ntwo")]


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (
            [{"_id": "a"}, {}],
            ":2 has no `_id`, but others have one: expected one in each or in none",
        ),
        (
            [{}, {}, {"id": "a"}],
            ":3 has an id, but others have none: expected one in each or in none",
        ),
        (
            [{"_id": None}, {"_id": "b"}],
            ":2 has an id, but others have none: expected one in each or in none",
        ),
        ([{"doc_id": "a"}], ":1 has no `_id`, but `doc_id`: rename that to `_id`"),
        ([{"pid": 7}], ":1 has no `_id`, but `pid`: rename that to `_id`"),
        ([{"ID": 7}], ":1 has no `_id`, but `ID`: rename that to `_id`"),
        ([{"_id": "a"}, {"_id": "a"}], ":2: the id 'a' occurs twice"),
    ],
)
def test_ids_are_those_of_all_passages_or_of_none(tmp_path, records, message):
    path = write_records(tmp_path / "a.jsonl", [{"text": "x"} | each for each in records])
    with pytest.raises(UserError, match=whole(f"TMP/a.jsonl{message}")):
        list(read_corpus(path))
    if "twice" not in message:
        message = message.replace(f":{message[1]}", f", record {message[1]}")
        columns = {name: [each.get(name) for each in records] for name in {**records[0], "text": 0}}
        columns["text"] = ["x"] * len(records)
        if message.count("has an id") and "_id" not in columns:
            columns["id"] = [None, None, "a"]
        pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "b.parquet")
        with pytest.raises(UserError, match=whole(f"TMP/b.parquet{message}")):
            list(read_corpus(tmp_path / "b.parquet"))


def test_judged_passages_must_have_ids(tmp_path):
    """Judgments name passages by ids, which numbers only seem to be."""
    path = write_records(tmp_path / "corpus.jsonl", [{"text": "one"}, {"text": "two"}])
    write_records(tmp_path / "queries.jsonl", [{"_id": "q", "text": "who"}])
    assert [passage.id for passage in read_corpus(tmp_path)] == ["1", "2"]
    write_qrels(tmp_path / "qrels" / "test.tsv", {"q": {"2": 1}})
    assert read_split(tmp_path, "test")[1] == {"q": {"2": 1}}
    for source in (tmp_path, path):
        with pytest.raises(
            UserError,
            match=whole("TMP/corpus.jsonl:1 has no `_id`: judgments name passages by their ids"),
        ):
            list(read_corpus(source))


def test_judgments_elsewhere_need_the_ids_of_passages_too(tmp_path):
    path = write_records(tmp_path / "a.jsonl", [{"text": "one"}, {"text": "two"}])
    named = (tmp_path / "run.trec", {"q": ["2"]})
    two = Passage("2", "", "two")
    assert read_named(path, named) == {"2": two}
    assert survey_passages(path).n_passages == 2
    for read in (
        lambda: list(read_corpus(path, judged=True)),
        lambda: read_named(path, named, judged=True),
        lambda: survey_passages(path, {"2"}),
    ):
        with pytest.raises(
            UserError,
            match=whole("TMP/a.jsonl:1 has no `_id`: judgments name passages by their ids"),
        ):
            read()
    write_records(path, [{"_id": "2", "text": "two"}])
    assert list(read_corpus(path, judged=True)) == [two]
    assert read_named(path, named, judged=True) == {"2": two}
    assert survey_passages(path, {"2"}).n_wanted == 1


def test_queries_and_judgments_are_no_passages(tmp_path):
    said = whole(
        "TMP has no passages: expected corpus.jsonl or corpus.tsv or collection.tsv or"
        " psgs_w100.tsv or msmarco-docs.tsv (plain, .gz, .xz or .zst)"
    )
    write_qrels(tmp_path / "qrels.test.tsv", {"q": {"2": 1}})
    with pytest.raises(UserError, match=said):
        read_corpus(tmp_path)
    (tmp_path / "qrels.test.tsv").rename(tmp_path / "queries.test.tsv")
    (tmp_path / "docs.txt").write_text("one\n")
    with pytest.raises(UserError, match=said):
        read_corpus(tmp_path)


def test_a_pattern_is_obeyed_in_a_data_folder_too(tmp_path):
    write_records(tmp_path / "corpus.jsonl", [{"_id": "d1", "text": "of the data folder"}])
    (tmp_path / "more.txt").write_text("one\n")
    assert list(read_corpus(f"{tmp_path}/*.txt")) == [Passage("1", "", "one")]
    assert list(read_corpus(tmp_path)) == [Passage("d1", "", "of the data folder")]


def test_what_a_library_gives_as_bytes_is_text(tmp_path):
    """As tfds gives every text, and Parquet a column of bytes."""
    columns = {"_id": [b"d1", b"d2"], "title": [b"T", b""], "text": ["é".encode(), b"two"]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    expected = [Passage("d1", "T", "é"), Passage("d2", "", "two")]
    assert list(read_corpus(tmp_path / "a.parquet")) == expected


def test_a_folder_of_texts_inside_a_data_folder_is_not_judged(tmp_path):
    write_qrels(tmp_path / "qrels" / "test.tsv", {"q": {"2": 1}})
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("one\ntwo\n")
    expected = [Passage("1", "", "one"), Passage("2", "", "two")]
    assert list(read_corpus(tmp_path / "texts")) == expected
