"""TREC runs and relevance judgments: read, write, rank."""

import logging
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import numpy as np

from cocondenser_jax.errors import UserError, log_once
from cocondenser_jax.files.tables import find_columns
from cocondenser_jax.files.whole import new_file, numbered_lines

logger = logging.getLogger(__name__)

# Query → passage → score; ties keep the order of insertion.
Run = dict[str, dict[str, float]]
# The same, one query at a time, so that a run need not fit in memory.
Results = Iterable[tuple[str, dict[str, float]]]
DEPTH = 10  # first passages of a ranking: those that comparisons show, count and have judged
# Query → its DEPTH best passages, best first.
Firsts = Mapping[str, Sequence[str]]
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_WHOLE = re.compile(r"[+-]?[0-9]+(\.0*)?")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_MAX_GRADE = 1_000_000  # trec_eval counts the passages of every grade up to the largest
# Query → judged passage → grade; above 0 is relevant.
Qrels = dict[str, dict[str, int]]
Name = TypeVar("Name")  # of a passage: its id, or its row in an index
# The columns of judgments: their synonyms in a header (see `tables.find_columns`), and their places
# by the number of columns. In a form with ids, `query` and `passage` are texts.
_JUDGMENT_NAMES = {
    "queryid": ("query", "qid", "topic", "topicid"),
    "corpusid": ("passage", "passageid", "pid", "docid", "docno", "documentid"),
    "grade": ("score", "rel", "relevance", "label", "judgment"),
}
_JUDGMENT_PLACES = {3: (0, 1, 2), 4: (0, 2, 3)}  # three only with a header


def read_qrels(path: Path) -> Qrels:
    """Reads judgments in the format of BEIR, MS MARCO or TREC.

    BEIR's lines are `query-id<TAB>corpus-id<TAB>score`, below a header; those of TREC and MS MARCO
    are `query 0 passage grade`, separated by spaces or tabs. Three columns without a header are
    refused: they may be a run of MS MARCO, with ranks. Grades below 0 are kept, such as trec_eval's
    -1, "in the pool, not judged".

    A judgment form has a header with further columns, separated by tabs. Lines without a score are
    omitted and counted in a warning.

    Raises:
      UserError: also for a query with two grades of one passage, an id that a run cannot hold, or a
        file without any score.
    """
    qrels: Qrels = {}
    empty: Counter[str] = Counter()  # lines without a score of each query
    for where, query, passage, grade in _judgment_fields(path):
        for name in (query, passage):
            require_run_id(name, where)
        if grade is None:
            empty[query] += 1
            continue
        if not _INTEGER.fullmatch(grade):
            raise UserError(f"{where}: the score must be an integer, not {grade!r}")
        value = int(grade)
        if abs(value) > _MAX_GRADE:
            raise UserError(f"{where}: the score {grade} is not within ±{_MAX_GRADE:,}")
        if qrels.setdefault(query, {}).setdefault(passage, value) != value:
            raise UserError(f"{where}: query {query} has passage {passage} with two scores")
    n_empty = empty.total()
    if not qrels:
        missing = f": {n_empty} lines have no score yet" if n_empty else ""
        raise UserError(f"{path} holds no judgments{missing}")
    if n_empty:
        n_begun = sum(query in qrels for query in empty)
        begun = f"; of {n_begun} queries some have, and the others count as 0" if n_begun else ""
        log_once(logger, f"{path}: {n_empty} lines have no score: they are left out{begun}")
    return qrels


def _judgment_fields(path: Path) -> Iterator[tuple[str, str, str, str | None]]:
    """Yields "FILE:LINE", query, passage and grade of each line; None for an empty grade."""
    header: tuple[int, ...] | None = None
    n_columns = 0  # of the header
    is_form = False
    for i, (number, line) in enumerate(_lines_of_ids(path)):
        where = f"{path}:{number}"
        if i == 0:
            _require_tabs(where, line)
        cells = line.split("\t")
        if i == 0 and len(cells) > max(_JUDGMENT_PLACES):
            is_form = _judgment_header(where, cells) is not None
        fields = cells if is_form or len(cells) == 3 else line.split()
        if not is_form and len(fields) not in _JUDGMENT_PLACES:
            raise UserError(
                f"{where}: expected 3 tab-separated fields (query, passage, score) "
                f"or TREC's 4, found {len(fields)}"
            )
        if i == 0 and (header := _judgment_header(where, fields)):
            n_columns = len(fields)
            continue
        if header is None and len(fields) == min(_JUDGMENT_PLACES):
            raise UserError(
                f"{where}: three columns without a header: expected query-id, corpus-id and score"
                " in the first line, or TREC's four, query 0 passage grade"
            )
        if header and len(fields) != n_columns:
            raise UserError(f"{where}: found {len(fields)} fields, and the header has {n_columns}")
        places = header or _JUDGMENT_PLACES[len(fields)]
        query, passage, grade = (fields[place] for place in places)
        yield where, query, passage, None if is_form and not grade.strip() else grade


def _require_tabs(where: str, header: str) -> None:
    """Raises a UserError for a header with another separator, as spreadsheets write."""
    for separator in ",;":
        if _judgment_header(where, header.replace('"', "").split(separator)):
            raise UserError(f"{where}: columns separated by {separator!r}, expected tabs")


def _judgment_header(where: str, fields: Sequence[str]) -> tuple[int, ...] | None:
    """Returns the columns of query, passage and grade in a header; None for a judgment."""
    found = find_columns(where, fields, _JUDGMENT_NAMES)
    return tuple(found.values()) if len(found) == len(_JUDGMENT_NAMES) else None


def read_run(path: Path) -> Run:
    """Reads a TREC run: `query Q0 passage rank score tag`, one result per line.

    Warns if scores and ranks disagree, or if scores are equal.

    Raises:
      UserError: also for a score that is not a finite number, or a passage twice for one query.
    """
    return dict(read_results(path))


def read_results(path: Path) -> Results:
    """Yields the results of a TREC run one query at a time; see `read_run`.

    Reads the whole run into memory if a query's lines are not contiguous.
    """
    orders: Counter[str] = Counter()
    for query, group in _groups_of_lines(path):
        scores: dict[str, float] = {}
        places = []
        for number, fields in group:
            passage, place, score = _read_result(path, number, fields)
            if passage in scores:
                raise UserError(f"{path}:{number}: query {query} has passage {passage} twice")
            scores[passage] = score
            places.append((place, score))
        first, last = min(places), max(places)
        orders["all"] += 1
        orders["reversed"] += first[0] < last[0] and first[1] < last[1]
        orders["tied"] += len({*scores.values()}) < len(scores)
        yield query, scores
    _warn_of_order(path, orders)


def _groups_of_lines(path: Path) -> Iterator[tuple[str, Iterable[tuple[int, list[str]]]]]:
    """Yields each query with its lines, as number and fields."""
    lines = _lines_of_results(path)
    if _lines_stand_together(path):
        yield from groupby(lines, lambda line: line[1][0])
        return
    groups: dict[str, list[tuple[int, list[str]]]] = {}
    for number, fields in lines:
        groups.setdefault(fields[0], []).append((number, fields))
    yield from groups.items()


def _lines_of_results(path: Path) -> Iterator[tuple[int, list[str]]]:
    for number, line in _lines_of_ids(path):
        fields = line.split()
        if len(fields) != 6:
            raise UserError(
                f"{path}:{number}: expected 6 fields (query Q0 passage rank score tag), "
                f"found {len(fields)}"
            )
        yield number, fields


def _lines_stand_together(path: Path) -> bool:
    seen: set[str] = set()
    for query, _ in groupby(line.split(None, 1)[0] for _, line in numbered_lines(path)):
        if query in seen:
            return False
        seen.add(query)
    return True


def _read_result(path: Path, number: int, fields: Sequence[str]) -> tuple[str, float, float]:
    """Returns the passage, the rank and the score of a line."""
    _, _, passage, rank, text, _ = fields
    if not _WHOLE.fullmatch(rank):
        raise UserError(f"{path}:{number}: the rank must be a whole number, not {rank!r}")
    # Unlike trec_eval, Python also parses 1_0 and digits of other scripts.
    score = float(text) if _NUMBER.fullmatch(text) else math.nan
    if not math.isfinite(score):
        raise UserError(f"{path}:{number}: the score must be a finite number, not {text!r}")
    return passage, float(rank), score


def _warn_of_order(path: Path, orders: Mapping[str, int]) -> None:
    """Warns of queries in which scores contradict ranks, or are equal."""
    if n_reversed := orders["reversed"]:
        logger.warning(
            "%s: for %d of %d queries the last rank has a higher score than the first; as in"
            " trec_eval, the highest score is the best: are these distances?",
            path,
            n_reversed,
            orders["all"],
        )
    if n_tied := orders["tied"]:
        logger.info(
            "%s: %d of %d queries have results with equal scores, which keep the order of the file;"
            " trec_eval orders them by their ids",
            path,
            n_tied,
            orders["all"],
        )


def write_run(path: Path, run: Run, tag: str = "cocondenser") -> None:
    """Writes a TREC run atomically, best passages first.

    Written scores decrease strictly (see `ranked`), so that evaluation programs see the same order
    however they break ties. Queries without results, which the file cannot show, are counted in a
    warning.

    Raises:
      UserError: also for an id with white space.
    """
    write_results(path, run.items(), tag)


def write_results(path: Path, results: Results, tag: str = "cocondenser") -> None:
    """Writes results as they come; see `write_run`. If the iterator raises, no file is left."""
    n_queries = n_empty = 0
    with new_file(path) as partial, partial.open("w", encoding="utf-8") as file:
        for query, scores in results:
            require_run_id(query, str(path))
            for rank, (passage, score) in enumerate(ranked(scores), start=1):
                require_run_id(passage, str(path))
                file.write(f"{query} Q0 {passage} {rank} {score} {tag}\n")
            n_queries += 1
            n_empty += not scores
    if n_empty:
        logger.warning("%s: %d of %d queries have no results", path, n_empty, n_queries)


def ranked(scores: Mapping[Name, float]) -> list[tuple[Name, np.float32]]:
    """Orders one query's passages, best first, with strictly decreasing scores.

    Ties keep the order of insertion. A score that is not below the previous one becomes the next
    smaller float32, since trec_eval uses single precision and breaks ties by passage id.

    Raises:
      UserError: for a score that is not finite.
    """
    with np.errstate(over="ignore"):
        values = np.fromiter(scores.values(), np.float32, len(scores))
    if not np.isfinite(values).all():
        raise UserError("a run holds a score that is not a finite number")
    order = np.argsort(-values, kind="stable")
    values = values[order]
    if (np.diff(values) >= 0).any():
        for i in range(1, len(values)):
            values[i] = min(values[i], np.nextafter(values[i - 1], np.float32(-np.inf)))
    passages = list(scores)
    return [(passages[i], value) for i, value in zip(order, values, strict=True)]


def first_passages(scores: Mapping[str, float], depth: int | None = None) -> list[str]:
    """Returns one query's passages, best first: all, or the first `depth`."""
    return [passage for passage, _ in ranked(scores)[:depth]]


def require_any(results: Results, message: str) -> Results:
    """Yields results; raises a UserError at the end if no query has any."""
    has_any = False
    for query, scores in results:
        has_any = has_any or bool(scores)
        yield query, scores
    if not has_any:
        raise UserError(message)


def require_run_id(name: str, where: str) -> str:
    """Returns `name`, or raises a UserError, beginning with `where`, if a run cannot hold it."""
    if name.split() != [name] or "\0" in name:
        raise UserError(f"{where}: the id {name!r} has white space or a zero byte, or is empty")
    return name


def _lines_of_ids(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in numbered_lines(path):
        if "\0" in line:  # trec_eval would cut ids there, which could make two of them equal
            raise UserError(f"{path}:{number}: a zero byte, which no id can have")
        yield number, line
