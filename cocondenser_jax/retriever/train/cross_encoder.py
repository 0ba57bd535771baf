"""Fine-tunes a cross-encoder, which reads query and passage together (arXiv 1901.04085)."""

import math
from typing import Any

import torch
from sentence_transformers.cross_encoder import CrossEncoderTrainer, CrossEncoderTrainingArguments
from sentence_transformers.cross_encoder.data_collator import CrossEncoderDataCollator
from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss, ListNetLoss

from cocondenser_jax.model_folder.folder import require_float_weights
from cocondenser_jax.model_folder.library import require_lengths
from cocondenser_jax.model_folder.model import open_network
from cocondenser_jax.retriever.search.cross_encoders import SHORTEST_PAIR, load_cross_encoder
from cocondenser_jax.retriever.train import trainer
from cocondenser_jax.retriever.train.settings import CrossEncoderSettings
from cocondenser_jax.retriever.train.training_data import (
    Epoch,
    EpochCallback,
    RowCollator,
    TrainingData,
    read_training,
)


def cross_encoder_trainer(settings: CrossEncoderSettings) -> CrossEncoderTrainer:
    """Returns a trainer of a cross-encoder on Q queries with P passages each, the first relevant.

      softmax:  L = −1/Q Σ_q log( exp s(q, d⁺) / Σ_d exp s(q, d) ),
      binary:   L = −1/(Q·P) Σ_q ( log σ(s(q, d⁺)) + Σ_d⁻ log(1 − σ(s(q, d⁻))) ).

    Softmax is the localized contrastive loss of arXiv 2101.08751; it does not depend on a constant
    added to all scores of a query. With binary, σ(s) is the probability that a passage is relevant
    (arXiv 1901.04085), which RocketQA uses for denoising (arXiv 2010.08191).
    """
    network = open_network(settings.model_folder)
    require_float_weights(network)
    require_lengths([network], {"config.model.max_length": settings.max_length}, SHORTEST_PAIR)
    model = load_cross_encoder(network, settings.max_length, head_seed=settings.trainer.seed)
    data = read_training(settings.data, settings.trainer.stored)
    checksums = {**data.checksums, "model": network.sha256()}
    trainer.start_or_resume(settings.trainer, len(data.pairs), checksums)
    loss: torch.nn.Module
    if settings.loss == "softmax":
        loss = ListNetLoss(model, mini_batch_size=-1)  # -1: all pairs of a step in one forward pass
        fill = fill_group
    else:
        loss = BinaryCrossEntropyLoss(model)
        fill = fill_pairs
    epoch = Epoch()
    collator: Any = RowCollator(data, epoch, fill, CrossEncoderDataCollator(model.preprocess))
    # The model's output (sentence-transformers 6.2) is not a dict: torch would find no tensor in
    # it, consider all parameters unused, and raise an error when they get gradients.
    arguments = trainer.arguments(
        CrossEncoderTrainingArguments, settings.trainer, ddp_find_unused_parameters=False
    )
    return CrossEncoderTrainer(
        model,
        arguments,
        data.pairs,
        loss=loss,
        data_collator=collator,
        callbacks=[EpochCallback(epoch)],
    )


def fill_group(data: TrainingData, query: str, passages: list[str]) -> list[dict[str, Any]]:
    """Makes a row for `ListNetLoss`: query, passages, and labels with the softmax 1, 0, 0, …."""
    texts = [data.passages[passage] for passage in passages]
    labels = [0.0] + [-math.inf] * (len(texts) - 1)
    return [{"query": data.queries[query], "passages": texts, "label": labels}]


def fill_pairs(data: TrainingData, query: str, passages: list[str]) -> list[dict[str, Any]]:
    """Makes one row per passage of a query, for `BinaryCrossEntropyLoss`."""
    text = data.queries[query]
    rows = [{"query": text, "passage": data.passages[p], "label": 0.0} for p in passages]
    rows[0]["label"] = 1.0
    return rows
