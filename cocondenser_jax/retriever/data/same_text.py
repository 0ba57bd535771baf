"""Passages with the same text under several ids, only some of which may be judged."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from unicodedata import normalize

from cocondenser_jax.retriever.data.trec import DEPTH, Firsts, Qrels, Results, first_passages

logger = logging.getLogger(__name__)

# Maps ids of passages to ids and texts: those that exist, and possibly others.
Texts = Callable[[set[str]], Iterable[tuple[str, str]]]


def text_key(text: str) -> int:
    """Returns a 64-bit hash of a text that ignores white space, case and Unicode's forms.

    It differs between processes. Two other texts have the same hash with a probability of 2^-64.
    """
    return hash(" ".join(normalize("NFKC", text).casefold().split()))


def with_copies(
    relevant: Qrels, known: Iterable[tuple[str, str]], passages: Iterable[tuple[str, str]]
) -> Qrels:
    """Adds to each query's relevant passages the passages with the same text.

    Args:
      relevant: the relevant passages of each query.
      known: ids and texts of the relevant passages that exist, and possibly of others.
      passages: ids and texts of all passages.
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
    """Counts the pairs of query and passage that `with_copies` added."""
    return sum(map(len, expanded.values())) - sum(map(len, relevant.values()))


def note_firsts(results: Results, qrels: Qrels, firsts: dict[str, Sequence[str]]) -> Results:
    """Yields results, and stores the first passages of judged queries in `firsts`."""
    for query, scores in results:
        if query in qrels:
            firsts[query] = first_passages(scores, DEPTH)
        yield query, scores


def count_copies(rankings: Mapping[str, Firsts], qrels: Qrels, texts: Texts) -> dict[str, int]:
    """Counts, for each ranking, the queries that find a copy of a relevant passage.

    A copy is an unjudged passage with the text of a relevant one.

    Args:
      rankings: the first passages of the judged queries, by the ranking's name.
      qrels: the judgments.
      texts: returns texts by id; those of other ids are ignored.
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
    """Logs the counts of `count_copies`, if any, in one line; metrics remain trec_eval's."""
    counts = count_copies(rankings, qrels, texts)
    if found := [f"{n} of {len(qrels)} queries of {name}" for name, n in counts.items() if n]:
        logger.warning(
            "%s have, among their first %d passages, an unjudged copy of a relevant passage: it"
            " counts as not relevant, as in trec_eval, so the metrics are too low (judge copies, or"
            " remove them from the corpus)",
            ", ".join(found),
            DEPTH,
        )
