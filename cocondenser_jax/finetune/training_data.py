"""Training data of rankers: (query, relevant passage) pairs, negatives, judgments by number."""

import functools
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
import scipy.sparse
from ml_collections import ConfigDict

from cocondenser_jax.collection.folder import (
    judgments_file,
    passage_text,
    read_candidates,
    read_corpus,
    read_split,
    require_known_passages,
    sample_queries,
    split_files,
    with_positives,
)
from cocondenser_jax.collection.trec import Qrels, Run, read_run
from cocondenser_jax.errors import UserError, first_three


class Judgments(NamedTuple):
    """Judgments, and a teacher's scores, as matrices over numbered queries and passages."""

    queries: dict[str, int]
    passages: dict[str, int]  # from 1; any other passage has number 0
    relevant: scipy.sparse.csr_array  # of bool, (queries, passages + 1)
    teacher: scipy.sparse.csr_array | None = None  # a cross-encoder's scores, the same shape


class TrainingData(NamedTuple):
    """What a ranker is trained on."""

    pairs: datasets.Dataset  # `query_id` and `positive_id`; read through the epoch's `fill_rows`
    fill: Callable[..., dict[str, list[Any]]]  # `fill_rows`, lacking only the epoch
    judgments: Judgments
    texts: tuple[list[str], list[str]]  # of the pairs' queries and passages
    passages: Mapping[str, str]  # id → text, of the whole collection
    files: dict[str, Path]  # what was read, by what it is


def draw_negatives(data: TrainingData, epoch: int) -> None:
    """Sets the dataset of pairs to yield the texts and negatives of an epoch."""
    data.pairs.set_transform(functools.partial(data.fill, epoch=epoch))


def to_judgments(qrels: Qrels, teacher: Run | None = None) -> Judgments:
    """Numbers the queries of the judgments, and the passages judged relevant or scored.

    Args:
      qrels: the judgments.
      teacher: scores for the same queries.
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

    teacher_scores = to_matrix(scores) if teacher else None
    return Judgments(queries, passages, to_matrix(relevant).astype(bool), teacher_scores)


def training_pairs(qrels: Qrels) -> datasets.Dataset:
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
    judgments: Judgments | None = None,
) -> dict[str, list[Any]]:
    """Turns rows of ids into rows of texts and draws their negatives: a dataset's transform.

    A row's negatives depend on (seed, epoch, row) only, not on batch, order or worker. Where a
    query has fewer candidates than `n_negatives`, some are drawn more than once.

    Args:
      rows: columns `query_id` and `positive_id`.
      queries: id → text.
      passages: id → text as the encoder reads it.
      candidates: query id → ids of passages to draw from. Not read if `n_negatives` is 0.
      n_negatives: per row.
      seed: of the draw.
      epoch: of the draw.
      judgments: number the queries and passages of the labels.

    Returns:
      Columns `query`, `positive`, `negative_1` … `negative_n`; and with `judgments` also `label`,
      the numbers of the query and of these passages.
    """
    pairs = list(zip(rows["query_id"], rows["positive_id"], strict=True))
    groups = [[passage] for _, passage in pairs]
    if n_negatives:
        for (query, passage), group in zip(pairs, groups, strict=True):
            group += _draw(candidates[query], n_negatives, f"{query} {passage}", seed, epoch)
    columns: dict[str, list[Any]] = {"query": [queries[query] for query, _ in pairs]}
    for i, column in enumerate(zip(*groups, strict=True)):
        columns[f"negative_{i}" if i else "positive"] = [passages[passage] for passage in column]
    if judgments:
        columns["label"] = [
            [judgments.queries[query], *(judgments.passages.get(passage, 0) for passage in group)]
            for (query, _), group in zip(pairs, groups, strict=True)
        ]
    return columns


def _draw(candidates: Sequence[str], n: int, row: str, seed: int, epoch: int) -> list[str]:
    rng = np.random.default_rng((seed, epoch, zlib.crc32(row.encode())))
    chosen = rng.choice(len(candidates), n, replace=len(candidates) < n)
    return [candidates[i] for i in chosen]


def read_training(config: ConfigDict, teacher_run: Path | None = None) -> TrainingData:
    """Reads the pairs of a training set and the negatives to draw from.

    A query without results in `config.negatives_run` draws from all passages.

    Args:
      config: has the settings `RANKING` and `TRAINING` of configs/finetune.py.
      teacher_run: a cross-encoder's scores; negatives are drawn from the passages it has scored.

    Raises:
      UserError: for data that cannot be read or does not fit together.
    """
    folder, split, n_negatives = Path(config.data), config.split, config.negatives_per_query
    files = split_files(folder, split)
    queries, qrels = read_split(folder, split)
    passages = {p.id: passage_text(p) for p in read_corpus(folder)}
    require_known_passages(qrels, passages, judgments_file(folder, split))
    qrels = sample_queries(with_positives(qrels, config.strict), config.train_queries, config.seed)
    candidates: Mapping[str, Sequence[str]] = {}
    if n_negatives and config.negatives_run:
        files["negatives_run"] = Path(config.negatives_run)
        found = read_candidates(files["negatives_run"], qrels, passages, config.negatives_depth)
        everything = list(passages)
        candidates = {query: best or everything for query, best in found.items()}
    teacher = None
    if teacher_run:
        files["teacher_run"] = teacher_run
        teacher = read_run(teacher_run)
        candidates = _scored_candidates(candidates, qrels, teacher, teacher_run)
    pairs = training_pairs(qrels)
    judgments = to_judgments(qrels, teacher)
    fill = functools.partial(
        fill_rows,
        queries=queries,
        passages=passages,
        candidates=candidates,
        n_negatives=n_negatives,
        seed=config.seed,
        judgments=judgments,
    )
    texts = (
        [queries[query] for query in pairs["query_id"]],
        [passages[passage] for passage in pairs["positive_id"]],
    )
    data = TrainingData(pairs, fill, judgments, texts, passages, files)
    draw_negatives(data, epoch=0)
    return data


def _scored_candidates(
    candidates: Mapping[str, Sequence[str]], qrels: Qrels, teacher: Run, source: Path
) -> dict[str, list[str]]:
    """Keeps the candidates that the teacher has scored; it must have scored every positive."""
    if without := [
        f"{query} {passage}"
        for query, grades in qrels.items()
        for passage, grade in grades.items()
        if grade > 0 and passage not in teacher.get(query, {})
    ]:
        raise UserError(
            f"{source} has no score for {len(without)} relevant passages (query, passage): "
            f"{first_three(without)}; rerank --with_positives scores them too"
        )
    scored = {
        query: [passage for passage in found if passage in teacher[query]]
        for query, found in candidates.items()
    }
    if nothing := [query for query, found in scored.items() if not found]:
        raise UserError(
            f"{source} has no score for any negative of {len(nothing)} queries: "
            f"{first_three(nothing)}"
        )
    return scored
