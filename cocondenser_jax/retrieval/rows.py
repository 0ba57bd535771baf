"""Training rows: (query, relevant passage) pairs, the negatives drawn for them, what is known."""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import datasets
import numpy as np
import scipy.sparse

from cocondenser_jax.evaluation import trec


class Known(NamedTuple):
    """What judgments and a teacher say of queries and passages, by numbers of their own."""

    queries: dict[str, int]
    passages: dict[str, int]  # from 1; a passage that is not here has number 0
    relevant: scipy.sparse.csr_array  # of bool, (queries, passages + 1)
    teacher: scipy.sparse.csr_array | None = None  # a cross-encoder's scores, the same shape


def to_known(qrels: trec.Qrels, teacher: trec.Run | None = None) -> Known:
    """Numbers the queries of the judgments, and the passages that anything is known of.

    Args:
      qrels: the judgments.
      teacher: scores of the same queries.
    """
    relevant = {
        query: {passage: 1.0 for passage, grade in grades.items() if grade > 0}
        for query, grades in qrels.items()
    }
    scores = {query: teacher[query] for query in qrels} if teacher else {}
    queries = {query: i for i, query in enumerate(qrels)}
    named = dict.fromkeys(p for table in (relevant, scores) for row in table.values() for p in row)
    passages = {passage: i for i, passage in enumerate(named, start=1)}

    def to_matrix(table: Mapping[str, Mapping[str, float]]) -> scipy.sparse.csr_array:
        cells = [(queries[q], passages[p], v) for q, row in table.items() for p, v in row.items()]
        rows, columns, values = zip(*cells, strict=True)
        shape = len(queries), len(passages) + 1
        return scipy.sparse.csr_array((np.array(values), (rows, columns)), shape=shape)

    return Known(
        queries,
        passages,
        to_matrix(relevant).astype(bool),
        to_matrix(scores) if teacher else None,
    )


def training_pairs(qrels: trec.Qrels) -> datasets.Dataset:
    """Lists every relevant judgment as one row (`query_id`, `positive_id`)."""
    rows = [
        (query, passage)
        for query, grades in qrels.items()
        for passage, grade in grades.items()
        if grade > 0
    ]
    queries, passages = zip(*rows, strict=True)
    return datasets.Dataset.from_dict({"query_id": list(queries), "positive_id": list(passages)})


def fill_rows(
    rows: Mapping[str, Sequence[str]],
    *,
    queries: Mapping[str, str],
    passages: Mapping[str, str],
    candidates: Mapping[str, Sequence[str]],
    n_negatives: int,
    seed: int,
    epoch: int,
    known: Known | None = None,
) -> dict[str, list[Any]]:
    """Turns rows of ids into rows of texts and draws their negatives: a dataset's transform.

    A row's negatives depend on (seed, epoch, row) only, not on batch, order or worker. Queries
    with fewer candidates than asked for have some twice.

    Args:
      rows: columns `query_id` and `positive_id`.
      queries: id → text.
      passages: id → text as the encoder reads it.
      candidates: query id → ids of passages to draw from. Not read if `n_negatives` is 0.
      n_negatives: negatives per row.
      seed: of the draw.
      epoch: of the draw.
      known: see `Known`.

    Returns:
      Columns `query`, `positive`, `negative_1` … `negative_n`; and, if `known` is given, `label`,
      the numbers there of the query and of these passages.
    """
    pairs = list(zip(rows["query_id"], rows["positive_id"], strict=True))
    groups = [[passage] for _, passage in pairs]
    if n_negatives:
        for (query, passage), group in zip(pairs, groups, strict=True):
            group += _draw(candidates[query], n_negatives, f"{query} {passage}", seed, epoch)
    columns: dict[str, list[Any]] = {"query": [queries[query] for query, _ in pairs]}
    for i, column in enumerate(zip(*groups, strict=True)):
        columns[f"negative_{i}" if i else "positive"] = [passages[passage] for passage in column]
    if known:
        columns["label"] = [
            [known.queries[query], *(known.passages.get(passage, 0) for passage in group)]
            for (query, _), group in zip(pairs, groups, strict=True)
        ]
    return columns


def _draw(candidates: Sequence[str], n: int, row: str, seed: int, epoch: int) -> list[str]:
    rng = np.random.default_rng((seed, epoch, zlib.crc32(row.encode())))
    chosen = rng.choice(len(candidates), n, replace=len(candidates) < n)
    return [candidates[i] for i in chosen]
