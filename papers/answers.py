"""Answers of open-domain questions: the accuracy of a run, and negatives without an answer.

python -m papers.answers evaluate --run=test.trec --answers=data/answers.jsonl --corpus=data
python -m papers.answers drop --run=pool.trec --answers=data/answers.jsonl --corpus=data \
  --out=negatives.trec

evaluate prints the fraction of questions with an answer among their first k passages, the top-k
retrieval accuracy of DPR (Karpukhin et al., arXiv 2004.04906); --json_out also has each question's.
drop writes a run without the passages that hold an answer to their question.

A line of a file of answers is a JSON object: `_id` of the question, and `answers`, a list.
"""

import argparse
import functools
import math
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import regex as re  # Python's own re has no \p{...}

from cocondenser_jax.cli.output import print_metrics
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import numbered_lines, parse_object, write_json
from cocondenser_jax.retriever.data.folder import read_named
from cocondenser_jax.retriever.data.ranking import (
    Metrics,
    check_results,
    mean_over_queries,
    warn_of_cutoffs,
)
from cocondenser_jax.retriever.data.trec import Run, first_passages, read_run, write_run
from papers.figures.output import run_script, whole_numbers

# Words of letters, digits and marks, or one other character that is neither space nor control.
_TOKEN = re.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")


def read_answers(path: Path) -> dict[str, list[str]]:
    """Reads the answers to questions: id → answers."""
    answers: dict[str, list[str]] = {}
    for number, line in numbered_lines(path):
        where = f"{path}:{number}"
        record = parse_object(line, where)
        texts = record.get("answers")
        if not isinstance(texts, list) or not all(isinstance(answer, str) for answer in texts):
            raise UserError(f"{where}: expected `answers`, a list of strings")
        name = str(record.get("_id", ""))
        if not name or name in answers:
            raise UserError(f"{where}: expected `_id`, which no other line has")
        answers[name] = texts
    if not any(answers.values()):
        raise UserError(f"{path} holds no answers")
    return answers


def answer_accuracy(
    run: Run,
    answers: Mapping[str, Sequence[str]],
    passages: Mapping[str, str],
    top_k: Sequence[int] = (1, 5, 20, 100),
) -> Metrics:
    """Computes the fraction of questions with an answer among their first k passages.

    The mean is over all questions that have answers; one without results is a miss.

    Args:
      run: the results.
      answers: question → its answers.
      passages: passage → text, without the title, of all that the run ranks among max(top_k).
      top_k: the values of k, each at least 1.

    Returns:
      Accuracy@k for each k; a question's own value is 0 or 1.
    """
    answered = {question: texts for question, texts in answers.items() if texts}
    check_results(run, answered, "answered", name="the run")
    warn_of_cutoffs("the run", run, {f"Accuracy@{k}": k for k in top_k})
    text_of = functools.cache(lambda passage: prepare(passages[passage]))
    per_query = {}
    for question, texts in answered.items():
        holds = make_matcher(texts)
        first = first_passages(run.get(question, {}), max(top_k))
        ranks = (rank for rank, name in enumerate(first, start=1) if holds(text_of(name)))
        first_hit = next(ranks, math.inf)
        per_query[question] = {f"Accuracy@{k}": float(first_hit <= k) for k in top_k}
    return {"mean": mean_over_queries(per_query), "per_query": per_query}


def without_answers(
    run: Run, answers: Mapping[str, Sequence[str]], passages: Mapping[str, str]
) -> Run:
    """Returns a run without the passages that contain an answer to their question."""
    text_of = functools.cache(lambda passage: prepare(passages[passage]))
    pool: Run = {}
    for question, scores in run.items():
        holds = make_matcher(answers.get(question, []))
        pool[question] = {p: score for p, score in scores.items() if not holds(text_of(p))}
    return pool


def make_matcher(answers: Sequence[str]) -> Callable[[str], bool]:
    """Returns a function that tells whether a passage, from `prepare`, contains an answer.

    It does if its tokens contain those of the answer contiguously, both in Unicode's NFD form and
    in lower case. A token is a sequence of letters, digits and marks, or any other single character
    that is neither white space nor control. An answer without tokens is never found.
    """
    tokens = [answer for answer in map(prepare, answers) if answer.strip()]
    return lambda text: any(answer in text for answer in tokens)


def prepare(text: str) -> str:
    """Normalizes a text to the form in which answers are searched for."""
    normal = unicodedata.normalize("NFD", text)
    # Tokens contain no spaces, so a substring between spaces matches only whole tokens.
    return f" {' '.join(_TOKEN.findall(normal))} ".lower()


def _read_texts(corpus: Path, source: Path, run: Mapping[str, Sequence[str]]) -> dict[str, str]:
    return {name: passage.text for name, passage in read_named(corpus, (source, run)).items()}


def _evaluate(given: argparse.Namespace) -> None:
    answers = read_answers(given.answers)
    run = read_run(given.run)
    best = {name: first_passages(run.get(name, {}), max(given.top_k)) for name in answers}
    texts = _read_texts(given.corpus, given.run, best)
    result = answer_accuracy(run, answers, texts, given.top_k)
    print_metrics(result["mean"], None)
    if given.json_out:
        write_json(given.json_out, result)


def _drop(given: argparse.Namespace) -> None:
    answers = read_answers(given.answers)
    run = read_run(given.run)
    texts = _read_texts(given.corpus, given.run, {name: [*scores] for name, scores in run.items()})
    write_run(given.out, without_answers(run, answers, texts), tag="negatives")


def make_parser() -> argparse.ArgumentParser:
    """Declares the flags."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="answers", description=__doc__, formatter_class=plain, allow_abbrev=False
    )
    commands = parser.add_subparsers(required=True)
    for name, function in (("evaluate", _evaluate), ("drop", _drop)):
        command = commands.add_parser(name, allow_abbrev=False)
        command.set_defaults(function=function)
        command.add_argument("--run", type=Path, required=True, help="TREC run")
        command.add_argument("--answers", type=Path, required=True, help="answers to the questions")
        passages = "the passages, a data folder or its file of passages"
        command.add_argument("--corpus", type=Path, required=True, help=passages)
        if function is _drop:
            command.add_argument("--out", type=Path, required=True, help="TREC run to write")
            continue
        depths = "values of k, separated by commas (default: 1,5,20,100)"
        command.add_argument("--top_k", type=whole_numbers, default=[1, 5, 20, 100], help=depths)
        command.add_argument("--json_out", type=Path, help="also write the results to this file")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the script."""
    run_script(make_parser(), lambda given: given.function(given), argv)


if __name__ == "__main__":
    main()
