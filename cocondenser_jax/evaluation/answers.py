"""Top-k answer accuracy of open-domain question answering."""

import functools
import math
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import regex as re  # Python's own re has no \p{...}

from cocondenser_jax.collection.folder import read_named
from cocondenser_jax.collection.layouts import read_answers
from cocondenser_jax.collection.trec import Run, first_passages, read_run
from cocondenser_jax.evaluation.ranking import Metrics, check_results, mean_over_queries

# Words of letters, digits and marks, or one other character that is neither space nor control.
_TOKEN = re.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")


def evaluate_answers(
    run_files: Sequence[Path],
    answers_file: Path,
    corpus: Path,
    top_k: Sequence[int],
) -> list[Metrics]:
    """Computes `answer_accuracy` of each run, in the passages of a corpus."""
    answers = read_answers(answers_file)
    depth = max(top_k)
    runs = [read_run(file) for file in run_files]
    best = [{name: first_passages(run.get(name, {}), depth) for name in answers} for run in runs]
    passages = read_named(corpus, *zip(run_files, best, strict=True))
    texts = {name: passage.text for name, passage in passages.items()}
    return [answer_accuracy(run, answers, texts, top_k) for run in runs]


def answer_accuracy(
    run: Run,
    answers: Mapping[str, Sequence[str]],
    passages: Mapping[str, str],
    top_k: Sequence[int] = (1, 5, 20, 100),
) -> Metrics:
    """Computes the share of questions with an answer among their first k passages.

    This is the top-k retrieval accuracy of arXiv 2004.04906, averaged over all questions that have
    answers; one without results is a miss.

    Args:
      run: the results.
      answers: question → its answers.
      passages: passage → text, without the title, of all that the run ranks among max(top_k).
      top_k: the values of k, each at least 1.

    Returns:
      Accuracy@k for each k; a question's own value is 0 or 1.
    """
    asked = {question: found for question, found in answers.items() if found}
    check_results(run, asked, "answered", {f"Accuracy@{k}": k for k in top_k})
    text_of = functools.cache(lambda passage: prepare(passages[passage]))
    per_query = {}
    for question, found in asked.items():
        holds = make_matcher(found)
        first = first_passages(run.get(question, {}), max(top_k))
        ranks = (rank for rank, name in enumerate(first, start=1) if holds(text_of(name)))
        first_hit = next(ranks, math.inf)
        per_query[question] = {f"Accuracy@{k}": float(first_hit <= k) for k in top_k}
    return {"mean": mean_over_queries(per_query), "per_query": per_query}


def make_matcher(answers: Sequence[str]) -> Callable[[str], bool]:
    """Makes a test whether a passage, as `prepare` returns it, holds one of the answers.

    It does if its tokens contain the answer's in order and without a gap, both in Unicode's NFD
    form and in lower case. A token is a sequence of letters, digits and marks, or any other single
    character that is neither white space nor control. An answer without a token is never found.
    """
    tokens = [answer for answer in map(prepare, answers) if answer.strip()]
    return lambda text: any(answer in text for answer in tokens)


def prepare(text: str) -> str:
    """Normalizes a text to the form in which answers are searched for."""
    normal = unicodedata.normalize("NFD", text)
    # Tokens hold no space: between spaces, a substring matches whole tokens only.
    return f" {' '.join(_TOKEN.findall(normal))} ".lower()
