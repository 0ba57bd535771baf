"""Training rows: (query, relevant passage) pairs, the negatives drawn for them, what is known."""

import functools
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import ml_collections
import numpy as np
import scipy.sparse

from cocondenser_jax.collection import folder as data
from cocondenser_jax.collection import trec
from cocondenser_jax.errors import UserError

SOFT_LOSSES = ("soft_labels", "soft_labels_group")  # those that need a teacher


class Known(NamedTuple):
    """What judgments and a teacher say of queries and passages, by numbers of their own."""

    queries: dict[str, int]
    passages: dict[str, int]  # from 1; a passage that is not here has number 0
    relevant: scipy.sparse.csr_array  # of bool, (queries, passages + 1)
    teacher: scipy.sparse.csr_array | None = None  # a cross-encoder's scores, the same shape


class Training(NamedTuple):
    """What a run learns from."""

    rows: datasets.Dataset  # of ids, one a pair
    fill: Callable[..., dict[str, list[Any]]]  # `fill_rows` but for the epoch
    known: Known
    texts: tuple[list[str], list[str]]  # of the pairs' queries and passages

    def draw(self, epoch: int) -> None:
        """Gives the rows the texts and negatives of an epoch."""
        self.rows.set_transform(functools.partial(self.fill, epoch=epoch))


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


def read_training(config: ml_collections.ConfigDict) -> Training:
    """Reads the pairs of a training set and the negatives to draw from.

    Args:
      config: see configs/finetune.py and configs/cross_encoder.py.

    Raises:
      UserError: for data that cannot be read, is too little, or does not fit together.
    """
    folder = Path(config.data)
    queries, qrels = data.read_split(folder, config.split)
    passages = {p.id: data.passage_text(p) for p in data.read_corpus(folder)}
    data.require_known_passages(qrels, passages, data.judgments_file(folder, config.split))
    qrels = data.with_positives(qrels, config.strict)
    qrels = data.sample_queries(qrels, config.train_queries, config.seed)
    candidates: dict[str, Sequence[str]] = {}
    if config.negatives_per_query:
        everything = list(passages)
        candidates = {
            query: found or everything
            for query, found in data.read_candidates(
                Path(config.negatives_run), qrels, passages, config.negatives_depth
            ).items()
        }
    teacher = None
    if config.loss in SOFT_LOSSES:
        teacher = trec.read_run(Path(config.teacher_run))
        candidates = _taught(candidates, qrels, teacher, Path(config.teacher_run))
    pairs = training_pairs(qrels)
    if len(pairs) < config.batch_size:
        raise UserError(
            f"{folder} has {len(pairs)} training pairs in split {config.split}: "
            f"too few for one step of batch_size={config.batch_size}"
        )
    known = to_known(qrels, teacher)
    fill = functools.partial(
        fill_rows,
        queries=queries,
        passages=passages,
        candidates=candidates,
        n_negatives=config.negatives_per_query,
        seed=config.seed,
        known=known,
    )
    texts = (
        [queries[query] for query in pairs["query_id"]],
        [passages[passage] for passage in pairs["positive_id"]],
    )
    training = Training(pairs, fill, known, texts)
    training.draw(0)
    return training


def _taught(
    candidates: Mapping[str, Sequence[str]], qrels: trec.Qrels, teacher: trec.Run, source: Path
) -> dict[str, Sequence[str]]:
    """Keeps the candidates that the teacher has scored; it must have scored every positive."""
    without = [
        f"{query} {passage}"
        for query, grades in qrels.items()
        for passage, grade in grades.items()
        if grade > 0 and passage not in teacher.get(query, {})
    ]
    if without:
        raise UserError(
            f"{source} has no score for {len(without)} relevant passages (query, passage): "
            f"{', '.join(without[:3])}{', ...' if len(without) > 3 else ''}; "
            "rerank --with_positives scores them too"
        )
    taught: dict[str, Sequence[str]] = {
        query: [passage for passage in found if passage in teacher[query]]
        for query, found in candidates.items()
    }
    if nothing := [query for query, found in taught.items() if not found]:
        raise UserError(
            f"{source} has no score for any negative of {len(nothing)} queries: "
            f"{', '.join(nothing[:3])}{', ...' if len(nothing) > 3 else ''}"
        )
    return taught
