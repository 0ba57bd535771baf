"""Reads passages, whatever they are in, and the files in which queries are published.

docs/data.md lists what is read. `corpus.sources` opens passages, `tables` reads those in .tsv,
`trec` reads judgments. Any file may be compressed (.gz, .xz, .zst).
"""

import logging
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import chain
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from cocondenser_jax.corpus.records import Record, decode, to_document
from cocondenser_jax.corpus.sources import open_records
from cocondenser_jax.errors import UserError, log_once
from cocondenser_jax.files.tables import (
    QUERY_COLUMNS,
    names_an_id,
    plain_suffix,
    read_rows,
)
from cocondenser_jax.files.whole import numbered_lines, parse_object, without_surrogates
from cocondenser_jax.retriever.data.trec import require_run_id

logger = logging.getLogger(__name__)

_IDS = ("_id", "id")
_QUERY_IDS = (*_IDS, "query_id")
# What an id that was made of a file's name and a number must not have in a run.
_UNFIT = re.compile(r"[\s\0%]")


class Passage(NamedTuple):
    """A unit of retrieval."""

    id: str
    title: str
    text: str


def read_passages(source: str | Path, *, numbered: bool = True) -> Iterator[Passage]:
    """Yields the passages of a source (see `sources.open_records`), one at a time.

    Passages without ids have the number of their line or row, in a folder of several files after
    the path of the file; a line in the log tells it. A document's URL in a table goes before its
    title, so encoders read URL, title, body: the order of arXiv 2007.00808 and arXiv 2101.08751,
    which put separators between them.

    Args:
      source: as `corpus` takes it.
      numbered: whether passages may be without ids, all of them.

    Raises:
      UserError: also if only some have an id, or if a field of another name seems to be the id.
    """
    ids: set[str] = set()
    have_ids: bool | None = None
    for record in chain.from_iterable(piece() for piece in open_records(str(source))):
        has_id = _find_id(record.fields, _IDS) is not None
        if have_ids is None:
            have_ids = has_id
            if not has_id:
                _require_numbers(record, source, numbered)
        elif has_id is not have_ids:
            wrong = "an id, but others have none" if has_id else "no `_id`, but others have one"
            raise UserError(f"{record.where} has {wrong}: expected one in each or in none")
        if has_id:
            name = _read_new_id(record.fields, _IDS, ids, record.where)
            ids.add(name)
        else:
            name = _UNFIT.sub(lambda character: quote(character[0]), record.number)
        yield _to_passage(name, record)
    if have_ids is None:
        raise UserError(f"{source} is empty")


def read_queries(path: Path) -> dict[str, str]:
    """Reads queries, id → text: a .tsv, a .txt or, in any other file, one JSON object a line.

    Each line of a .txt file is a query, and its number the id.
    """
    queries: dict[str, str] = {}
    for where, fields in _read_lines(path):
        name = _read_new_id(fields, _QUERY_IDS, queries, where)
        if "text" not in fields:
            raise UserError(f"{where}: the field 'text' is missing")
        queries[name] = _string(fields, "text", where)
    if not queries:
        raise UserError(f"{path} is empty")
    return queries


def _to_passage(name: str, record: Record) -> Passage:
    fields, _, where, url = record
    if fields.get("spans") is not None:
        return Passage(name, "", to_document(record).text)
    if "text" not in fields:
        raise UserError(f"{where}: the field 'text' is missing")
    title = _string(fields, "title", where) if fields.get("title") else ""
    return Passage(name, f"{url} {title}".strip() if url else title, _string(fields, "text", where))


def _string(fields: Mapping[str, Any], field: str, where: str) -> str:
    value = decode(fields[field], field, where)
    if not isinstance(value, str):
        raise UserError(f"{where}: the field {field!r} must be a string")
    return without_surrogates(value)


def _require_numbers(record: Record, source: str | Path, numbered: bool) -> None:
    """Logs that passages are numbered; raises a UserError where they must have an id."""
    for name in filter(names_an_id, record.fields):
        raise UserError(f"{record.where} has no `_id`, but `{name}`: rename that to `_id`")
    if not numbered:
        raise UserError(f"{record.where} has no `_id`: judgments name passages by their ids")
    line = f"{source}: its passages have no ids, and are numbered by line or row"
    log_once(logger, line, logging.INFO)


def _read_lines(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields "FILE:LINE" and the fields of each line."""
    lines = numbered_lines(path)
    if plain_suffix(path) == ".tsv":
        yield from read_rows(path, lines, QUERY_COLUMNS)
        return
    is_text = plain_suffix(path) == ".txt"
    for number, line in lines:
        where = f"{path}:{number}"
        yield where, {"_id": number, "text": line} if is_text else parse_object(line, where)


def _find_id(fields: Mapping[str, Any], names: Sequence[str]) -> Any:
    """Returns the first id that is not null; None where there is none."""
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _read_new_id(
    fields: Mapping[str, Any], names: Sequence[str], ids: Container[str], where: str
) -> str:
    """Reads the id of a passage or a query; an integer is taken as a string."""
    value = decode(_find_id(fields, names), "_id", where)
    if value is None:
        raise UserError(f"{where}: the field {names[0]!r} is missing")
    if isinstance(value, bool) or not isinstance(value, (Integral, str)):
        raise UserError(f"{where}: the id must be a string")
    name = require_run_id(without_surrogates(str(value)), where)
    if name in ids:
        raise UserError(f"{where}: the id {name!r} occurs twice")
    return name
