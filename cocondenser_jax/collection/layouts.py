"""Reads the files in which collections are published, one reader for each kind.

docs/data.md lists their names. `tables` reads passages in .tsv, `trec` judgments. Any file may be
compressed (.gz, .xz, .zst).
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cocondenser_jax.collection.trec import require_run_id
from cocondenser_jax.errors import UserError
from cocondenser_jax.storage.files import numbered_lines, parse_object, without_surrogates
from cocondenser_jax.storage.tables import plain_suffix, read_rows

_IDS = ("_id", "id", "query_id")


class Passage(NamedTuple):
    """A unit of retrieval."""

    id: str
    title: str
    text: str


def read_passages(path: Path) -> Iterator[Passage]:
    """Yields the passages of a file, one at a time.

    A .tsv is read as `tables` says, any other file has one JSON object a line: `_id` (or `id`),
    `text` and perhaps `title`. A document's URL goes before its title, so encoders read URL, title,
    body: the order of arXiv 2007.00808 and arXiv 2101.08751, which put separators between them.
    """
    ids: set[str] = set()
    for where, record in _read_records(path):
        name = _read_new_id(record, ids, where)
        ids.add(name)
        title = record.get("title") or ""
        text = _first_of(record, ("text",), where)
        for field, value in (("title", title), ("text", text)):
            if not isinstance(value, str):
                raise UserError(f"{where}: the field {field!r} must be a string")
        yield Passage(name, without_surrogates(title), without_surrogates(text))
    if not ids:
        raise UserError(f"{path} is empty")


def read_queries(path: Path) -> dict[str, str]:
    """Reads queries, id → text: passages without a title."""
    return {query.id: query.text for query in read_passages(path)}


def _read_records(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields "FILE:LINE" and the fields of each line."""
    lines = numbered_lines(path)
    if plain_suffix(path) == ".tsv":
        for where, row in read_rows(path, lines):
            yield where, row | {"title": f"{row['url']} {row['title']}".strip()}
        return
    for number, line in lines:
        where = f"{path}:{number}"
        yield where, parse_object(line, where)


def _read_new_id(record: Mapping[str, Any], ids: Container[str], where: str) -> str:
    """Reads the id of a passage or a query; an integer is taken as a string."""
    value = _first_of(record, _IDS, where)
    if type(value) is not int and not isinstance(value, str):
        raise UserError(f"{where}: the id must be a string")
    name = require_run_id(without_surrogates(str(value)), where)
    if name in ids:
        raise UserError(f"{where}: the id {name!r} occurs twice")
    return name


def _first_of(record: Mapping[str, Any], names: Sequence[str], where: str) -> Any:
    for name in names:
        if name in record:
            return record[name]
    raise UserError(f"{where}: the field {names[0]!r} is missing")
