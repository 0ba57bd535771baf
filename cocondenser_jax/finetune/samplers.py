"""Batches of an epoch's plan; plans of batches that are hard by the time they are trained on."""

import concurrent.futures
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from accelerate import PartialState
from sentence_transformers import SentenceTransformer
from torch.utils.data import BatchSampler
from transformers import TrainerCallback

from cocondenser_jax.collection.layouts import Passage
from cocondenser_jax.errors import UserError
from cocondenser_jax.finetune.schedule import (
    Candidates,
    false_negatives,
    hard_plan,
    load_plan,
    save_plan,
)
from cocondenser_jax.retrieval.bm25 import bm25_run

logger = logging.getLogger(__name__)


class PlannedBatches(BatchSampler):
    """Yields the batches of an epoch's plan, in its order."""

    def __init__(self, plan: Callable[[int], np.ndarray], n_batches: int, batch_size: int) -> None:
        self._plan, self._n_batches = plan, n_batches
        self.batch_size, self.drop_last = batch_size, True
        self._epoch = 0

    def start_epoch(self, epoch: int) -> None:
        """Sets the epoch whose batches are yielded next."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        yield from self._plan(self._epoch).tolist()

    def __len__(self) -> int:
        return self._n_batches


class HardPlans(TrainerCallback):
    """Adaptive batch scheduling: plans for each epoch batches that are hard by then.

    The first epoch's hardness is that of BM25. Half-way through each epoch, the encoder as it is
    then scores all pairs, unless BM25 is to do so throughout, and the next epoch is planned in the
    background while training goes on. A plan is written to disk before the next checkpoint is, so a
    run that resumes there finds it.
    """

    def __init__(
        self,
        folder: Path,
        model: SentenceTransformer,
        texts: tuple[Sequence[str], Sequence[str]],
        ids: tuple[Sequence[str], Sequence[str]],
        batch_size: int,
        *,
        seed: int,
        scores: str = "encoder",
        depth: int = 100,
    ) -> None:
        """Plans nothing yet.

        Args:
          folder: for the plans, `epoch-0000.npz` and so on.
          model: the encoder in training.
          texts: queries and passages, one of each per pair.
          ids: theirs; pairs that would be false negatives of each other are kept apart.
          batch_size: pairs.
          seed: see `schedule.hard_plan`.
          scores: whose are the scores after the first epoch, "encoder" or "bm25".
          depth: passages scored for each query.
        """
        self._folder, self._model, self._texts = folder, model, texts
        self._conflicts = false_negatives(*ids)
        self._n_steps = len(texts[0]) // batch_size
        self._batch_size, self._seed = batch_size, seed
        self._scores, self._depth = scores, depth
        self._bm25 = functools.cache(functools.partial(bm25_candidates, *texts, depth))
        # A thread: the compiled loops of `hard_plan` leave the interpreter to the training.
        self._background = concurrent.futures.ThreadPoolExecutor(1)
        self._pending: concurrent.futures.Future[None] | None = None

    def plan(self, epoch: int) -> np.ndarray:
        """Returns batches_MxB: the first epoch is planned now, others were in the epoch before.

        A plan that is lost or damaged is made again, with the encoder as it is by now.
        """
        state = PartialState()
        if state.is_main_process:
            self._wait()
            try:
                load_plan(self._path(epoch))
            except UserError as error:
                if epoch > 0:
                    logger.warning("%s; planning this epoch again", error)
                self._start(epoch)
                self._wait()
        state.wait_for_everyone()
        return load_plan(self._path(epoch))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Starts the next epoch's plan half-way; waits for it before a checkpoint."""
        if not state.is_world_process_zero:
            return
        epoch, step = divmod(state.global_step - 1, self._n_steps)
        is_last = (epoch + 1) * self._n_steps >= state.max_steps
        if not is_last and step == (self._n_steps - 1) // 2:
            self._start(epoch + 1)
        if control.should_save or control.should_evaluate:  # the best is saved
            self._wait()

    def _start(self, epoch: int) -> None:
        if epoch == 0 or self._scores == "bm25":
            candidates = self._bm25()
        else:
            logger.info("scoring all pairs for the batches of epoch %d", epoch + 1)
            candidates = encoder_candidates(self._model, *self._texts, self._depth)
        self._pending = self._background.submit(self._plan_and_save, epoch, candidates)

    def _wait(self) -> None:
        if self._pending:
            self._pending.result()
            self._pending = None

    def _plan_and_save(self, epoch: int, candidates: Candidates) -> None:
        batches_MxB = hard_plan(
            candidates, self._batch_size, seed=self._seed, epoch=epoch, conflicts=self._conflicts
        )
        save_plan(self._path(epoch), batches_MxB)

    def _path(self, epoch: int) -> Path:
        return self._folder / f"epoch-{epoch:04d}.npz"


def bm25_candidates(queries: Sequence[str], passages: Sequence[str], depth: int) -> Candidates:
    """Returns the best of the pairs' passages for each query, by BM25."""
    corpus = (Passage(str(i), "", text) for i, text in enumerate(passages))
    run = bm25_run(corpus, {str(i): text for i, text in enumerate(queries)}, depth)
    passages_NxK = np.full((len(queries), min(depth, len(passages))), -1, np.int32)
    scores_NxK = np.zeros(passages_NxK.shape, np.float32)
    for row, found in zip(range(len(queries)), run.values(), strict=True):
        passages_NxK[row, : len(found)] = [int(passage) for passage in found]
        scores_NxK[row, : len(found)] = list(found.values())
    return Candidates(passages_NxK, scores_NxK)


def encoder_candidates(
    model: SentenceTransformer, queries: Sequence[str], passages: Sequence[str], depth: int
) -> Candidates:
    """Returns the best of the pairs' passages for each query, by inner product."""
    training = model.training
    queries_NxD = model.encode_query(list(queries), show_progress_bar=False)
    passages_NxD = model.encode_document(list(passages), show_progress_bar=False)
    model.train(training)
    k, metric = min(depth, len(passages)), faiss.METRIC_INNER_PRODUCT
    scores_NxK, passages_NxK = faiss.knn(queries_NxD, passages_NxD, k, metric)
    return Candidates(passages_NxK, scores_NxK)
