"""Queries that are passages of the collection, under the same ids, as in ArguAna and Quora.

Such a query finds itself, which is not an answer: BEIR (Thakur et al., arXiv 2104.08663) leaves out
the passage with a query's id. In many collections, equal ids are only equal numbers, so users must
ask for this by `--ignore_identical_ids`; otherwise, a warning reports equal ids.
"""

import logging
from collections.abc import Collection, Iterable, Mapping
from itertools import islice

from cocondenser_jax.errors import UserError, first_three
from cocondenser_jax.retriever.data.trec import Qrels, Results, Run

logger = logging.getLogger(__name__)


def drop_identical_ids(run: Run) -> Run:
    """Drops the passage with its query's id."""
    return {query: without_identical_id(query, scores) for query, scores in run.items()}


def without_identical_id(
    query: str, scores: Mapping[str, float], depth: int | None = None
) -> dict[str, float]:
    """Returns the first `depth` results of one query, best first, but for that with its id."""
    return dict(islice(((p, s) for p, s in scores.items() if p != query), depth))


def warn_of_identical_ids(rankings: Mapping[str, Mapping[str, bool]], qrels: Qrels) -> None:
    """Logs, in one line, how many queries of each ranking find the passage with their own id.

    Args:
      rankings: for each ranking and query, whether it finds that passage; see `finds_itself`.
      qrels: the judgments; a query with that passage as a relevant one is not counted.
    """
    answers = {*own_answers(qrels)}
    own = {
        name: sum(finds and query not in answers for query, finds in found.items())
        for name, found in rankings.items()
    }
    if counts := [(name, n) for name, n in own.items() if n]:
        logger.warning(
            "%s have a result with their own id: if queries are passages, as in ArguAna and Quora,"
            " leave it out with --ignore_identical_ids",
            ", ".join(f"{n} of {len(rankings[name])} queries of {name}" for name, n in counts),
        )


def finds_itself(run: Mapping[str, Collection[str]], queries: Iterable[str]) -> dict[str, bool]:
    """Returns, for each query, whether a run has the passage with its id."""
    return {query: query in run.get(query, ()) for query in queries}


def watch_identical_ids(results: Results, found: dict[str, bool]) -> Results:
    """Yields results, and stores in `found` whether each query finds the passage with its id."""
    for query, scores in results:
        found[query] = query in scores
        yield query, scores


def own_answers(qrels: Qrels) -> list[str]:
    """Lists the queries for which the passage with their own id is judged relevant."""
    return [query for query, grades in qrels.items() if grades.get(query, 0) > 0]


def require_other_answers(qrels: Qrels) -> None:
    """Raises a UserError if the passage with a query's own id is judged relevant to it."""
    if own := own_answers(qrels):
        raise UserError(
            f"ignore_identical_ids: {len(own)} queries have a relevant passage with their "
            f"own id ({first_three(own)}), so their ids say nothing about each other"
        )
