"""Characters that UTF-8 has not, and lines of 50 MB."""

import json
import tracemalloc

import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.data.layouts import read_passages, read_query_file
from cocondenser_jax.retriever.data.trec import read_qrels, read_run


def test_lone_surrogates_of_passages_and_queries_are_replaced(tmp_path):
    record = {"_id": "d\ud800", "title": "\udfff", "text": "a \ud800"}
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    assert list(read_passages(tmp_path / "a.jsonl", numbered=True)) == [("d?", "?", "a ?")]
    assert read_query_file(tmp_path / "a.jsonl") == {"d?": "a ?"}


@pytest.mark.parametrize(
    ("unit", "read"), [(b"a ", read_run), (b"\t", read_qrels), (b"[],", read_query_file)]
)
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
