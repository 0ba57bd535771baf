"""Reads the files in which collections are published, one reader for each kind.

docs/data.md lists their names. `tables` reads passages in .tsv, `trec` judgments. Any file may be
compressed (.gz, .xz, .zst). A question of DPR has no id: its number in the file, from 0, is its id.
"""

import ast
import json
import warnings
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cocondenser_jax.collection.trec import Qrels, require_run_id
from cocondenser_jax.errors import UserError
from cocondenser_jax.storage.files import (
    numbered_lines,
    parse_object,
    read_json_items,
    without_surrogates,
)
from cocondenser_jax.storage.tables import plain_suffix, read_rows, split_fields

_IDS = ("_id", "id", "query_id")


class Passage(NamedTuple):
    """A unit of retrieval."""

    id: str
    title: str
    text: str


class TrainingFile(NamedTuple):
    """The content of a .json file of DPR, by question; a question may have no passages."""

    queries: dict[str, str]
    qrels: Qrels
    negatives: dict[str, list[str]]


def read_passages(path: Path) -> Iterator[Passage]:
    """Yields the passages of a file, one at a time.

    A .tsv is read as `tables` says, a .csv has the questions of DPR, any other file has one JSON
    object a line: `_id` (or `id`), `text` and perhaps `title`. A document's URL goes before its
    title, so encoders read URL, title, body: the order of arXiv 2007.00808 and arXiv 2101.08751,
    which put separators between them.
    """
    seen: set[str] = set()
    for where, record in _read_records(path):
        passage = _to_passage(record, where)
        _require_new(passage.id, seen, where)
        seen.add(passage.id)
        yield passage
    if not seen:
        raise UserError(f"{path} is empty")


def read_queries(path: Path) -> dict[str, str]:
    """Reads queries, id → text: passages without a title, or the questions of a .json of DPR."""
    if plain_suffix(path) == ".json":
        return read_training_file(path).queries
    return {query.id: query.text for query in read_passages(path)}


def read_answers(path: Path, asked: Mapping[str, str] | None = None) -> dict[str, list[str]]:
    """Reads the answers to questions: id → answers.

    A .csv or .json file is DPR's; the lists of a .csv may be Python's or JSON's. Any other file has
    one JSON object a line: `_id` (or `id`, `query_id`), `answers` (or `answer`), a list of strings,
    and perhaps `question` (or `text`).

    Args:
      path: the file.
      asked: id → question. Where the file has another one, its ids are those of other questions:
        DPR's .csv numbers all questions, its .json those that it has passages for.
    """
    answers: dict[str, list[str]] = {}
    records = _read_questions(path) if plain_suffix(path) == ".json" else _read_records(path)
    for where, record in records:
        name = _read_id(record, where)
        _require_new(name, answers, where)
        text = without_surrogates(str(record.get("question") or record.get("text") or ""))
        if asked and text and asked.get(name, text) != text:
            raise UserError(f"{where}: expected the question {asked[name]!r}, found {text!r}")
        found = _first_of(record, ("answers", "answer"), where)
        if not isinstance(found, list) or not all(isinstance(answer, str) for answer in found):
            raise UserError(f"{where}: the answers must be a list of strings")
        answers[name] = [without_surrogates(answer) for answer in found]
    if not any(answers.values()):
        raise UserError(f"{path} holds no answers")
    return answers


def read_training_file(path: Path) -> TrainingFile:
    """Reads a .json file of DPR: a list of questions, perhaps with the ids of their passages.

    As in DPR's training, the first of `positive_ctxs` is relevant (the others only hold an answer);
    the negatives are `hard_negative_ctxs` or, without any, `negative_ctxs`, which are random.
    """
    found = TrainingFile({}, {}, {})
    for where, record in _read_questions(path):
        positives, hard, random = (
            _context_ids(record.get(field, []), f"{where}, {field}")
            for field in ("positive_ctxs", "hard_negative_ctxs", "negative_ctxs")
        )
        name = record["_id"]
        found.queries[name] = without_surrogates(record["question"])
        found.qrels[name] = dict.fromkeys(positives[:1], 1)
        found.negatives[name] = list(dict.fromkeys(hard or random))
    if not found.queries:
        raise UserError(f"{path}: expected a list of objects with a `question`")
    return found


def _read_questions(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields "FILE, question NUMBER" and the fields of each question of DPR's .json."""
    for number, record in enumerate(read_json_items(path)):
        where = f"{path}, question {number}"
        if not isinstance(record, dict) or not isinstance(record.get("question"), str):
            raise UserError(f"{where}: expected an object with a `question`, a string")
        yield where, record | {"_id": str(number)}


def _read_records(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields "FILE:LINE" and the fields of each line."""
    lines = numbered_lines(path)
    suffix = plain_suffix(path)
    if suffix == ".tsv":
        for where, row in read_rows(path, lines):
            yield where, row | {"title": f"{row['url']} {row['title']}".strip()}
        return
    for number, line in lines:
        where = f"{path}:{number}"
        if suffix == ".csv":
            text, answers = split_fields(line, ("question", "list of answers"), where, is_csv=True)
            yield where, {"_id": str(number - 1), "text": text, "answers": _parse_list(answers)}
        else:
            yield where, parse_object(line, where)


def _to_passage(record: Mapping[str, Any], where: str) -> Passage:
    name = _read_id(record, where)
    title = record.get("title") or ""
    text = _first_of(record, ("text",), where)
    for field, value in (("title", title), ("text", text)):
        if not isinstance(value, str):
            raise UserError(f"{where}: the field {field!r} must be a string")
    return Passage(name, without_surrogates(title), without_surrogates(text))


def _require_new(name: str, known: Container[str], where: str) -> None:
    if not name:
        raise UserError(f"{where}: the id is empty")
    require_run_id(name, where)
    if name in known:
        raise UserError(f"{where}: the id {name!r} occurs twice")


def _read_id(record: Mapping[str, Any], where: str) -> str:
    """Reads the id of a passage or a query; an integer is taken as a string."""
    value = _first_of(record, _IDS, where)
    if type(value) is int:
        return str(value)
    if not isinstance(value, str):
        raise UserError(f"{where}: the id must be a string")
    return without_surrogates(value)


def _first_of(record: Mapping[str, Any], names: Sequence[str], where: str) -> Any:
    for name in names:
        if name in record:
            return record[name]
    raise UserError(f"{where}: the field {names[0]!r} is missing")


def _parse_list(text: str) -> Any:
    """Reads a list as JSON or Python writes it; None for anything else."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the backslashes of regular expressions
            return ast.literal_eval(text)
    except (MemoryError, RecursionError, SyntaxError, TypeError, ValueError):
        return None


def _context_ids(contexts: Any, where: str) -> list[str]:
    """Reads the ids of DPR's passages; the fields of NQ and TriviaQA differ."""
    if not isinstance(contexts, list) or not all(isinstance(c, dict) for c in contexts):
        raise UserError(f"{where}: expected a list of objects")
    ids = [context.get("passage_id", context.get("psg_id")) for context in contexts]
    if not all(isinstance(name, str | int) for name in ids):
        raise UserError(f"{where}: a passage has no `passage_id` or `psg_id`")
    return [require_run_id(without_surrogates(str(name)), where) for name in ids]
