"""Passages with the same text under several ids, of which judgments may name one."""

from collections.abc import Iterable, Mapping

from cocondenser_jax.retriever.data.trec import Qrels


def text_key(text: str) -> int:
    """Returns a number of 64 bits, the same for texts that differ in white space and capitals.

    It is another in each process, and the same for other texts with a probability of 2^-64.
    """
    return hash(" ".join(text.casefold().split()))


def with_copies(
    relevant: Qrels, key_of: Mapping[str, int], passages: Iterable[tuple[str, str]]
) -> Qrels:
    """Adds to the relevant passages of each query those with the same text.

    Args:
      relevant: the relevant passages of each query.
      key_of: of relevant passages, those that are there: `text_key` of their texts.
      passages: ids and texts of all.
    """
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
