"""Reads passages from any supported source, and queries from the formats they are published in.

docs/data.md lists the formats. `corpus.sources` opens passages, `tables` reads .tsv files, `trec`
reads judgments. Any file may be compressed (.gz, .xz, .zst).
"""

import logging
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import chain, islice
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from cocondenser_jax.corpus.records import Record, decode, to_document
from cocondenser_jax.corpus.sources import open_records
from cocondenser_jax.errors import UserError, log_once
from cocondenser_jax.files.tables import (
    ROWS_COMPARED,
    names_an_id,
    plain_name,
    plain_suffix,
    read_rows,
    require_no_ids,
    require_prose,
)
from cocondenser_jax.files.whole import numbered_lines, parse_object, without_surrogates
from cocondenser_jax.retriever.data.trec import require_run_id

logger = logging.getLogger(__name__)

_IDS = ("_id", "id")
_QUERY_IDS = (*_IDS, "query_id")
# Characters that a run cannot hold in an id made from a file's name and a number.
_UNFIT = re.compile(r"[\s\0%]")
# A TREC topic's title, up to the next tag: it may hold a "<" that begins none.
_MARKUP = re.compile(r"</?(?:b|i|u|em|strong|sub|sup|span|a|br|p)\b", re.IGNORECASE)
_TITLE = re.compile(r"<title>\s*(?:Topic:)?\s*((?:[^<]|<(?!/?[a-z][^<>]*>))+)", re.IGNORECASE)


class Passage(NamedTuple):
    """A unit of retrieval."""

    id: str
    title: str
    text: str


def read_passages(source: str | Path, *, numbered: bool) -> Iterator[Passage]:
    """Yields the passages of a source (see `sources.open_records`), one at a time.

    Passages without title and text are kept, since judgments may name them, and counted in a
    warning. Passages without ids get their line or row number, after the file's path if there are
    several files, which the log reports. A document's URL in a table is put before its title, so
    encoders read URL, title, body: the order of arXiv 2007.00808 and arXiv 2101.08751, which put
    separators between them.

    Args:
      source: as for the command `corpus`.
      numbered: whether all passages may lack ids.

    Raises:
      UserError: also if only some passages have an id, or if another field seems to be the id.
    """
    ids: set[str] = set()
    have_ids: bool | None = None
    n_empty = 0
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
        passage = _to_passage(name, record)
        n_empty += _is_blank(passage.text) and _is_blank(passage.title)
        yield passage
    if have_ids is None:
        raise UserError(f"{source} is empty")
    if n_empty:
        line = f"{source}: {n_empty:,} passages have neither title nor text; they are kept"
        log_once(logger, line)


def read_query_file(path: Path) -> dict[str, str]:
    """Reads queries, id → text, from a .tsv file, a .txt file or JSON lines (any other name).

    A .txt file holds TREC topics, `<top>` to `</top>`, or one query per line. In files named
    `topics.*`, as Anserini's, a line is an id, a tab and the query; in others its number is the id.
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


def numbers_queries(path: Path) -> bool:
    """Returns whether the ids of a file's queries are only their line numbers."""
    if plain_suffix(path) != ".txt" or not path.is_file():
        return False
    first = next(numbered_lines(path), (0, ""))
    return not _is_topic(first[1]) and not _has_ids(path, first[1])


def _to_passage(name: str, record: Record) -> Passage:
    fields, _, where, url = record
    if fields.get("spans") is not None:
        return Passage(name, "", to_document(record).text)
    if "text" not in fields:
        raise UserError(f"{where}: the field 'text' is missing")
    title = _string(fields, "title", where) if fields.get("title") else ""
    return Passage(name, f"{url} {title}".strip() if url else title, _string(fields, "text", where))


def _is_blank(text: str) -> bool:
    return not text or text.isspace()


def _string(fields: Mapping[str, Any], field: str, where: str) -> str:
    value = decode(fields[field], field, where)
    if not isinstance(value, str):
        raise UserError(f"{where}: the field {field!r} must be a string")
    return without_surrogates(value)


def _require_numbers(record: Record, source: str | Path, numbered: bool) -> None:
    """Logs that passages are numbered; raises a UserError if they must have ids."""
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
        yield from read_rows(path, lines)
    elif plain_suffix(path) == ".txt":
        yield from _read_text(path, lines)
    else:
        for number, line in lines:
            where = f"{path}:{number}"
            yield where, parse_object(line, where)


def _read_text(
    path: Path, lines: Iterator[tuple[int, str]]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    head = [*islice(lines, ROWS_COMPARED)]
    first = head[0][1] if head else ""
    lines = chain(head, lines)
    if _is_topic(first):
        yield from _read_topics(path, lines)
    elif _has_ids(path, first):
        yield from read_rows(path, lines, ("id", "text"))
    else:
        require_prose(path, head)
        require_no_ids(path, head)
        for number, line in lines:
            where = f"{path}:{number}"
            if "\t" in line.strip():
                raise UserError(
                    f"{where}: a tab in a query: expected queries alone; where they have ids, in a"
                    " .tsv file whose first line is id and text, or in topics.NAME.txt"
                )
            yield where, {"_id": number, "text": line}


def _is_topic(line: str) -> bool:
    return re.match(r"\s*<top>", line, re.IGNORECASE) is not None


def _has_ids(path: Path, line: str) -> bool:
    return plain_name(path).startswith("topics.") and "\t" in line


def _read_topics(
    path: Path, lines: Iterator[tuple[int, str]]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Reads TREC topics: the title is the query, the number its id, in the form of judgments."""
    topic: list[str] = []
    begin = 0
    for number, line in lines:
        begin = begin or number
        topic.append(line)
        if re.search("</top>", line, re.IGNORECASE):
            yield f"{path}:{begin}", _parse_topic(f"{path}:{begin}", " ".join(topic))
            topic, begin = [], 0
    if topic:
        raise UserError(f"{path}:{begin}: a topic without </top>")


def _parse_topic(where: str, topic: str) -> dict[str, str]:
    name = re.search(r"<num>\s*(?:Number:)?\s*(\S+?)\s*(?=<|$|\s)", topic, re.IGNORECASE)
    title = _TITLE.search(topic)
    if title and (_MARKUP.match(topic, title.end()) or topic.lower().count("<title>") > 1):
        raise UserError(f"{where}: expected one <title>, without tags in its text")
    if topic.lower().count("<top>") != 1 or not name or not title:
        raise UserError(f"{where}: expected <top>, a <num>, a <title> with text, </top>")
    id_ = name[1]
    return {"_id": str(int(id_)) if id_.isdecimal() else id_, "text": " ".join(title[1].split())}


def _find_id(fields: Mapping[str, Any], names: Sequence[str]) -> Any:
    """Returns the first id that is not null; None if there is none."""
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _read_new_id(
    fields: Mapping[str, Any], names: Sequence[str], ids: Container[str], where: str
) -> str:
    """Reads the id of a passage or query; integers become strings.

    Raises:
      UserError: if the id is missing, no string or integer, or occurred before (`ids`).
    """
    said = [name for name in names if fields.get(name) is not None]
    if "_id" not in said and len({str(fields[name]) for name in said}) > 1:
        raise UserError(f"{where}: the fields {' and '.join(said)} differ: expected one id")
    value = decode(_find_id(fields, names), "_id", where)
    if value is None:
        raise UserError(f"{where}: the field {names[0]!r} is missing")
    if isinstance(value, bool) or not isinstance(value, (Integral, str)):
        raise UserError(f"{where}: the id must be a string")
    name = require_run_id(without_surrogates(str(value)), where)
    if name in ids:
        raise UserError(f"{where}: the id {name!r} occurs twice")
    return name
