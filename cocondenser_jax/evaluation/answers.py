"""Top-k answer accuracy of open-domain question answering: do the passages hold an answer?"""

import ast
import csv
import functools
import json
import math
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import regex as re  # Python's own re knows no \p{...}, and cannot be stopped

from cocondenser_jax.collection.trec import Run, ranked
from cocondenser_jax.errors import UserError
from cocondenser_jax.evaluation.ranking import Figures, mean_over_queries, require_results
from cocondenser_jax.files import numbered_lines, without_surrogates

DEFAULT_TOP_K = (1, 5, 20, 100)

# Words of letters, digits and marks, or one other character that is neither space nor control.
_TOKEN = re.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")
# Patterns of published questions take microseconds; one that backtracks without end is an error,
# so that no figure depends on how fast a machine is.
_PATTERN_SECONDS = 10.0


def read_answers(path: Path) -> dict[str, list[str]]:
    """Reads the answers to questions: id → answers.

    A .csv file is in DPR's layout: question, tab, list of answers as Python or JSON writes it. The
    id of a question is the number of its line, from 0. Any other file has one JSON object a line:
    `_id` (or `id`, `query_id`) and `answers` (or `answer`), a list of strings.

    Args:
      path: the file.

    Raises:
      UserError: with file and line, for a missing file, a malformed line, or an id that occurs
        twice; for a file without answers.
    """
    answers: dict[str, list[str]] = {}
    for number, line in numbered_lines(path):
        where = f"{path}:{number}"
        if path.suffix == ".csv":
            question, found = str(number - 1), _parse_csv(line, where)
        else:
            question, found = _parse_json(line, where)
        if question in answers:
            raise UserError(f"{where}: the id {question!r} occurs twice")
        answers[question] = found
    if not any(answers.values()):
        raise UserError(f"{path} holds no answers")
    return answers


def answer_accuracy(
    run: Run,
    answers: Mapping[str, Sequence[str]],
    passages: Mapping[str, str],
    top_k: Sequence[int] = DEFAULT_TOP_K,
    regex: bool = False,
) -> Figures:
    """Computes the share of questions with an answer among their first k passages.

    This is the top-k retrieval accuracy of Karpukhin et al., *Dense passage retrieval for
    open-domain question answering* (arXiv 2004.04906). It is averaged over all questions that have
    answers; one without results is a miss.

    Args:
      run: the results.
      answers: question → its answers.
      passages: passage → text, without the title, of all `first_passages` to max(top_k).
      top_k: the numbers of passages, each at least 1.
      regex: whether answers are regular expressions, as in CuratedTREC.

    Returns:
      Accuracy@k for each k; a question's own value is 0 or 1.

    Raises:
      UserError: if no question has answers, for a run of other questions, or for a pattern that is
        not one or takes too long.
    """
    asked = {question: found for question, found in answers.items() if found}
    require_results(run, asked, "answered")
    first = first_passages(run, asked, max(top_k))
    prepare = functools.cache(lambda passage: _prepare(passages[passage], regex))
    per_query = {}
    for question, found in asked.items():
        holds = _answer_test(found, regex)
        ranks = (
            rank
            for rank, passage in enumerate(first.get(question, []), start=1)
            if holds(prepare(passage))
        )
        first_hit = next(ranks, math.inf)
        per_query[question] = {f"Accuracy@{k}": float(first_hit <= k) for k in top_k}
    return {"mean": mean_over_queries(per_query), "per_query": per_query}


def first_passages(run: Run, questions: Iterable[str], depth: int) -> dict[str, list[str]]:
    """Lists the first `depth` passages of those questions that have results, best first."""
    return {
        question: [passage for passage, _ in ranked(run[question])[:depth]]
        for question in questions
        if run.get(question)
    }


def make_matcher(answers: Sequence[str], regex: bool = False) -> Callable[[str], bool]:
    """Returns the test whether a passage holds one of the answers.

    Both are brought to Unicode's NFD form. An answer is held where its tokens follow one another
    among those of the passage, in small letters; a token is a sequence of letters, digits and
    marks, or a single other character, and white space is none. An answer without a token is held
    nowhere. A regular expression is searched for as it is, whatever the case.

    Args:
      answers: of one question.
      regex: whether they are regular expressions.

    Raises:
      UserError: for an answer that is no regular expression; from the test, for one that takes too
        long.
    """
    holds = _answer_test(answers, regex)
    return lambda passage: holds(_prepare(passage, regex))


def _prepare(text: str, regex: bool) -> str:
    """Returns the text in the form in which answers are looked for."""
    normal = unicodedata.normalize("NFD", text)
    # Tokens hold no space: between spaces, they are found as a substring and only as a whole.
    return normal if regex else f" {' '.join(_TOKEN.findall(normal))} ".lower()


def _answer_test(answers: Sequence[str], regex: bool) -> Callable[[str], bool]:
    """Returns the test whether a prepared text holds one of the answers."""
    prepared = [_prepare(answer, regex) for answer in answers]
    if regex:
        patterns = [_compile(answer) for answer in prepared]
        return lambda text: any(_search(pattern, text) for pattern in patterns)
    tokens = [answer for answer in prepared if answer.strip()]
    return lambda text: any(answer in text for answer in tokens)


def _compile(answer: str) -> re.Pattern[str]:
    try:
        return re.compile(answer, re.IGNORECASE | re.MULTILINE)
    except re.error as error:
        raise UserError(f"the answer {answer!r} is no regular expression: {error}") from None


def _search(pattern: re.Pattern[str], text: str) -> bool:
    try:
        return pattern.search(text, timeout=_PATTERN_SECONDS) is not None
    except TimeoutError:
        raise UserError(
            f"the answer {pattern.pattern!r} searches one passage for more than "
            f"{_PATTERN_SECONDS:.0f} s: write it without nested repetition"
        ) from None


def _parse_json(line: str, where: str) -> tuple[str, list[str]]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not valid JSON: {error}") from None
    if not isinstance(record, dict):
        raise UserError(f"{where}: expected a JSON object")
    question = _first_of(record, ("_id", "id", "query_id"), where)
    if not isinstance(question, str):
        raise UserError(f"{where}: the id must be a string")
    return without_surrogates(question), _require_strings(
        _first_of(record, ("answers", "answer"), where), where
    )


def _first_of(record: Mapping[str, Any], names: Sequence[str], where: str) -> Any:
    for name in names:
        if name in record:
            return record[name]
    raise UserError(f"{where}: the field {names[0]!r} is missing")


def _parse_csv(line: str, where: str) -> list[str]:
    try:
        fields = next(csv.reader([line], delimiter="\t"))
    except csv.Error as error:
        raise UserError(f"{where}: {error}") from None
    if len(fields) != 2:
        raise UserError(
            f"{where}: expected 2 tab-separated fields (question, list of answers), "
            f"found {len(fields)}"
        )
    return _require_strings(_parse_list(fields[1]), where)


def _parse_list(text: str) -> Any:
    """Reads a list as JSON or Python writes it; None for what is neither."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the backslashes that patterns hold
            return ast.literal_eval(text)
    except (MemoryError, RecursionError, SyntaxError, TypeError, ValueError):
        return None


def _require_strings(value: Any, where: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(answer, str) for answer in value):
        raise UserError(f"{where}: the answers must be a list of strings")
    return [without_surrogates(answer) for answer in value]
