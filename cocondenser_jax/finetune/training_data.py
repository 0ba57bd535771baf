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
    teacher: scipy.sparse.csr_array | None = None  # of float32, the same shape


class TrainingData(NamedTuple):
    """What a ranker is trained on."""

    pairs: datasets.Dataset  # `query_id` and `positive_id`; read through the epoch's `fill_rows`
    fill: Callable[..., dict[str, list[Any]]]  # `fill_rows`, lacking only the epoch
    judgments: Judgments
    queries: Mapping[str, str]  # id → text
    passages: Mapping[str, str]  # id → text, of the whole collection
    files: dict[str, Path]  # what was read, by what it is


def draw_negatives(data: TrainingData, epoch: int) -> None:
    """Sets the dataset of pairs to yield the texts and negatives of an epoch."""
    transform = functools.partial(data.fill, epoch=epoch)
    # `set_transform` of datasets 5.2 would pickle all passages, minutes for a large collection, to
    # make a fingerprint for its cache; below its decorator, nothing does.
    datasets.Dataset.set_format.__wrapped__(data.pairs, "custom", transform=transform)


def sample(n: int, n_rows: int, seed: int, setting: str, what: str) -> list[int]:
    """Draws `n` of `n_rows` rows, for a training set with few labels; 0 keeps all of them.

    With the same seed, a larger sample holds the smaller one. The name of the setting and what the
    rows are, are for the message.

    Returns:
      Numbers of rows, ascending.
    """
    if not 0 <= n <= n_rows:
        raise UserError(f"{setting} is {n}: expected 1 to {n_rows}, {what}, or 0 for all of them")
    order = np.random.default_rng(seed).permutation(n_rows)
    return sorted(order[: n or n_rows].tolist())


def to_judgments(relevant: Qrels, teacher: Run | None = None) -> Judgments:
    """Numbers the queries, and the passages relevant to them or scored for them by the teacher."""
    scores = {query: teacher[query] for query in relevant} if teacher else {}
    queries = {query: i for i, query in enumerate(relevant)}
    named = dict.fromkeys(p for table in (relevant, scores) for row in table.values() for p in row)
    passages = {passage: i for i, passage in enumerate(named, start=1)}

    def to_matrix(table: Mapping[str, Mapping[str, float]], dtype: type) -> scipy.sparse.csr_array:
        cells = [(queries[q], passages[p], v) for q, row in table.items() for p, v in row.items()]
        rows, columns, values = zip(*cells, strict=True)
        shape = len(queries), len(passages) + 1
        return scipy.sparse.csr_array((np.array(values, dtype), (rows, columns)), shape=shape)

    teacher_scores = to_matrix(scores, np.float32) if teacher else None
    return Judgments(queries, passages, to_matrix(relevant, bool), teacher_scores)


def training_pairs(relevant: Qrels) -> datasets.Dataset:
    """Lists every query and passage relevant to it as one row (`query_id`, `positive_id`)."""
    pairs = [(query, passage) for query, passages in relevant.items() for passage in passages]
    queries, positives = map(list, zip(*pairs, strict=True))
    return datasets.Dataset.from_dict({"query_id": queries, "positive_id": positives})


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
      seed: of the draw, like `epoch`.
      epoch: from 0.
      judgments: number the queries and passages of the labels.

    Returns:
      Columns `query`, `positive`, `negative_1` … `negative_n`; and with `judgments` also `label`,
      the numbers of the query and of these passages.
    """
    pairs = list(zip(rows["query_id"], rows["positive_id"], strict=True))
    groups = [[passage] for _, passage in pairs]
    if n_negatives:
        for (query, passage), group in zip(pairs, groups, strict=True):
            found = candidates[query]
            rng = np.random.default_rng((seed, epoch, zlib.crc32(f"{query} {passage}".encode())))
            chosen = rng.choice(len(found), n_negatives, replace=len(found) < n_negatives)
            group += [found[i] for i in chosen]
    columns: dict[str, list[Any]] = {"query": [queries[query] for query, _ in pairs]}
    for i, column in enumerate(zip(*groups, strict=True)):
        columns[f"negative_{i}" if i else "positive"] = [passages[passage] for passage in column]
    if judgments:
        columns["label"] = [
            [judgments.queries[query], *(judgments.passages.get(passage, 0) for passage in group)]
            for (query, _), group in zip(pairs, groups, strict=True)
        ]
    return columns


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
    found = list(with_positives(qrels, config.strict).items())
    name, what = "config.train_queries", "the number of queries with a positive"
    drawn = sample(config.train_queries, len(found), config.seed, name, what)
    relevant = dict(found[i] for i in drawn)
    candidates: Mapping[str, Sequence[str]] = {}
    if n_negatives and config.negatives_run:
        files["negatives_run"] = Path(config.negatives_run)
        best = read_candidates(files["negatives_run"], relevant, passages, config.negatives_depth)
        everything = list(passages)
        candidates = {query: found or everything for query, found in best.items()}
    teacher = None
    if teacher_run:
        files["teacher_run"] = teacher_run
        teacher = read_run(teacher_run)
        candidates = _scored_candidates(candidates, relevant, teacher, teacher_run)
    pairs = training_pairs(relevant)
    judgments = to_judgments(relevant, teacher)
    fill = functools.partial(
        fill_rows,
        queries=queries,
        passages=passages,
        candidates=candidates,
        n_negatives=n_negatives,
        seed=config.seed,
        judgments=judgments,
    )
    data = TrainingData(pairs, fill, judgments, queries, passages, files)
    draw_negatives(data, epoch=0)
    return data


def _scored_candidates(
    candidates: Mapping[str, Sequence[str]], relevant: Qrels, teacher: Run, source: Path
) -> dict[str, list[str]]:
    """Keeps the candidates that the teacher has scored; it must have scored every positive."""
    if without := [
        f"{query} {passage}"
        for query, passages in relevant.items()
        for passage in passages
        if passage not in teacher.get(query, {})
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
