"""The files in which collections are published: one reader for each kind.

docs/data.md lists their names. `tables` reads passages in .tsv, `trec` judgments. Any file may be
compressed (.gz, .xz, .zst). A question of DPR has no id: its number in the file, from 0, is its id.
"""

import ast
import functools
import json
import logging
import re
import sys
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
from cocondenser_jax.storage.tables import plain_name, read_rows, split_fields

logger = logging.getLogger(__name__)

COMPRESSIONS = "(plain, .gz, .xz or .zst)"
_IDS = ("_id", "id", "query_id")
_DPR_QUESTION = ("question", "list of answers")


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


def matching_files(folder: Path, pattern: str) -> list[Path]:
    """Lists the files whose plain name matches a regular expression, each name once."""
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if re.fullmatch(pattern, plain_name(path)) and path.is_file():
            found.setdefault(plain_name(path), path)
    return list(found.values())


def read_passages(path: Path) -> Iterator[Passage]:
    """Yields the passages of a file, one at a time: of a .tsv as `tables` has it, else of jsonl.

    A document's URL goes before its title: encoders then read URL, title and body in this order,
    that of Xiong et al., "Approximate Nearest Neighbor Negative Contrastive Learning for Dense Text
    Retrieval" (arXiv 2007.00808), and of Gao et al., "Rethink Training of BERT Rerankers in
    Multi-Stage Retrieval Pipeline" (arXiv 2101.08751), who put separators between them.
    """
    seen: set[str] = set()
    lines = numbered_lines(path)
    if plain_name(path).endswith(".tsv"):
        found = (
            (where, Passage(row["id"], f"{row['url']} {row['title']}".strip(), row["text"]))
            for where, row in read_rows(path, lines)
        )
    else:
        found = ((f"{path}:{n}", parse_passage(line, f"{path}:{n}")) for n, line in lines)
    for where, passage in found:
        _require_new(passage.id, seen, where)
        seen.add(passage.id)
        yield passage
    if not seen:
        raise UserError(f"{path} is empty")


def parse_passage(line: str | bytes, where: str) -> Passage:
    """Reads a line of jsonl with `_id`, `title` and `text`; an error begins with `where`."""
    record = _parse_named(line, where)
    record["title"] = record.get("title") or ""
    for field in ("_id", "text", "title"):
        if not isinstance(_first_of(record, [field], where), str):
            raise UserError(f"{where}: the field {field!r} must be a string")
    return Passage(*(without_surrogates(record[field]) for field in ("_id", "title", "text")))


def read_queries(path: Path) -> dict[str, str]:
    """Reads the queries of a file: id → text."""
    name = plain_name(path)
    if name.endswith(".json"):
        return read_training_file(path).queries
    queries: dict[str, str] = {}
    for number, line in numbered_lines(path):
        where = f"{path}:{number}"
        if name.endswith(".csv"):
            query, text = str(number - 1), split_fields(line, _DPR_QUESTION, where, is_csv=True)[0]
        elif name.endswith(".tsv"):
            query, text = split_fields(line, ("query", "text"), where)
        else:
            query, _, text = parse_passage(line, where)
        _require_new(query, queries, where)
        queries[query] = text
    if not queries:
        raise UserError(f"{path} is empty")
    return queries


def read_answers(path: Path) -> dict[str, list[str]]:
    """Reads the answers to questions: id → answers.

    A .csv file is in DPR's layout, its answers a list as Python or JSON writes it. Any other file
    has one JSON object a line: `_id` (or `id`, `query_id`) and `answers` (or `answer`), a list of
    strings.
    """
    is_csv = plain_name(path).endswith(".csv")
    answers: dict[str, list[str]] = {}
    for number, line in numbered_lines(path):
        where = f"{path}:{number}"
        if is_csv:
            question: Any = str(number - 1)
            found = _parse_list(split_fields(line, _DPR_QUESTION, where, is_csv=True)[1])
        else:
            record = _parse_named(line, where)
            question = _first_of(record, _IDS, where)
            found = _first_of(record, ("answers", "answer"), where)
        if not isinstance(question, str):
            raise UserError(f"{where}: the id must be a string")
        if not isinstance(found, list) or not all(isinstance(answer, str) for answer in found):
            raise UserError(f"{where}: the answers must be a list of strings")
        question = without_surrogates(question)
        _require_new(question, answers, where)
        answers[question] = [without_surrogates(answer) for answer in found]
    if not any(answers.values()):
        raise UserError(f"{path} holds no answers")
    return answers


def read_training_file(path: Path) -> TrainingFile:
    """Reads a .json file of DPR: a list of questions, perhaps with the ids of their passages.

    The relevant passages are `positive_ctxs`, all of grade 1; the negatives `hard_negative_ctxs`,
    then `negative_ctxs`; their texts are not kept.
    """
    found = TrainingFile({}, {}, {})
    for number, record in enumerate(read_json_items(path)):
        name, where = str(number), f"{path}, question {number}"
        if not isinstance(record, dict) or not isinstance(record.get("question"), str):
            raise UserError(f"{where}: expected an object with a `question`, a string")
        positives, hard, negatives = (
            _context_ids(record.get(field, []), f"{where}, {field}")
            for field in ("positive_ctxs", "hard_negative_ctxs", "negative_ctxs")
        )
        found.queries[name] = without_surrogates(record["question"])
        found.qrels[name] = dict.fromkeys(positives, 1)
        found.negatives[name] = list(dict.fromkeys(hard + negatives))
    if not found.queries:
        raise UserError(f"{path}: expected a list of objects with a `question`")
    return found


def read_triples(path: Path, depth: int) -> tuple[dict[str, set[str]], dict[str, list[str]]]:
    """Reads MS MARCO's triples of ids.

    Args:
      path: query, relevant passage and negative, a triple a line.
      depth: negatives per query to keep, the first ones: the published file has 400 million lines.

    Returns:
      query → its relevant passages, and query → its negatives in their order.
    """
    positives: dict[str, set[str]] = {}
    negatives: dict[str, dict[str, None]] = {}
    for number, line in numbered_lines(path):
        where = f"{path}:{number}"
        ids = split_fields(line, ("query", "relevant passage", "negative"), where)
        if any(len(name.split()) != 1 for name in ids):
            raise UserError(
                f"{where}: expected three ids; triples of texts are not read, "
                "use qidpidtriples.train.full.2.tsv"
            )
        query, positive, negative = map(sys.intern, ids)
        positives.setdefault(query, set()).add(positive)
        listed = negatives.setdefault(query, {})
        if len(listed) < depth:
            listed[negative] = None
    return positives, {query: list(listed) for query, listed in negatives.items()}


def _parse_named(line: str | bytes, where: str) -> dict[str, Any]:
    """Reads an object; an id that is an integer is taken as a string."""
    record = parse_object(line, where)
    for name in _IDS:
        if type(record.get(name)) is int:
            _note_integers(where.rpartition(":")[0])
            record[name] = str(record[name])
    return record


def _first_of(record: Mapping[str, Any], names: Sequence[str], where: str) -> Any:
    for name in names:
        if name in record:
            return record[name]
    raise UserError(f"{where}: the field {names[0]!r} is missing")


@functools.cache  # once a file
def _note_integers(path: str) -> None:
    logger.info("%s: ids that are integers are taken as strings", path)


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


def _require_new(name: str, known: Container[str], where: str) -> None:
    if not name:
        raise UserError(f"{where}: the id is empty")
    require_run_id(name, where)
    if name in known:
        raise UserError(f"{where}: the id {name!r} occurs twice")


def _context_ids(contexts: Any, where: str) -> list[str]:
    """Returns the ids of passages as DPR's files list them: NQ's and TriviaQA's fields differ."""
    if not isinstance(contexts, list) or not all(isinstance(c, dict) for c in contexts):
        raise UserError(f"{where}: expected a list of objects")
    ids = [context.get("passage_id", context.get("psg_id")) for context in contexts]
    if not all(isinstance(name, str | int) for name in ids):
        raise UserError(f"{where}: a passage has no `passage_id` or `psg_id`")
    return [require_run_id(without_surrogates(str(name)), where) for name in ids]
