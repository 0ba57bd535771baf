"""Overlap of rankings without judgments, and the queries on which they differ most."""

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from cocondenser_jax.errors import shortened
from cocondenser_jax.retriever.compare.rankings import Ranking, vectors_cell
from cocondenser_jax.retriever.data.folder import passage_text, read_named
from cocondenser_jax.retriever.data.trec import Firsts

_CHARACTERS = 160  # shown of a text


class Found(NamedTuple):
    """A passage among the first ones of at least one ranking."""

    ranks: list[int | None]  # in each ranking, from 1; None: not among the first
    passage: str  # its id
    words: str  # the start of its title and text


class Differing(NamedTuple):
    """The first passages of all rankings for a query."""

    query: str  # its id
    words: str
    common: float  # see `mean_common`
    found: list[Found]  # best rank first


class Differences(NamedTuple):
    """The overlap of rankings."""

    table: list[list[str]]  # the header, then a row for each ranking
    in_common: list[list[float | None]]  # of each ranking with each other, see `_in_common`
    n_queries: int
    queries: list[Differing]  # the queries to show, in their order


def common_share(first: Sequence[str], other: Sequence[str]) -> float | None:
    """Returns the share of passages that two lists have in common; None if one list is empty.

    It is a share of the longer list, since BM25 may find fewer than ten passages.
    """
    if not first or not other:
        return None
    return len({*first}.intersection(other)) / max(len(first), len(other))


def mean_common(rankings: Sequence[Firsts], query: str) -> float:
    """Returns the mean of `common_share` over all pairs of rankings; 1 if no pair has a value."""
    firsts = [ranking.get(query, ()) for ranking in rankings]
    shares = [common_share(*pair) for pair in combinations(firsts, 2)]
    return fmean([share for share in shares if share is not None] or [1.0])


def most_different(rankings: Sequence[Firsts], n: int) -> list[str]:
    """Returns the `n` queries with the smallest `mean_common`, smallest first."""
    queries = dict.fromkeys(query for ranking in rankings for query in ranking)
    return sorted(queries, key=lambda query: mean_common(rankings, query))[:n]


def find_differences(
    rankings: Sequence[Ranking],
    queries: Mapping[str, str],
    shown: Collection[str],
    corpus: str | Path,
) -> Differences:
    """Compares rankings without judgments.

    Args:
      rankings: rankings of the same queries.
      queries: id → text, of all ranked queries.
      shown: ids of the queries to show.
      corpus: the passages, see `read_corpus`.
    """
    firsts = [ranking.first for ranking in rankings]
    named = [
        (ranking.run, {query: ranking.first.get(query, ()) for query in shown})
        for ranking in rankings
    ]
    passages = read_named(corpus, *named)
    differing = []
    for query in shown:
        ranks: dict[str, list[int | None]] = {}
        for number, first in enumerate(firsts):
            for rank, name in enumerate(first.get(query, ()), start=1):
                ranks.setdefault(name, [None] * len(firsts))[number] = rank
        found = [
            Found(of_each, name, shortened(passage_text(passages[name]), _CHARACTERS))
            for name, of_each in ranks.items()
        ]
        found.sort(key=lambda each: min(filter(None, each.ranks)))
        words = shortened(queries[query], _CHARACTERS)
        differing.append(Differing(query, words, mean_common(firsts, query), found))
    shares = _in_common(rankings, list(queries))
    return Differences(_table(rankings, shares), shares, len(queries), differing)


def _in_common(rankings: Sequence[Ranking], queries: Sequence[str]) -> list[list[float | None]]:
    """Returns the mean `common_share` of each pair of rankings, over queries with a value."""
    rows = []
    for ranking in rankings:
        row = []
        for other in rankings:
            shares = [
                common_share(ranking.first.get(query, ()), other.first.get(query, ()))
                for query in queries
            ]
            found = [share for share in shares if share is not None]
            row.append(fmean(found) if found else None)
        rows.append(row)
    return rows


def _table(
    rankings: Sequence[Ranking], in_common: Sequence[Sequence[float | None]]
) -> list[list[str]]:
    """Returns the cells of a table: each ranking's number, overlap with each other, and cost."""
    numbers = [str(number) for number in range(1, len(rankings) + 1)]
    table = [["overlap@10 with", *numbers, "vectors", "seconds"]]
    for number, ranking, shares in zip(numbers, rankings, in_common, strict=True):
        cells = [
            "" if other == number or share is None else f"{share:.2f}"
            for other, share in zip(numbers, shares, strict=True)
        ]
        cost = [vectors_cell(ranking.vectors), f"{ranking.seconds:,.0f}"]
        table.append([f"{number} {ranking.name}", *cells, *cost])
    return table
