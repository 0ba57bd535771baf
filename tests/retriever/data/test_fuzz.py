"""Whatever a file holds, it is read or refused with one clear line; and nothing in it is run."""

import json
import tracemalloc

import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.data.layouts import read_passages, read_queries
from cocondenser_jax.retriever.data.trec import read_qrels, read_run, write_run
from tests.mutations import fuzz_content, fuzz_record, jsonl


def _passages(path):
    for passage in read_passages(path):
        " ".join(passage).encode()


def _queries(path):
    for pair in read_queries(path).items():
        " ".join(pair).encode()


def _run(path):
    write_run(path.with_suffix(".again"), read_run(path))


READERS = {
    "corpus.jsonl": (jsonl({"_id": "d1", "title": "T", "text": "x"}), _passages),
    "collection.tsv": (b"0\tone two\n1\tthree\n", _passages),
    "psgs.tsv": (b'id\ttext\ttitle\n1\t"one ""two"""\tT\n', _passages),
    "msmarco-docs.tsv": (b"D1\thttp://x\tT\tone two\nD2\t\t\t\n", _passages),
    "queries.jsonl": (jsonl({"_id": "q1", "text": "x"}), _queries),
    "queries.dev.tsv": (b"1\twho\n2\twhen\n", _queries),
    "run.trec": (b"q1 Q0 d1 1 2.5 t\nq1 Q0 d2 2 1.5 t\n", _run),
}


@pytest.mark.parametrize("name", READERS)
def test_a_broken_file_is_read_or_refused(name, tmp_path):
    fuzz_content(tmp_path / name, *READERS[name])


@pytest.mark.parametrize(
    ("name", "record", "read"),
    [
        ("corpus.jsonl", {"_id": "d1", "title": "T", "text": "x"}, _passages),
        ("queries.jsonl", {"_id": "q1", "text": "x"}, _queries),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_json_of_wrong_types_is_read_or_refused(name, record, read, tmp_path):
    fuzz_record(tmp_path / name, record, read)


def test_lone_surrogates_of_passages_and_queries_are_replaced(tmp_path):
    record = {"_id": "d\ud800", "title": "\udfff", "text": "a \ud800"}
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    assert list(read_passages(tmp_path / "a.jsonl")) == [("d?", "?", "a ?")]
    assert read_queries(tmp_path / "a.jsonl") == {"d?": "a ?"}


@pytest.mark.parametrize("unit", [b"a ", b"\t", b"[],"])
@pytest.mark.parametrize("read", [read_run, read_qrels, read_queries])
def test_one_long_line_costs_little_memory(unit, read, tmp_path):
    size = 50_000_001
    path = tmp_path / "long.tsv"
    path.write_bytes((unit * size)[:size])
    tracemalloc.start()
    try:
        with pytest.raises(UserError):
            read(path)
        assert tracemalloc.get_traced_memory()[1] < 5 * size
    finally:
        tracemalloc.stop()
