"""Queries that are passages of the collection, under the same ids, as in ArguAna and Quora.

Such a query finds itself, which is no answer: BEIR (Thakur et al., arXiv 2104.08663) leaves out the
passage with a query's id. In many collections, queries and passages are merely numbered alike. So
unless the user says it, a passage counts as the query only if it has the query's words, and is not
judged relevant to it.
"""

import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice

from cocondenser_jax.errors import UserError, first_three
from cocondenser_jax.retriever.data.trec import Qrels, Results, Run

logger = logging.getLogger(__name__)

_WORD = re.compile(r"\w+")


def is_same_text(query: str, passage: str) -> bool:
    """Returns whether a passage is a query: all of it, its beginning (a title) or its end (a text).

    Args:
      query: its text.
      passage: its title and text as `folder.passage_text` joins them. Only words are compared.
    """
    words = _WORD.findall(query.casefold())
    of_passage = _WORD.findall(passage.casefold())
    return bool(words) and words in (of_passage[: len(words)], of_passage[-len(words) :])


def find_own_passages(
    queries: Mapping[str, str], passages: Mapping[str, str], qrels: Qrels, what: str
) -> set[str]:
    """Finds the queries that are passages, and not judged to find themselves.

    Logs how many there are, if any; the line begins with `what`.

    Args:
      queries: id → text, of all judged ones.
      passages: id → text, as in `is_same_text`.
      qrels: the judgments.
      what: names the collection.
    """
    own = {
        query
        for query, grades in qrels.items()
        if grades.get(query, 0) <= 0
        and (passage := passages.get(query)) is not None
        and is_same_text(queries[query], passage)
    }
    if own:
        logger.info(
            "%s: %d of %d queries are passages with the same id, which are left out",
            what,
            len(own),
            len(qrels),
        )
    return own


def with_own(qrels: Qrels, own: Collection[str]) -> Qrels:
    """Returns judgments in which a query that is a passage has itself: it is no other passage."""
    return {q: grades | ({q: 1} if q in own else {}) for q, grades in qrels.items()}


def likely_own_passages(run: Run, queries: Collection[str]) -> set[str]:
    """Finds the queries that seem to be passages, where no texts are known, by what they find.

    The passage with a query's id is then the best result of most queries that have it in theirs.
    """
    having = {query for query in queries if query in run.get(query, {})}
    n_first = sum(run[query][query] == max(run[query].values()) for query in having)
    return having if 2 * n_first > len(having) else set()


def warn_of_own_results(run: Mapping[str, Collection[str]], own: Collection[str]) -> None:
    """Logs how many queries find themselves, if any.

    Args:
      run: query → the passages that it has found.
      own: the queries that are passages.
    """
    n_own = sum(query in run.get(query, ()) for query in own)
    if n_own:
        logger.warning(
            "%d of %d queries have a result with their own id: where queries are passages, as in "
            "ArguAna and Quora, leave it out with --ignore_identical_ids",
            n_own,
            len(run),
        )


def watch_own_results(
    results: Results, find_own: Callable[[Sequence[str]], Collection[str]], qrels: Qrels
) -> Results:
    """Yields results; does what `warn_of_own_results` does after the last.

    Args:
      results: of each query.
      find_own: gets queries that have a result with their own id, and returns those of them that
        are passages.
      qrels: the judgments; a query that is judged to find its own id is not among them.
    """
    answers = {*own_answers(qrels)}
    found: dict[str, Sequence[str]] = {}  # only what has the query's id
    for query, scores in results:
        found[query] = [query] if query in scores and query not in answers else ()
        yield query, scores
    warn_of_own_results(found, find_own([query for query, own in found.items() if own]))


def drop_identical_ids(run: Run, depth: int | None = None) -> Run:
    """Drops the passage that has its query's id, and keeps the first `depth` of the others.

    BEIR's rule, for a user who says that queries are passages. A run's results are best first.
    """
    return {query: without_own(query, scores, depth) for query, scores in run.items()}


def without_own(
    query: str, scores: Mapping[str, float], depth: int | None = None
) -> dict[str, float]:
    """Returns the results of one query as `drop_identical_ids` keeps them."""
    return dict(islice(((p, s) for p, s in scores.items() if p != query), depth))


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
