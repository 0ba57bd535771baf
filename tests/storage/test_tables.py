"""Tables of passages: which layout a file has, by its first line, and what is refused."""

import csv
from pathlib import Path

import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.storage.tables import read_rows

FIELDS = ("id", "url", "title", "text")


def read(text):
    lines = enumerate(text.split("\n"), start=1)
    return [tuple(row[name] for name in FIELDS) for _, row in read_rows(Path("a.tsv"), lines)]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('1\t"text" as is\n2\t', [("1", "", "", '"text" as is'), ("2", "", "", "")]),
        ("1\tTitle\ttext\n2\t\ttext", [("1", "", "Title", "text"), ("2", "", "", "text")]),
        ("D1\thttp://x\t\tbody\nD2\t\t\t", [("D1", "http://x", "", "body"), ("D2", "", "", "")]),
        ('id\ttext\ttitle\n\n1\t"the ""text"""\tTitle', [("1", "", "Title", 'the "text"')]),
        ('"id"\t"text"\n"1"\t"a\u2028b"', [("1", "", "", "a\u2028b")]),
        ("year\ttext\turl\tid\tspans\n1953\ttext\thttp://x\t1\ts", [("1", "http://x", "", "text")]),
        (f"id\ttext\n1\t{'long ' * 99_999}", [("1", "", "", "long " * 99_999)]),
        ("", []),
    ],
    ids=["passages", "titled", "documents", "DPR", "quoted", "own", "long", "empty"],
)
def test_the_first_line_tells_the_columns(text, rows):
    assert read(text) == rows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("text alone", r"^a\.tsv:1: expected id, text or .* a header .*, found 1 fields"),
        ("\n1\ta\tb\tc\td", r"^a\.tsv:2: expected id, text or .*, found 5 fields"),
        ("id\ttitle\n1\tT\textra", r"^a\.tsv:2: expected 2 .* \(id, text\), found 3"),
        ("1\tT\ttext\n2\ttext", r"^a\.tsv:2: expected 3 .* \(id, title, text\), found 2"),
        ("D1\tu\tT\tb\nD2\tu\tT\tb\tc", r"^a\.tsv:2: expected 4 .* \(id, url, title, text\)"),
        ('id\ttext\n1\t"never closed', r"^a\.tsv:2: wrong quoting"),
    ],
)
def test_a_line_of_another_form_is_named(text, message):
    with pytest.raises(UserError, match=message):
        read(text)


def test_the_limit_of_csv_stays_as_it_was():
    before = csv.field_size_limit()
    assert before == 131_072  # Python's default: importing the module left it
    read(f"id\ttext\n1\t{'long ' * 99_999}")
    with pytest.raises(UserError, match="wrong quoting"):
        read('id\ttext\n1\t"never closed')
    assert csv.field_size_limit() == before
