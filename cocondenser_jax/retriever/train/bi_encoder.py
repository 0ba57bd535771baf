"""Fine-tunes a bi-encoder contrastively with sentence-transformers' trainer."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator

from cocondenser_jax.model_folder.folder import ModelFolder, require_float_weights
from cocondenser_jax.model_folder.library import require_lengths
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.representation import AS_IN_PAPERS, title_separator
from cocondenser_jax.retriever.search.models import load
from cocondenser_jax.retriever.train import trainer
from cocondenser_jax.retriever.train.evaluation import DevEvaluator
from cocondenser_jax.retriever.train.losses import InBatchLoss
from cocondenser_jax.retriever.train.samplers import EpochBatchSampler, batches_by_epoch
from cocondenser_jax.retriever.train.settings import (
    BiEncoderSettings,
    ModelSettings,
    TrainerSettings,
)
from cocondenser_jax.retriever.train.training_data import (
    Epoch,
    EpochCallback,
    RowCollator,
    TrainingData,
    read_training,
)

logger = logging.getLogger(__name__)


def bi_encoder_trainer(settings: BiEncoderSettings) -> SentenceTransformerTrainer:
    """Returns a trainer of a bi-encoder on pairs of query and relevant passage.

    A step scores its B queries against all their B·G passages, s = scale · ⟨q, d⟩: each query's
    relevant passage, its sampled negatives, and the passages of the other queries.
    """
    opened, model = _load(settings.model)
    own = opened.representation
    data = read_training(
        settings.data,
        settings.trainer.stored,
        Path(settings.teacher_run) if settings.loss.is_soft else None,
        title_separator(dict(own.prompts)),
    )
    scale = settings.loss.scale or own.score_scale
    logger.info("the loss multiplies scores by %g (config.loss.scale)", scale)
    loss = InBatchLoss(model, data.judgments, settings.loss._replace(scale=scale))
    evaluator = None
    checksums = {**data.checksums, "model": opened.sha256()}
    if settings.dev.every:
        evaluator = DevEvaluator(settings.dev, data.passages, loss.score)
        checksums = checksums | evaluator.checksums
    trainer.start_or_resume(settings.trainer, len(data.pairs), checksums)
    folder = settings.trainer.workdir / "batches"
    batches_of = batches_by_epoch(settings.batches, data, model, folder)
    return _Trainer(settings.trainer, data, loss, evaluator, batches_of)


class _Trainer(SentenceTransformerTrainer):
    """The library's trainer with our batches."""

    def __init__(
        self,
        settings: TrainerSettings,
        data: TrainingData,
        loss: InBatchLoss,
        evaluator: DevEvaluator | None,
        batches_of: Callable[[int], np.ndarray],
    ) -> None:
        """`batches_of` returns the batches of an epoch, batches_MxB."""
        epoch = Epoch()
        self._batches = EpochBatchSampler(batches_of, epoch, len(data.pairs), settings.batch_size)
        own = evaluator.arguments() if evaluator else {}
        super().__init__(
            loss.model,
            trainer.arguments(SentenceTransformerTrainingArguments, settings, **own),
            data.pairs,
            evaluator=evaluator,
            loss=loss,
            data_collator=_collator(data, epoch, loss.model),
            callbacks=[EpochCallback(epoch)],
        )

    def get_batch_sampler(self, *args: Any, **kwargs: Any) -> EpochBatchSampler:
        return self._batches

    def get_eval_dataloader(self, *args: Any, **kwargs: Any) -> Any:
        # The evaluator does not use it. The library's empty one would draw from the global random
        # generator, so that evaluation would change the dropout in training.
        return []


def _load(settings: ModelSettings) -> tuple[ModelFolder, SentenceTransformer]:
    """Opens and loads the model."""
    folder = open_model(settings.folder, settings.given, AS_IN_PAPERS)
    for network in folder.networks.values():
        require_float_weights(network)
    lengths = {
        "config.model.query_length": settings.query_length,
        "config.model.passage_length": settings.passage_length,
    }
    require_lengths(folder.networks.values(), lengths)
    model = load(
        folder,
        settings.query_length,
        settings.passage_length,
        two_towers=settings.two_towers,
    )
    return folder, model


def _collator(data: TrainingData, epoch: Epoch, model: SentenceTransformer) -> Any:
    # A column's task determines its prompt and maximum length.
    tasks = {"query": "query"} | dict.fromkeys(_passage_columns(data.n_negatives + 1), "document")
    prompts = {column: model.prompts.get(task) or "" for column, task in tasks.items()}
    tokenize = SentenceTransformerDataCollator(
        model.preprocess, router_mapping=tasks, prompts=prompts
    )
    return RowCollator(data, epoch, fill_row, tokenize)


def fill_row(data: TrainingData, query: str, passages: list[str]) -> list[dict[str, Any]]:
    """Makes one row of texts; `label` holds the numbers of query and passages in the judgments."""
    texts = [data.passages[passage] for passage in passages]
    row: dict[str, Any] = {"query": data.queries[query]}
    row.update(zip(_passage_columns(len(texts)), texts, strict=True))
    row["label"] = data.judgments.numbers(query, passages)
    return [row]


def _passage_columns(n_passages: int) -> list[str]:
    return ["positive", *(f"negative_{i}" for i in range(1, n_passages))]
