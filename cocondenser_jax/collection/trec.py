"""TREC runs and relevance judgments: read, write, rank."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np

from cocondenser_jax.errors import UserError
from cocondenser_jax.storage.files import new_file, numbered_lines

# A run gives each query its passages with scores; ties keep the order of insertion.
Run = dict[str, dict[str, float]]
_MAX_GRADE = 1_000_000  # trec_eval counts the passages of every grade up to the largest
# Judgments give each query its judged passages with a grade; above 0 is relevant.
Qrels = dict[str, dict[str, int]]
Name = TypeVar("Name")  # of a passage: its id, or its row in an index


def read_qrels(path: Path) -> Qrels:
    """Reads judgments, BEIR (`query-id<TAB>corpus-id<TAB>score`) or TREC (`query 0 passage grade`).

    BEIR's header line is optional. A query must not have a passage twice with different grades.
    """
    qrels: Qrels = {}
    for number, line in _lines_of_ids(path):
        fields = line.split("\t") if line.count("\t") == 2 else line.split()
        if len(fields) == 3:
            query, passage, grade = fields
            if number == 1 and grade == "score":
                continue
        elif len(fields) == 4:
            query, _, passage, grade = fields
        else:
            raise UserError(
                f"{path}:{number}: expected 3 tab-separated fields (query, passage, score) "
                f"or TREC's 4, found {len(fields)}"
            )
        try:
            value = int(grade)
        except ValueError:
            raise UserError(
                f"{path}:{number}: the score must be an integer, not {grade!r}"
            ) from None
        if abs(value) > _MAX_GRADE:
            raise UserError(f"{path}:{number}: the score {grade} is not within ±{_MAX_GRADE:,}")
        if qrels.setdefault(query, {}).setdefault(passage, value) != value:
            raise UserError(f"{path}:{number}: query {query} has passage {passage} with two scores")
    if not qrels:
        raise UserError(f"{path} holds no judgments")
    return qrels


def read_run(path: Path) -> Run:
    """Reads a TREC run: `query Q0 passage rank score tag`, one result per line.

    Scores must be finite numbers, and a query must not have a passage twice.
    """
    run: Run = {}
    for number, line in _lines_of_ids(path):
        fields = line.split()
        if len(fields) != 6:
            raise UserError(
                f"{path}:{number}: expected 6 fields (query Q0 passage rank score tag), "
                f"found {len(fields)}"
            )
        query, _, passage, _, text, _ = fields
        try:
            score = float(text)
        except ValueError:
            score = math.nan
        if not math.isfinite(score):
            raise UserError(f"{path}:{number}: the score must be a finite number, not {text!r}")
        results = run.setdefault(query, {})
        if passage in results:
            raise UserError(f"{path}:{number}: query {query} has passage {passage} twice")
        results[passage] = score
    return run


def write_run(path: Path, run: Run, tag: str = "cocondenser") -> None:
    """Writes a TREC run, best first, whole or not at all.

    The written scores decrease strictly (see `ranked`), so that every evaluation program sees this
    order, however it breaks ties. Ids must not contain white space.
    """
    with new_file(path) as partial, partial.open("w", encoding="utf-8") as file:
        for query, scores in run.items():
            require_run_id(query, str(path))
            for rank, (passage, score) in enumerate(ranked(scores), start=1):
                require_run_id(passage, str(path))
                file.write(f"{query} Q0 {passage} {rank} {score} {tag}\n")


def ranked(scores: Mapping[Name, float]) -> list[tuple[Name, np.float32]]:
    """Orders one query's passages, best first, with strictly decreasing scores.

    Equal ones keep the order of insertion. A score that is not below the one before it becomes the
    next smaller float32: trec_eval keeps scores in single precision and breaks ties by passage id.
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
    """Orders one query's passages, best first; returns all, or the first `depth`."""
    return [passage for passage, _ in ranked(scores)[:depth]]


def require_run_id(name: str, where: str) -> str:
    """Returns an id; raises a UserError, with `where`, for one that a TREC run cannot hold."""
    if len(name.split()) != 1 or "\0" in name:
        raise UserError(f"{where}: the id {name!r} has white space or a zero byte, or is empty")
    return name


def _lines_of_ids(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in numbered_lines(path):
        if "\0" in line:  # where trec_eval's names end: two of them could become one
            raise UserError(f"{path}:{number}: a zero byte, which no id can have")
        yield number, line
