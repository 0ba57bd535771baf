"""Sentence encoders: fine-tuning on scored pairs or triplets."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import torch
from ml_collections import ConfigDict
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
from cocondenser_jax.finetune.training_data import sample
from cocondenser_jax.retrieval.models import load_retriever, new_parameters


def sentences_trainer(config: ConfigDict, workdir: Path) -> SentenceTransformerTrainer:
    """Returns the trainer of a sentence encoder.

    Over the rows of a step, the loss is the mean of

      cosine:   (cos(u, v) − score / 5)²,
      triplet:  max(0, ‖a − p‖ − ‖a − n‖ + margin),
      softmax:  −log softmax(W (u, v, |u − v|) + b) of the pair's label

    (Reimers & Gurevych, arXiv 1908.10084), as Gao & Callan fine-tune on the STS Benchmark, with or
    without inference before, and on sections of Wikipedia (arXiv 2104.08253). W and b are trained
    with the encoder, and discarded.

    Arguments and errors as of `tasks.finetune`; see configs/sentences.py.
    """
    rows = _read_rows(Path(config.data), config.loss, config.train_rows, config.seed)
    model = load_retriever(Path(config.model), config.length, config.length, config.pooling or None)
    model.max_seq_length = config.length
    trainer.start_or_resume(config, workdir, len(rows), {"data": Path(config.data)})
    arguments = SentenceTransformerTrainingArguments(**trainer.arguments(config, workdir))
    return SentenceTransformerTrainer(model, arguments, rows, loss=_make_loss(config, model))


def _make_loss(config: ConfigDict, model: SentenceTransformer) -> torch.nn.Module:
    if config.loss == "cosine":
        return CosineSimilarityLoss(model)
    if config.loss == "triplet":
        return TripletLoss(model, triplet_margin=config.margin)
    with new_parameters(config.seed):
        return SoftmaxLoss(model, model.get_embedding_dimension() or 0, num_labels=len(LABELS))


def _read_rows(path: Path, loss: str, n_rows: int, seed: int) -> datasets.Dataset:
    """Returns a sample of `n_rows` rows to train on, all for 0; the first columns are the texts."""
    found: Sequence[tuple[Any, ...]]
    if loss == "cosine":
        names = ("first", "second", "score")
        found = [(first, second, score / 5) for first, second, score in read_scored_pairs(path)]
    elif loss == "triplet":
        names, found = ("anchor", "positive", "negative"), read_triplets(path)
    else:
        names, found = ("first", "second", "label"), read_labelled_pairs(path)
    drawn = sample(n_rows, len(found), seed, "config.train_rows", f"the rows of {path}")
    return datasets.Dataset.from_list([dict(zip(names, found[i], strict=True)) for i in drawn])
