"""Queries of a log: what is left out, and what is drawn."""

import gzip
import json

import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.data.query_log import draw_queries, read_log
from tests.lines import whole


def test_empty_lines_and_those_that_occur_again_are_counted_and_left_out(tmp_path, caplog):
    path = tmp_path / "log.txt"
    path.write_text("sort a list\n\nÄpfel  kaufen\r\nSort  a List \n  \nsort a list\nthree\n\n")
    assert read_log(path) == {"1": "sort a list", "3": "Äpfel kaufen", "7": "three"}
    assert read_log(path)
    (said,) = caplog.messages  # once
    assert said == f"{path}: 3 empty queries and 2 that occur again are left out"


@pytest.mark.parametrize("name", ["log.txt.gz", "log.tsv", "log.jsonl", "folder"])
def test_a_log_may_be_in_any_file_of_queries(tmp_path, name, caplog):
    path = tmp_path / name
    records = [{"_id": f"q{i}", "text": text} for i, text in enumerate(["a b", "", "c", "A  B"])]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    if name.endswith("gz"):
        path.write_bytes(gzip.compress(b"a b\n\nc\nA  B\n"))
    elif name == "folder":
        path.mkdir()
        (path / "queries.jsonl").write_text(lines)
    else:
        rows = "id\ttext\n" + "".join(f"{each['_id']}\t{each['text']}\n" for each in records)
        path.write_text(rows if name.endswith("tsv") else lines)
    expected = {"1": "a b", "3": "c"} if name.endswith("gz") else {"q0": "a b", "q2": "c"}
    assert read_log(path) == expected
    assert caplog.messages == [f"{path}: 1 empty queries and 1 that occur again are left out"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "log.csv",
            "a\nb\n",
            "TMP/log.csv: expected a .txt file with a query on each line, or a .tsv or .jsonl file",
        ),
        ("log.txt", "one\nONE\n", "TMP/log.txt has 1 different queries: a comparison needs two"),
        ("log.txt", "\n\n", "TMP/log.txt is empty"),
    ],
)
def test_what_is_no_log_is_said_in_one_line(tmp_path, name, text, said):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UserError, match=whole(said)):
        read_log(path)


def test_queries_are_drawn_from_all_of_the_log_and_always_the_same():
    queries = {f"q{i}": f"text {i}" for i in range(1000)}
    drawn = draw_queries(queries, 100)
    assert len(drawn) == 100
    assert drawn == draw_queries(queries, 100)
    assert drawn.items() < queries.items()
    numbers = [int(name[1:]) for name in drawn]
    assert numbers == sorted(numbers)
    assert all(sum(n // 100 == k for n in numbers) > 2 for k in range(10))
    assert draw_queries(queries, 1000) == queries


def test_blank_lines_within_topics_are_no_queries(tmp_path, caplog):
    topics = "<top>\n<num> 7\n\n<title> who asks\n</top>\n\n<top>\n<num> 8\n<title> why\n</top>\n"
    (tmp_path / "any.txt").write_text(topics)
    assert read_log(tmp_path / "any.txt") == {"7": "who asks", "8": "why"}
    assert not caplog.messages
