"""Fine-tunes sentence encoders on scored pairs or triplets."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import torch
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import (
    CosineSimilarityLoss,
    SoftmaxLoss,
    TripletLoss,
)

from cocondenser_jax.collection.sentences import (
    LABELS,
    read_labelled_pairs,
    read_scored_pairs,
    read_triplets,
)
from cocondenser_jax.finetune import trainer
from cocondenser_jax.finetune.trainer import TrainerSettings
from cocondenser_jax.finetune.training_data import sample
from cocondenser_jax.retrieval.models import load_retriever, new_parameters


class SentencesSettings(NamedTuple):
    """All settings of the fine-tuning of a sentence encoder; see configs/sentences.py."""

    model: str
    pooling: str
    length: int
    data: str
    train_rows: int
    seed: int
    loss: str
    trainer: TrainerSettings


def sentences_trainer(settings: SentencesSettings) -> SentenceTransformerTrainer:
    """Makes the trainer of a sentence encoder.

    Over the rows of a step, the loss is the mean of

      cosine:   (cos(u, v) − score / 5)²,
      triplet:  max(0, ‖a − p‖ − ‖a − n‖ + 5),
      softmax:  −log softmax(W (u, v, |u − v|) + b) of the pair's label

    (Reimers & Gurevych, arXiv 1908.10084), as Gao & Callan fine-tune on the STS Benchmark, with or
    without inference before, and on sections of Wikipedia (arXiv 2104.08253). W and b are trained
    with the encoder, and discarded.
    """
    path = Path(settings.data)
    rows = _read_rows(path, settings.loss, settings.train_rows, settings.seed)
    length = settings.length
    model = load_retriever(Path(settings.model), length, length, settings.pooling or None)
    model.max_seq_length = length
    trainer.start_or_resume(settings.trainer, len(rows), {"data": path})
    arguments = SentenceTransformerTrainingArguments(**trainer.arguments(settings.trainer))
    return SentenceTransformerTrainer(model, arguments, rows, loss=_make_loss(settings, model))


def _make_loss(settings: SentencesSettings, model: SentenceTransformer) -> torch.nn.Module:
    if settings.loss == "cosine":
        return CosineSimilarityLoss(model)
    if settings.loss == "triplet":
        return TripletLoss(model)
    with new_parameters(settings.seed):
        return SoftmaxLoss(model, model.get_embedding_dimension() or 0, num_labels=len(LABELS))


def _read_rows(path: Path, loss: str, n_rows: int, seed: int) -> datasets.Dataset:
    """Returns a sample of `n_rows` training rows, all for 0; the first columns are the texts."""
    found: Sequence[tuple[Any, ...]]
    if loss == "cosine":
        names = ("first", "second", "score")
        found = [(first, second, score / 5) for first, second, score in read_scored_pairs(path)]
    elif loss == "triplet":
        names = ("anchor", "positive", "negative")
        found = read_triplets(path)
    else:
        names = ("first", "second", "label")
        found = read_labelled_pairs(path)
    drawn = sample(n_rows, len(found), seed, "config.train_rows", f"the rows of {path}")
    return datasets.Dataset.from_list([dict(zip(names, found[i], strict=True)) for i in drawn])
