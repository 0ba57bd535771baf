"""Changes from one ranking to another, by query: gains, losses and moved passages."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cocondenser_jax.errors import shortened
from cocondenser_jax.retriever.compare.rankings import Ranking
from cocondenser_jax.retriever.data.folder import passage_text, read_named
from cocondenser_jax.retriever.data.layouts import Passage
from cocondenser_jax.retriever.data.trec import Qrels

N_SHOWN = 20  # queries with the largest gains, and as many with the largest losses
_CHARACTERS = 160  # shown of a text


class Judged(NamedTuple):
    """The metric and data of an evaluation."""

    metric: str
    qrels: Qrels
    queries: Mapping[str, str]  # id → text
    corpus: str | Path  # of the passages, see `read_corpus`


class Move(NamedTuple):
    """A passage that enters or leaves a query's first ones, or is judged and moves among them."""

    before: int | None  # rank from 1; None: not among the first
    after: int | None
    passage: str  # its id
    words: str  # the start of its title and text
    grade: int | None  # None: not judged


class Change(NamedTuple):
    """The change for one query."""

    query: str  # its id
    words: str
    before: float  # the value of the metric
    after: float
    moves: list[Move]  # best rank first

    @property
    def gain(self) -> float:
        """The difference in the metric."""
        return self.after - self.before


class Changes(NamedTuple):
    """The changes from one ranking to another."""

    metric: str
    before: str  # names of the rankings
    after: str
    gains_Q: np.ndarray  # of all queries, ascending
    gained: list[Change]  # queries with the largest gains, largest first
    lost: list[Change]  # queries with the largest losses, largest first


def find_changes(before: Ranking, after: Ranking, judged: Judged) -> Changes:
    """Compares two rankings of judged queries, query by query."""
    metric = judged.metric
    values = {
        query: (before.metrics["per_query"][query][metric], each[metric])
        for query, each in after.metrics["per_query"].items()
    }
    gains = {query: new - old for query, (old, new) in values.items()}
    rising = sorted(gains, key=gains.__getitem__)
    lost = [query for query in rising[:N_SHOWN] if gains[query] < 0]
    gained = [query for query in rising[::-1][:N_SHOWN] if gains[query] > 0]
    shown = gained + lost
    first = [{query: each.first[query] for query in shown} for each in (before, after)]
    passages = read_named(judged.corpus, (before.run, first[0]), (after.run, first[1]))

    def describe(query: str) -> Change:
        old, new = (found[query] for found in first)
        value_before, value_after = values[query]
        return Change(
            query=query,
            words=shortened(judged.queries[query], _CHARACTERS),
            before=value_before,
            after=value_after,
            moves=_moves(old, new, passages, judged.qrels[query]),
        )

    return Changes(
        metric=metric,
        before=before.name,
        after=after.name,
        gains_Q=np.array([gains[query] for query in rising]),
        gained=[describe(query) for query in gained],
        lost=[describe(query) for query in lost],
    )


def _moves(
    old: Sequence[str],
    new: Sequence[str],
    passages: Mapping[str, Passage],
    grades: Mapping[str, int],
) -> list[Move]:
    """Returns the differences between a query's first passages, best rank first."""
    ranks = [{name: rank for rank, name in enumerate(names, start=1)} for names in (old, new)]
    moves = []
    for name in dict.fromkeys([*new, *old]):
        before, after = (of.get(name) for of in ranks)
        if before == after or (before and after and name not in grades):
            continue
        move = Move(
            before=before,
            after=after,
            passage=name,
            words=shortened(passage_text(passages[name]), _CHARACTERS),
            grade=grades.get(name),
        )
        moves.append(move)
    return sorted(moves, key=lambda move: min(filter(None, (move.before, move.after))))
