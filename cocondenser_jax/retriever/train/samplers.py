"""Samples the batches of each epoch: random, sequential, or hard for the current encoder."""

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import faiss
import numpy as np
import scipy.sparse
from accelerate import PartialState
from sentence_transformers import SentenceTransformer
from torch.utils.data import BatchSampler

from cocondenser_jax.retriever.data.layouts import Passage
from cocondenser_jax.retriever.data.same_text import text_key
from cocondenser_jax.retriever.search.bm25 import bm25_run
from cocondenser_jax.retriever.search.finite import require_finite
from cocondenser_jax.retriever.train.hard_batches import (
    false_negatives,
    greedy_batches,
    load_batches,
    save_batches,
)
from cocondenser_jax.retriever.train.settings import BatchSettings
from cocondenser_jax.retriever.train.trainer import DIVERGED
from cocondenser_jax.retriever.train.training_data import Epoch, TrainingData

logger = logging.getLogger(__name__)


class EpochBatchSampler(BatchSampler):
    """Yields the batches of the epoch."""

    drop_last = True

    def __init__(
        self,
        batches_of: Callable[[int], np.ndarray],
        epoch: Epoch,
        n_pairs: int,
        batch_size: int,
    ) -> None:
        """`batches_of` returns the batches of an epoch, batches_MxB."""
        self._batches_of = batches_of
        self._epoch = epoch
        self._n_pairs = n_pairs
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[list[int]]:
        yield from self._batches_of(self._epoch.number).tolist()

    def __len__(self) -> int:
        return self._n_pairs // self.batch_size


def batches_by_epoch(
    settings: BatchSettings, data: TrainingData, model: SentenceTransformer, folder: Path
) -> Callable[[int], np.ndarray]:
    """Returns a function from an epoch to its batches_MxB; hard batches are saved in `folder`."""
    n_pairs = len(data.pairs)
    if settings.batches == "random":
        return lambda epoch: random_batches(n_pairs, settings.batch_size, settings.seed, epoch)
    if settings.batches == "sequential":
        return lambda epoch: sequential_batches(n_pairs, settings.batch_size)
    return hard_batches_by_epoch(settings, data, model, folder)


def random_batches(n_pairs: int, batch_size: int, seed: int, epoch: int) -> np.ndarray:
    """Returns batches_MxB of all pairs in an order determined by seed and epoch."""
    order_N = np.random.default_rng((seed, epoch)).permutation(n_pairs)
    return order_N[: n_pairs - n_pairs % batch_size].reshape(-1, batch_size)


def sequential_batches(n_pairs: int, batch_size: int) -> np.ndarray:
    """Returns batches_MxB of the pairs in their order."""
    return np.arange(n_pairs - n_pairs % batch_size).reshape(-1, batch_size)


def hard_batches_by_epoch(
    settings: BatchSettings, data: TrainingData, model: SentenceTransformer, folder: Path
) -> Callable[[int], np.ndarray]:
    """Returns a function from an epoch to its hard batches (adaptive batch scheduling).

    It must be called before the first batch of each epoch. BM25 scores the pairs for the first
    epoch, and the current encoder for later ones, unless the settings ask for BM25 throughout.
    Batches are saved, so that a resumed epoch has the same ones; a missing file is made again.
    Pairs that would be false negatives of each other are separated where possible.
    """
    query_ids = data.pairs["query_id"][:]
    passage_ids = data.pairs["positive_id"][:]
    queries = [data.queries[query] for query in query_ids]
    passages = [data.passages[passage] for passage in passage_ids]
    conflicts = false_negatives(query_ids, [*map(text_key, passages)])  # copies are one passage
    bm25 = functools.cache(lambda: bm25_candidates(queries, passages, settings.batch_depth))

    def make(epoch: int) -> np.ndarray:
        if epoch == 0 or settings.batch_scores == "bm25":
            candidates = bm25()
        else:
            candidates = encoder_candidates(model, queries, passages, settings.batch_depth)
        return greedy_batches(
            candidates, settings.batch_size, seed=settings.seed, epoch=epoch, conflicts=conflicts
        )

    def read_or_make(epoch: int) -> np.ndarray:
        path = folder / f"epoch-{epoch:04d}.npz"
        state = PartialState()
        if state.is_main_process and not path.exists():
            save_batches(path, make(epoch))
        state.wait_for_everyone()
        return load_batches(path)

    return read_or_make


def bm25_candidates(
    queries: Sequence[str], passages: Sequence[str], depth: int
) -> scipy.sparse.csr_array:
    """Returns BM25's scores of the `depth` best passages for each query, [N, N]."""
    corpus = (Passage(str(i), "", text) for i, text in enumerate(passages))
    run = bm25_run(corpus, {str(i): text for i, text in enumerate(queries)}, depth)
    ends = np.cumsum([0, *map(len, run.values())])
    columns = np.array([int(passage) for scores in run.values() for passage in scores], np.int32)
    scores = np.array([score for scores in run.values() for score in scores.values()], np.float32)
    return scipy.sparse.csr_array((scores, columns, ends), shape=(len(queries), len(passages)))


def encoder_candidates(
    model: SentenceTransformer, queries: Sequence[str], passages: Sequence[str], depth: int
) -> scipy.sparse.csr_array:
    """Returns the encoder's inner products with each query's `depth` best passages, [N, N]."""
    logger.info("scoring all pairs for the batches of an epoch")
    training = model.training
    queries_NxD = model.encode_query(list(queries), show_progress_bar=False)
    passages_NxD = model.encode_document(list(passages), show_progress_bar=False)
    model.train(training)
    k = min(depth, len(passages))
    require_finite(queries_NxD, "the query", queries, DIVERGED)
    require_finite(passages_NxD, "the passage", passages, DIVERGED)
    scores_NxK, passages_NxK = faiss.knn(queries_NxD, passages_NxD, k, faiss.METRIC_INNER_PRODUCT)
    rows_E = np.repeat(np.arange(len(queries)), k)
    cells = scores_NxK.ravel(), (rows_E, passages_NxK.ravel())
    return scipy.sparse.csr_array(cells, shape=(len(queries), len(passages)))
