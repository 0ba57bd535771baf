"""Training data of rankers: (query, relevant passage) pairs, negatives, judgments by number."""

import dataclasses
import functools
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
import scipy.sparse
from ml_collections import ConfigDict
from transformers import TrainerCallback

from cocondenser_jax.collection.folder import (
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


@dataclasses.dataclass
class TrainingData:
    """What a ranker is trained on."""

    pairs: datasets.Dataset  # `query_id` and `positive_id`; read as `fill_rows` returns them
    judgments: Judgments
    queries: Mapping[str, str]  # id → text
    passages: Mapping[str, str]  # id → text as encoders read it, of the whole collection
    candidates: Mapping[str, Sequence[str]]  # query id → ids of passages to draw negatives from
    n_negatives: int  # per pair
    seed: int  # of the draw
    files: dict[str, Path]  # what was read, by what it is
    epoch: int = 0  # of the draw, too

    def __post_init__(self) -> None:
        """Lets the pairs be read through `fill_rows`."""
        # `set_transform` of datasets 5.2 would pickle all passages, minutes for a large collection,
        # to make a fingerprint for its cache; below its decorator, nothing does.
        transform = functools.partial(fill_rows, self)
        datasets.Dataset.set_format.__wrapped__(self.pairs, "custom", transform=transform)


class EachEpoch(TrainerCallback):
    """Sets the epoch of training data before its first batch is made."""

    def __init__(self, data: TrainingData) -> None:
        self._data = data

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Sets it."""
        self._data.epoch = int(state.epoch or 0)


def sample(n: int, n_rows: int, seed: int, setting: str, what: str) -> list[int]:
    """Draws the numbers of `n` of `n_rows` rows, ascending; 0 keeps all of them.

    With the same seed, a larger sample holds the smaller one. The name of the setting and what the
    rows are, are for the message.
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
    rows = [{"query_id": q, "positive_id": p} for q, found in relevant.items() for p in found]
    return datasets.Dataset.from_list(rows)


def fill_rows(data: TrainingData, rows: Mapping[str, Sequence[str]]) -> dict[str, list[Any]]:
    """Turns rows of ids into rows of texts and draws their negatives: a dataset's transform.

    A row's negatives depend on (seed, epoch, row) only, not on batch, order or worker. Where a
    query has fewer candidates than `n_negatives`, some are drawn more than once.

    Returns:
      Columns `query`, `positive`, `negative_1` … `negative_n`, and `label`: the numbers of the
      query and of these passages.
    """
    pairs = list(zip(rows["query_id"], rows["positive_id"], strict=True))
    groups = [[passage] for _, passage in pairs]
    if n := data.n_negatives:
        for (query, passage), group in zip(pairs, groups, strict=True):
            found, key = data.candidates[query], zlib.crc32(f"{query} {passage}".encode())
            rng = np.random.default_rng((data.seed, data.epoch, key))
            group += [found[i] for i in rng.choice(len(found), n, replace=len(found) < n)]
    columns: dict[str, list[Any]] = {"query": [data.queries[query] for query, _ in pairs]}
    for i, column in enumerate(zip(*groups, strict=True)):
        texts = [data.passages[passage] for passage in column]
        columns[f"negative_{i}" if i else "positive"] = texts
    numbers = data.judgments
    columns["label"] = [
        [numbers.queries[query], *(numbers.passages.get(passage, 0) for passage in group)]
        for (query, _), group in zip(pairs, groups, strict=True)
    ]
    return columns


def read_training(config: ConfigDict, teacher_run: Path | None = None) -> TrainingData:
    """Reads the pairs of a training set and the negatives to draw from.

    The config has the settings `RANKING` and `TRAINING` of configs/finetune.py. A query without
    results in `config.negatives_run` draws from all passages; with a cross-encoder's scores,
    `teacher_run`, negatives are drawn from the passages it has scored.
    """
    folder, split, n_negatives = Path(config.data), config.split, config.negatives_per_query
    files = split_files(folder, split)
    queries, qrels = read_split(folder, split)
    passages = {p.id: passage_text(p) for p in read_corpus(folder)}
    require_known_passages(qrels, passages, files["judgments"])
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
    pairs, judgments = training_pairs(relevant), to_judgments(relevant, teacher)
    return TrainingData(
        pairs, judgments, queries, passages, candidates, n_negatives, config.seed, files
    )


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
