"""Sentence encoders: fine-tuning on scored pairs or triplets."""

from pathlib import Path
from typing import Any

import datasets
import ml_collections
import numpy as np
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss, TripletLoss

from cocondenser_jax import files
from cocondenser_jax.collection.layouts import read_scored_pairs, read_triplets
from cocondenser_jax.errors import UserError
from cocondenser_jax.finetune import trainer
from cocondenser_jax.retrieval.models import load_retriever

_LOSSES = ("cosine", "triplet")


def finetune(config: ml_collections.ConfigDict, workdir: Path) -> dict[str, Any]:
    """Fine-tunes a sentence encoder; resumes an interrupted run.

    Over the rows of a step, the loss is the mean of

      cosine:   (cos(u, v) − score / 5)²,
      triplet:  max(0, ‖a − p‖ − ‖a − n‖ + margin)

    (Reimers & Gurevych, arXiv 1908.10084), as Gao & Callan fine-tune on the STS Benchmark and on
    sections of Wikipedia (arXiv 2104.08253).

    Args:
      config: see configs/sentences.py.
      workdir: gets `encoder/` (a sentence-transformers folder, whole or absent), `metrics.jsonl`,
        TensorBoard events, and checkpoints while the run is not at its end.

    Returns:
      encoder (path), steps, loss (mean of the last logged steps), seconds, and rows.

    Raises:
      UserError: for data, a model or a setting that cannot be used, or a workdir that holds
        something else.
    """
    trainer.require_settings(config)
    if config.loss not in _LOSSES:
        raise UserError(f"config.loss is {config.loss!r}: expected {' or '.join(_LOSSES)}")
    files.require_absent(workdir / "encoder")
    rows = _read_rows(config)
    model = load_retriever(Path(config.model), config.length, config.length, config.pooling or None)
    model.max_seq_length = config.length
    trainer.start_or_resume(workdir, config)
    loss = (
        CosineSimilarityLoss(model)
        if config.loss == "cosine"
        else TripletLoss(model, triplet_margin=config.margin)
    )
    result = trainer.run(
        SentenceTransformerTrainer(
            model,
            SentenceTransformerTrainingArguments(**trainer.arguments(config, workdir)),
            rows,
            loss=loss,
        ),
        workdir,
        "encoder",
    )
    return result | {"rows": len(rows)}


def _read_rows(config: ml_collections.ConfigDict) -> datasets.Dataset:
    """Returns the rows to train on, the first columns being the texts."""
    path = Path(config.data)
    if config.loss == "cosine":
        rows = datasets.Dataset.from_list(
            [
                {"first": pair.first, "second": pair.second, "score": pair.score / 5}
                for pair in read_scored_pairs(path)
            ]
        )
    else:
        rows = datasets.Dataset.from_list([triplet._asdict() for triplet in read_triplets(path)])
    if config.train_rows:
        if not 0 < config.train_rows <= len(rows):
            raise UserError(
                f"config.train_rows is {config.train_rows}: expected 1 to {len(rows)}, the rows of "
                f"{path}, or 0 for all of them"
            )
        # With the same seed, a larger sample holds the smaller one.
        order = np.random.default_rng(config.seed).permutation(len(rows))
        rows = rows.select(sorted(order[: config.train_rows].tolist()))
    if len(rows) < config.batch_size:
        raise UserError(
            f"{path} has {len(rows)} rows: too few for one step of batch_size={config.batch_size}"
        )
    return rows
