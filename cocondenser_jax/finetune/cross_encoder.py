"""Fine-tuning of a cross-encoder, on sentence-transformers' trainer.

A cross-encoder reads a query and a passage together, as Nogueira & Cho, "Passage Re-ranking with
BERT" (arXiv 1901.04085): slow, but better than a bi-encoder. `rerank` scores passages with it.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from ml_collections import ConfigDict
from sentence_transformers import CrossEncoder
from sentence_transformers.cross_encoder import CrossEncoderTrainer, CrossEncoderTrainingArguments
from sentence_transformers.util import batch_to_device
from torch.nn.functional import binary_cross_entropy_with_logits

from cocondenser_jax.finetune import trainer
from cocondenser_jax.finetune.training_data import EachEpoch, read_training
from cocondenser_jax.retrieval.models import load_cross_encoder


def cross_encoder_trainer(config: ConfigDict, workdir: Path) -> CrossEncoderTrainer:
    """Returns the trainer: of each pair and its negatives, `group_loss` compares the scores.

    Arguments and errors as of `tasks.finetune`; see configs/cross_encoder.py.
    """
    data = read_training(config)
    model = load_cross_encoder(Path(config.model), config.max_length, head_seed=config.seed)
    trainer.start_or_resume(config, workdir, len(data.pairs), data.files)
    return CrossEncoderTrainer(
        model,
        CrossEncoderTrainingArguments(**trainer.arguments(config, workdir)),
        data.pairs,
        loss=_GroupLoss(model, config.loss),
        callbacks=[EachEpoch(data)],
    )


def group_loss(scores_QxP: torch.Tensor, loss: str) -> torch.Tensor:
    """Returns the loss of the logits of Q queries' P passages, of which the first is relevant.

      softmax:  L = −1/Q Σ_q log( exp s(q, d⁺) / Σ_d exp s(q, d) ),
      binary:   L = −1/(Q·P) Σ_q ( log σ(s(q, d⁺)) + Σ_d⁻ log(1 − σ(s(q, d⁻))) ).

    The first is the localised contrastive loss of Gao et al., "Rethink Training of BERT Rerankers
    in Multi-Stage Retrieval Pipeline" (arXiv 2101.08751): it ranks, and a constant added to a
    query's scores changes nothing. With the second, σ(s) is the probability that a passage is
    relevant (Nogueira & Cho, arXiv 1901.04085), by which Qu et al. denoise (RocketQA, arXiv
    2010.08191).
    """
    if loss == "softmax":
        return -scores_QxP.log_softmax(1)[:, 0].mean()
    relevant_QxP = torch.zeros_like(scores_QxP)
    relevant_QxP[:, 0] = 1
    return binary_cross_entropy_with_logits(scores_QxP, relevant_QxP)


class _GroupLoss(torch.nn.Module):
    """`group_loss` of texts, as the trainer calls it."""

    def __init__(self, model: CrossEncoder, loss: str) -> None:
        super().__init__()
        self.model = model  # with several processes, the trainer replaces it by this name
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
