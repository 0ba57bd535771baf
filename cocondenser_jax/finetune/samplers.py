"""Batches of an epoch's plan; plans of batches that are hard by the time they are trained on."""

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
import scipy.sparse
from accelerate import PartialState
from sentence_transformers import SentenceTransformer
from torch.utils.data import BatchSampler
from transformers import TrainerCallback

from cocondenser_jax.collection.layouts import Passage
from cocondenser_jax.errors import UserError
from cocondenser_jax.finetune.schedule import false_negatives, hard_plan, load_plan, save_plan
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


class HardPlans(TrainerCallback):
    """Adaptive batch scheduling: plans for each epoch batches that are hard by then.

    The first epoch's hardness is that of BM25. Half-way through each epoch, the encoder as it is
    then scores all pairs, unless BM25 is to do so throughout, and the next epoch is planned. A plan
    is on disk before the next checkpoint is, so a run that resumes there finds it.
    """

    def __init__(
        self, folder: Path, model: SentenceTransformer, data: TrainingData, settings: BatchSettings
    ) -> None:
        """Plans nothing yet; the folder will hold the plans, `epoch-0000.npz` and so on.

        Pairs that would be false negatives of each other are kept apart.
        """
        query_ids = data.pairs["query_id"][:]
        passage_ids = data.pairs["positive_id"][:]
        queries = [data.queries[query] for query in query_ids]
        passages = [data.passages[passage] for passage in passage_ids]
        self._folder = folder
        self._always_bm25 = settings.batch_scores == "bm25"
        self._n_steps = len(queries) // settings.batch_size
        depth = settings.batch_depth
        self._bm25 = functools.cache(lambda: bm25_candidates(queries, passages, depth))
        self._encoder = lambda: encoder_candidates(model, queries, passages, depth)
        self._plan = functools.partial(
            hard_plan,
            batch_size=settings.batch_size,
            seed=settings.seed,
            conflicts=false_negatives(query_ids, passage_ids),
        )

    def plan(self, epoch: int) -> np.ndarray:
        """Returns batches_MxB: the first epoch is planned now, others were in the epoch before.

        A plan that is lost or damaged is made again, with the encoder as it is by now.
        """
        path = self._path(epoch)
        state = PartialState()
        if state.is_main_process:
            try:
                load_plan(path)
            except UserError as error:
                if epoch > 0:
                    logger.warning("%s; planning this epoch again", error)
                self._make(epoch)
        state.wait_for_everyone()
        return load_plan(path)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Plans the next epoch half-way."""
        if not state.is_world_process_zero:
            return
        epoch, step = divmod(state.global_step - 1, self._n_steps)
        is_last = (epoch + 1) * self._n_steps >= state.max_steps
        if not is_last and step == (self._n_steps - 1) // 2:
            self._make(epoch + 1)

    def _make(self, epoch: int) -> None:
        candidates = self._bm25() if epoch == 0 or self._always_bm25 else self._encoder()
        save_plan(self._path(epoch), self._plan(candidates, epoch=epoch))

    def _path(self, epoch: int) -> Path:
        return self._folder / f"epoch-{epoch:04d}.npz"


def bm25_candidates(
    queries: Sequence[str], passages: Sequence[str], depth: int
) -> scipy.sparse.csr_array:
    """Returns the scores of the best of the pairs' passages for each query, by BM25."""
    corpus = (Passage(str(i), "", text) for i, text in enumerate(passages))
    run = bm25_run(corpus, {str(i): text for i, text in enumerate(queries)}, depth)
    ends = np.cumsum([0, *map(len, run.values())])
    found = np.array([int(passage) for scores in run.values() for passage in scores], np.int32)
    scores = np.array([score for scores in run.values() for score in scores.values()], np.float32)
    return scipy.sparse.csr_array((scores, found, ends), shape=(len(queries), len(passages)))


def encoder_candidates(
    model: SentenceTransformer, queries: Sequence[str], passages: Sequence[str], depth: int
) -> scipy.sparse.csr_array:
    """Returns the scores of the best of the pairs' passages for each query, by inner product."""
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
