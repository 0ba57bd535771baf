"""Passages with the same text under several ids, of which judgments may name one."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

from cocondenser_jax.retriever.data.trec import Qrels, Results, first_passages

logger = logging.getLogger(__name__)

DEPTH = 10  # passages of a ranking in which copies are counted

# Of judged queries: id → the DEPTH best passages.
Firsts = Mapping[str, Sequence[str]]
# From the ids of passages to ids and texts: of these that are there, perhaps of others too.
Texts = Callable[[set[str]], Iterable[tuple[str, str]]]


def text_key(text: str) -> int:
    """Returns a number of 64 bits, the same for texts that differ in white space and capitals.

    It is another in each process, and the same for other texts with a probability of 2^-64.
    """
    return hash(" ".join(text.casefold().split()))


def with_copies(
    relevant: Qrels, known: Iterable[tuple[str, str]], passages: Iterable[tuple[str, str]]
) -> Qrels:
    """Adds to the relevant passages of each query those with the same text.

    Args:
      relevant: the relevant passages of each query.
      known: ids and texts of the relevant passages that are there, perhaps of others too.
      passages: ids and texts of all.
    """
    names = {*chain.from_iterable(relevant.values())}
    key_of = {name: text_key(text) for name, text in known if name in names}
    ids_of: dict[int, list[str]] = {key: [] for key in key_of.values()}
    for name, text in passages:
        if (ids := ids_of.get(text_key(text))) is not None:
            ids.append(name)
    expanded = {}
    for query, grades in relevant.items():
        copies = {
            name: grade
            for passage, grade in grades.items()
            if passage in key_of
            for name in ids_of[key_of[passage]]
        }
        expanded[query] = copies | grades
    return expanded


def count_added(relevant: Qrels, expanded: Qrels) -> int:
    """Counts the (query, passage) that `with_copies` added."""
    return sum(map(len, expanded.values())) - sum(map(len, relevant.values()))


def note_firsts(results: Results, qrels: Qrels, firsts: dict[str, Sequence[str]]) -> Results:
    """Yields results, and writes the first passages of judged queries to `firsts`."""
    for query, scores in results:
        if query in qrels:
            firsts[query] = first_passages(scores, DEPTH)
        yield query, scores


def count_copies(rankings: Mapping[str, Firsts], qrels: Qrels, texts: Texts) -> dict[str, int]:
    """Counts, for each ranking, the queries that find copies of a relevant passage.

    A copy is a passage with its text that is not judged itself.

    Args:
      rankings: name → the first passages of the judged queries.
      qrels: the judgments.
      texts: of the passages; those that are not named are not kept.
    """
    named = {name for grades in qrels.values() for name, grade in grades.items() if grade > 0}
    for first in rankings.values():
        named.update(*first.values())
    key_of = {name: text_key(text) for name, text in texts(named) if name in named}

    def has_copy(found: Sequence[str], grades: Mapping[str, int]) -> bool:
        keys = {key_of.get(name) for name, grade in grades.items() if grade > 0} - {None}
        return any(key_of.get(name) in keys for name in found if name not in grades)

    return {
        ranking: sum(has_copy(first.get(query, ()), grades) for query, grades in qrels.items())
        for ranking, first in rankings.items()
    }


def warn_of_copies(rankings: Mapping[str, Firsts], qrels: Qrels, texts: Texts) -> None:
    """Logs in one line what `count_copies` counts, if any; metrics stay as trec_eval's."""
    counts = count_copies(rankings, qrels, texts)
    if found := [f"{n} of {len(qrels)} queries of {name}" for name, n in counts.items() if n]:
        logger.warning(
            "%s find, among their first %d passages, one with the text of a relevant passage that"
            " is not judged itself: it counts as not relevant, as in trec_eval, so that the metrics"
            " are too low (judge copies, or leave them out of the passages)",
            ", ".join(found),
            DEPTH,
        )
