"""Queries that are passages of the collection, under the same ids, as in ArguAna and Quora.

Such a query finds itself, which is no answer: BEIR (Thakur et al., arXiv 2104.08663) leaves out the
passage with a query's id. In many collections, queries and passages are merely numbered alike, so
the user says it, by `--ignore_identical_ids`; where ids coincide and nobody has, one line tells it.
"""

import logging
from collections.abc import Collection, Mapping
from itertools import islice

from cocondenser_jax.errors import UserError, first_three
from cocondenser_jax.retriever.data.trec import Qrels, Results, Run

logger = logging.getLogger(__name__)


def drop_identical_ids(run: Run, depth: int | None = None) -> Run:
    """Drops the passage that has its query's id, and keeps the first `depth` of the others.

    A run's results are best first.
    """
    return {query: without_identical_id(query, scores, depth) for query, scores in run.items()}


def without_identical_id(
    query: str, scores: Mapping[str, float], depth: int | None
) -> dict[str, float]:
    """Returns the results of one query as `drop_identical_ids` keeps them."""
    return dict(islice(((p, s) for p, s in scores.items() if p != query), depth))


def warn_of_identical_ids(run: Mapping[str, Collection[str]], qrels: Qrels) -> None:
    """Logs how many queries find their own id and are not judged to, if any.

    `run` is query → the passages that it has found.
    """
    answers = {*own_answers(qrels)}
    n_own = sum(query in found and query not in answers for query, found in run.items())
    if n_own:
        logger.warning(
            "%d of %d queries have a result with their own id: where queries are passages, as in "
            "ArguAna and Quora, leave it out with --ignore_identical_ids",
            n_own,
            len(run),
        )


def watch_identical_ids(results: Results, qrels: Qrels) -> Results:
    """Yields results; does what `warn_of_identical_ids` does after the last."""
    found: dict[str, Collection[str]] = {}  # only what has the query's id
    for query, scores in results:
        found[query] = [query] if query in scores else ()
        yield query, scores
    warn_of_identical_ids(found, qrels)


def own_answers(qrels: Qrels) -> list[str]:
    """Lists the queries that are judged to find the passage of their own id."""
    return [query for query, grades in qrels.items() if grades.get(query, 0) > 0]


def require_other_answers(qrels: Qrels) -> None:
    """Raises a UserError if a query is judged to find the passage of its own id."""
    if own := own_answers(qrels):
        raise UserError(
            f"ignore_identical_ids: {len(own)} queries have a relevant passage with their "
            f"own id ({first_three(own)}), so their ids say nothing about each other"
        )
