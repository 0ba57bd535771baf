"""Fine-tuning of a cross-encoder, on sentence-transformers' trainer.

A cross-encoder reads a query and a passage together, as Nogueira & Cho, "Passage Re-ranking with
BERT" (arXiv 1901.04085): slow, but better than a bi-encoder. `rerank` scores passages with it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_collections
import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.cross_encoder import CrossEncoderTrainer, CrossEncoderTrainingArguments
from sentence_transformers.util import batch_to_device
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from cocondenser_jax import files
from cocondenser_jax.errors import UserError
from cocondenser_jax.finetune import trainer
from cocondenser_jax.finetune.training_data import read_training
from cocondenser_jax.retrieval.models import load_cross_encoder

_LOSSES = ("softmax", "binary")


def finetune(config: ml_collections.ConfigDict, workdir: Path) -> dict[str, Any]:
    """Fine-tunes a cross-encoder on queries, relevant passages and sampled negatives.

    An interrupted run is resumed. Of a pair (query, relevant passage) and its negatives, which are
    drawn anew every epoch, `group_loss` compares the scores.

    Args:
      config: see configs/cross_encoder.py.
      workdir: gets `cross_encoder/` (a folder for sentence-transformers' CrossEncoder, whole or
        absent), `metrics.jsonl`, TensorBoard events, and checkpoints while the run is not at its
        end.

    Returns:
      cross_encoder (path), steps, loss (mean of the last logged steps), seconds, and pairs.

    Raises:
      UserError: for data, a model or a setting that cannot be used, or a workdir that holds
        something else.
    """
    _require_settings(config)
    files.require_absent(workdir / "cross_encoder")
    training = read_training(config)
    model = load_cross_encoder(Path(config.model), config.max_length, head_seed=config.seed)
    trainer.start_or_resume(workdir, config)
    result = trainer.run(
        CrossEncoderTrainer(
            model,
            CrossEncoderTrainingArguments(**trainer.arguments(config, workdir)),
            training.rows,
            loss=_GroupLoss(model, config.loss),
            callbacks=[trainer.EachEpoch(training.draw)],
        ),
        workdir,
        "cross_encoder",
    )
    return result | {"pairs": len(training.rows)}


def group_loss(scores_QxP: torch.Tensor, loss: str) -> torch.Tensor:
    """Returns the loss of Q queries whose first passage of P is relevant and no other.

      softmax:  L = −1/Q Σ_q log( exp s(q, d⁺) / Σ_d exp s(q, d) ),
      binary:   L = −1/(Q·P) Σ_q ( log σ(s(q, d⁺)) + Σ_d⁻ log(1 − σ(s(q, d⁻))) ).

    The first is the localised contrastive loss of Gao et al., "Rethink Training of BERT Rerankers
    in Multi-Stage Retrieval Pipeline" (arXiv 2101.08751): it ranks, and leaves open what a query's
    scores have in common. With the second, σ(s) is the probability that a passage is relevant
    (Nogueira & Cho, arXiv 1901.04085), by which Qu et al. denoise (RocketQA, arXiv 2010.08191).

    Args:
      scores_QxP: logits of each query's passages.
      loss: "softmax" or "binary".
    """
    if loss == "softmax":
        first_Q = torch.zeros(len(scores_QxP), dtype=torch.long, device=scores_QxP.device)
        return cross_entropy(scores_QxP, first_Q)
    relevant_QxP = torch.zeros_like(scores_QxP)
    relevant_QxP[:, 0] = 1
    return binary_cross_entropy_with_logits(scores_QxP, relevant_QxP)


class _GroupLoss(torch.nn.Module):
    """`group_loss` of texts, in the form that the trainer calls."""

    def __init__(self, model: CrossEncoder, loss: str) -> None:
        super().__init__()
        self.model = model  # where processes share the step, the trainer replaces it by this name
        self._loss = loss

    def forward(
        self, columns: Sequence[Sequence[str]], labels: object = None, **kwargs: object
    ) -> torch.Tensor:
        # The columns are queries, relevant passages, first negatives, and so on.
        groups = zip(*columns, strict=True)
        pairs = [(query, passage) for query, *passages in groups for passage in passages]
        features = batch_to_device(self.model.preprocess(pairs), self.model.device)
        scores = self.model(features)["scores"]
        return group_loss(scores.view(len(columns[0]), -1), self._loss)


def _require_settings(config: ml_collections.ConfigDict) -> None:
    trainer.require_settings(config)
    if config.loss not in _LOSSES:
        raise UserError(f"config.loss is {config.loss!r}: expected {' or '.join(_LOSSES)}")
    if config.negatives_per_query < 1:
        raise UserError(
            f"config.negatives_per_query is {config.negatives_per_query}: expected at least 1"
        )
    if not config.negatives_run:
        raise UserError("config.negatives_run is not set: expected a run to draw negatives from")
