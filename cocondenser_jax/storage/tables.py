"""Reads tab-separated files, and the layouts in which passages are published.

    id, text                MS MARCO passages, collection.tsv
    id, title, text         the same with the titles of RocketQA, corpus.tsv
    id, url, title, text    MS MARCO documents, msmarco-docs.tsv
    a header                DPR, psgs_w100.tsv, and passages of one's own: `id`, `text` and perhaps
                            `title` and `url`, in any order, among other columns; quoted as csv

The first line tells them apart, whatever the file is called: it has the names `id` and `text`, or
as many columns as one of the other layouts.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from cocondenser_jax.errors import UserError
from cocondenser_jax.storage.files import MAX_LINE_BYTES

# The passages of a data folder are the first of these.
PASSAGE_FILES = (
    "corpus.jsonl",
    "corpus.tsv",
    "collection.tsv",
    "psgs_w100.tsv",
    "msmarco-docs.tsv",
)
_FIELDS = ("id", "url", "title", "text")
_COLUMNS = {2: ("id", "text"), 3: ("id", "title", "text"), 4: _FIELDS}
_COMPRESSED = re.compile(r"\.(gz|xz|zst)$")


def plain_name(path: Path) -> str:
    """Drops the suffix of a compression from a file name."""
    return _COMPRESSED.sub("", path.name)


def plain_suffix(path: Path) -> str:
    """Returns the suffix that shows what a file holds, such as .tsv of a.tsv.gz."""
    return Path(plain_name(path)).suffix


def read_rows(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields "FILE:LINE", and `id`, `url`, `title` and `text` of each numbered line with text."""
    columns: Sequence[str] = ()
    is_csv = False
    for number, line in lines:
        where = f"{path}:{number}"
        if not line.strip():
            continue
        if not columns:
            columns = line.replace('"', "").split("\t", 100)
            is_csv = "id" in columns and "text" in columns
            if is_csv:
                continue
            if len(columns) not in _COLUMNS:
                raise UserError(
                    f"{where}: expected id, text or id, title, text or id, url, title, text or a "
                    f"header with id and text, separated by tabs, found {len(columns)} fields"
                )
            columns = _COLUMNS[len(columns)]
        # One field too many shows the mistake; a line of nothing but tabs would make millions.
        fields = line.split("\t", len(columns))
        if is_csv:
            try:
                fields = _parse_csv(line)
            except csv.Error as error:
                raise UserError(f"{where}: wrong quoting, expected csv: {error}") from None
        if len(fields) != len(columns):
            raise UserError(
                f"{where}: expected {len(columns)} tab-separated fields ({', '.join(columns)}), "
                f"found {len(fields)}"
            )
        row = dict(zip(columns, fields, strict=True))
        yield where, {name: row.get(name, "") for name in _FIELDS}


def _parse_csv(line: str) -> list[str]:
    """Parses one line: a quotation mark too many must not swallow the rest of the file."""
    # csv refuses fields of more than 131,072 characters, by a limit of the whole process.
    limit = csv.field_size_limit(MAX_LINE_BYTES)
    try:
        return next(csv.reader([line], delimiter="\t", strict=True))
    finally:
        csv.field_size_limit(limit)
