"""Sentence encoders: fine-tuning on scored pairs or triplets."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
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
from cocondenser_jax.errors import UserError
from cocondenser_jax.finetune import trainer
from cocondenser_jax.retrieval.models import load_retriever, new_parameters


def train_sentences(config: ConfigDict, workdir: Path) -> dict[str, Any]:
    """Trains a sentence encoder.

    Over the rows of a step, the loss is the mean of

      cosine:   (cos(u, v) − score / 5)²,
      triplet:  max(0, ‖a − p‖ − ‖a − n‖ + margin),
      softmax:  −log softmax(W (u, v, |u − v|) + b) of the pair's label

    (Reimers & Gurevych, arXiv 1908.10084), as Gao & Callan fine-tune on the STS Benchmark, with or
    without inference before, and on sections of Wikipedia (arXiv 2104.08253). W and b are trained
    with the encoder, and discarded.

    Arguments, result and errors as of `tasks.finetune`; see configs/sentences.py.
    """
    trainer.require_startable(config.batch_size, workdir / "encoder")
    rows = _read_rows(Path(config.data), config.loss, config.train_rows, config.seed)
    model = load_retriever(Path(config.model), config.length, config.length, config.pooling or None)
    model.max_seq_length = config.length
    trainer.start_or_resume(config, workdir, len(rows), {"data": Path(config.data)})
    hf_trainer = SentenceTransformerTrainer(
        model,
        SentenceTransformerTrainingArguments(**trainer.arguments(config, workdir)),
        rows,
        loss=_make_loss(config, model),
    )
    return trainer.run(hf_trainer, workdir, "encoder") | {"rows": len(rows)}


def _make_loss(config: ConfigDict, model: SentenceTransformer) -> torch.nn.Module:
    if config.loss == "cosine":
        return CosineSimilarityLoss(model)
    if config.loss == "triplet":
        return TripletLoss(model, triplet_margin=config.margin)
    with new_parameters(config.seed):
        return SoftmaxLoss(model, model.get_embedding_dimension() or 0, num_labels=len(LABELS))


def _read_rows(path: Path, loss: str, n_rows: int, seed: int) -> datasets.Dataset:
    """Returns a sample of `n_rows` rows to train on, all for 0; the first columns are the texts."""
    readers: dict[str, Callable[[Path], Sequence[Any]]] = {
        "cosine": read_scored_pairs,
        "triplet": read_triplets,
        "softmax": read_labelled_pairs,
    }
    found = [row._asdict() for row in readers[loss](path)]
    if loss == "cosine":
        found = [row | {"score": row["score"] / 5} for row in found]
    rows = datasets.Dataset.from_list(found)
    if not n_rows:
        return rows
    if n_rows > len(rows):
        raise UserError(
            f"config.train_rows is {n_rows}: expected 1 to {len(rows)}, the rows of {path}, or 0 "
            "for all of them"
        )
    # With the same seed, a larger sample holds the smaller one.
    order = np.random.default_rng(seed).permutation(len(rows))
    return rows.select(sorted(order[:n_rows].tolist()))
