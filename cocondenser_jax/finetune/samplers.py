"""Batches that follow an epoch's plan, and plans that are hard for the current encoder."""

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import faiss
import numpy as np
import scipy.sparse
from accelerate import PartialState
from sentence_transformers import SentenceTransformer
from torch.utils.data import BatchSampler

from cocondenser_jax.collection.layouts import Passage
from cocondenser_jax.finetune.schedule import (
    false_negatives,
    greedy_plan,
    load_plan,
    random_plan,
    save_plan,
    sequential_plan,
)
from cocondenser_jax.finetune.training_data import TrainingData
from cocondenser_jax.retrieval.bm25 import bm25_run

logger = logging.getLogger(__name__)


class BatchSettings(NamedTuple):
    """Which pairs share a step; see configs/finetune.py."""

    batches: str
    batch_size: int
    batch_scores: str
    batch_depth: int
    seed: int


class PlannedBatches(BatchSampler):
    """Yields the batches of the data's epoch, in the order of their plan."""

    drop_last = True

    def __init__(
        self, plan: Callable[[int], np.ndarray], data: TrainingData, batch_size: int
    ) -> None:
        self._plan = plan
        self._data = data
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[list[int]]:
        yield from self._plan(self._data.epoch).tolist()

    def __len__(self) -> int:
        return len(self._data.pairs) // self.batch_size


def epoch_plans(
    settings: BatchSettings, data: TrainingData, model: SentenceTransformer, folder: Path
) -> Callable[[int], np.ndarray]:
    """Returns the function that plans an epoch: batches_MxB. Hard plans are kept in the folder."""
    n_pairs = len(data.pairs)
    if settings.batches == "random":
        return functools.partial(random_plan, n_pairs, settings.batch_size, settings.seed)
    if settings.batches == "sequential":
        return lambda epoch: sequential_plan(n_pairs, settings.batch_size)
    return hard_plans(settings, data, model, folder)


def hard_plans(
    settings: BatchSettings, data: TrainingData, model: SentenceTransformer, folder: Path
) -> Callable[[int], np.ndarray]:
    """Returns the function that plans an epoch's hard batches: adaptive batch scheduling.

    To be called before the first batch of each epoch. The first epoch's hardness is that of BM25;
    later, the current encoder scores all pairs, unless BM25 is to do so throughout. Plans are
    saved, so a resumed epoch has the same batches; a lost one is made again. Pairs that would be
    false negatives of each other are kept apart where possible.
    """
    query_ids = data.pairs["query_id"][:]
    passage_ids = data.pairs["positive_id"][:]
    queries = [data.queries[query] for query in query_ids]
    passages = [data.passages[passage] for passage in passage_ids]
    conflicts = false_negatives(query_ids, passage_ids)
    bm25 = functools.cache(lambda: bm25_candidates(queries, passages, settings.batch_depth))

    def make(epoch: int) -> np.ndarray:
        if epoch == 0 or settings.batch_scores == "bm25":
            candidates = bm25()
        else:
            candidates = encoder_candidates(model, queries, passages, settings.batch_depth)
        return greedy_plan(
            candidates, settings.batch_size, seed=settings.seed, epoch=epoch, conflicts=conflicts
        )

    def plan(epoch: int) -> np.ndarray:
        path = folder / f"epoch-{epoch:04d}.npz"
        state = PartialState()
        if state.is_main_process and not path.exists():
            save_plan(path, make(epoch))
        state.wait_for_everyone()
        return load_plan(path)

    return plan


def bm25_candidates(
    queries: Sequence[str], passages: Sequence[str], depth: int
) -> scipy.sparse.csr_array:
    """Returns BM25's scores of the best of the pairs' passages for each query."""
    corpus = (Passage(str(i), "", text) for i, text in enumerate(passages))
    run = bm25_run(corpus, {str(i): text for i, text in enumerate(queries)}, depth)
    ends = np.cumsum([0, *map(len, run.values())])
    found = np.array([int(passage) for scores in run.values() for passage in scores], np.int32)
    scores = np.array([score for scores in run.values() for score in scores.values()], np.float32)
    return scipy.sparse.csr_array((scores, found, ends), shape=(len(queries), len(passages)))


def encoder_candidates(
    model: SentenceTransformer, queries: Sequence[str], passages: Sequence[str], depth: int
) -> scipy.sparse.csr_array:
    """Returns the encoder's scores (inner products) of the best of the passages for each query."""
    logger.info("scoring all pairs for the batches of an epoch")
    training = model.training
    queries_NxD = model.encode_query(list(queries), show_progress_bar=False)
    passages_NxD = model.encode_document(list(passages), show_progress_bar=False)
    model.train(training)
    k = min(depth, len(passages))
    scores_NxK, passages_NxK = faiss.knn(queries_NxD, passages_NxD, k, faiss.METRIC_INNER_PRODUCT)
    known_NxK = passages_NxK >= 0  # faiss finds fewer where numbers are not finite
    cells = scores_NxK[known_NxK], (known_NxK.nonzero()[0], passages_NxK[known_NxK])
    return scipy.sparse.csr_array(cells, shape=(len(queries), len(passages)))
