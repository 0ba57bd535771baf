"""Losses of a bi-encoder, computed from the scores of all queries and passages of a step.

Shapes: Q queries, each with a group of G passages, the positive first; P = Q·G passages in total;
D, the dimension of an embedding. Scores have a row for each query and a column for each passage;
`own_QxG` holds the columns of each query's group. Excluded scores are −inf.
"""

from collections.abc import Iterable
from typing import Any

import scipy.sparse
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.losses import CachedLossMixin

# Not public in 6.2.0; it embeds all columns in one forward pass, like the library's losses.
from sentence_transformers.base.losses.merged_forward import embed_columns
from sentence_transformers.util import all_gather, all_gather_with_grad, get_rank
from torch.nn import functional

from cocondenser_jax.retriever.search.models import cut_vectors
from cocondenser_jax.retriever.train.settings import LossSettings
from cocondenser_jax.retriever.train.training_data import Judgments


def inner_products(queries_QxD: torch.Tensor, passages_PxD: torch.Tensor) -> torch.Tensor:
    """Returns scores_QxP, inner products, in float32: near 200, bfloat16 numbers are 1.0 apart."""
    with torch.autocast(queries_QxD.device.type, enabled=False):
        return queries_QxD.float() @ passages_PxD.float().T


def contrastive(scores_QxP: torch.Tensor, own_QxG: torch.Tensor) -> torch.Tensor:
    """Returns −1/Q Σ_q log( exp s(q, d⁺_q) / Σ_d exp s(q, d) ): arXiv 2108.05540, equation 14."""
    return functional.cross_entropy(scores_QxP, own_QxG[:, 0])


def soft_labels(
    scores_QxP: torch.Tensor,
    own_QxG: torch.Tensor,
    teacher_QxG: torch.Tensor,
) -> torch.Tensor:
    """Returns 1/Q Σ_q KL(T_q ‖ S_q), the distillation of a cross-encoder.

    T_q is the softmax of the teacher's scores over the query's own group, and 0 elsewhere. S_q is
    the softmax of s over all passages of the step, so passages without a teacher's score are pushed
    away like negatives. Equation 16 of arXiv 2108.05540 prints KL(S_q ‖ T_q), which diverges where
    T_q is 0. Scores within a query's group, s and `teacher_QxG`, must be finite.
    """
    log_S_QxG = scores_QxP.log_softmax(1).gather(1, own_QxG)
    log_T_QxG = teacher_QxG.log_softmax(1)
    return functional.kl_div(log_S_QxG, log_T_QxG, reduction="batchmean", log_target=True)


class InBatchLoss(CachedLossMixin, torch.nn.Module):
    """One of the losses above, for sentence-transformers' trainer.

    Passages judged relevant to a query are never its negatives; in the groups of other queries,
    their scores are excluded. Each of several processes scores its own queries against the passages
    of all; the mean over processes is the loss of the step.
    """

    def __init__(
        self, model: SentenceTransformer, judgments: Judgments, settings: LossSettings
    ) -> None:
        """Makes the loss.

        Args:
          model: the bi-encoder.
          judgments: the numbering of labels, with a teacher's scores for soft labels.
          settings: with a `chunk_size`, gradients are cached (Gao et al., arXiv 2101.06983). With
            `sizes`, the first being the model's dimension, the loss is the sum of the losses of
            vectors truncated to each size (Matryoshka representations, Kusupati et al., arXiv
            2205.13147).
        """
        super().__init__()
        self.model = model
        self.mini_batch_size = settings.chunk_size  # the name that `CachedLossMixin` reads
        self._judgments = judgments
        self._name = settings.name
        self._sizes = settings.sizes
        self._scale = settings.scale

    def score(self, queries_QxD: torch.Tensor, passages_PxD: torch.Tensor) -> torch.Tensor:
        """Returns scores_QxP, the scaled inner products of which the loss is computed."""
        return self._scale * inner_products(queries_QxD, passages_PxD)

    def forward(
        self, sentence_features: Iterable[dict[str, torch.Tensor]], labels: torch.Tensor
    ) -> torch.Tensor:
        """Returns the loss of a step.

        Args:
          sentence_features: tokens of the queries, then of the passages at each place in a group.
          labels: [Q, 1 + G], the numbers in `Judgments` of each query and of its group's passages.
        """
        if self.mini_batch_size:
            return self.forward_cached(sentence_features, labels)
        return self._loss(embed_columns(self.model, sentence_features), labels)

    def calculate_loss(
        self, reps: list[list[torch.Tensor]], labels: Any = None, *, with_backward: bool = False
    ) -> torch.Tensor:
        """Returns the loss of chunks of embeddings, for `CachedLossMixin`."""
        loss = self._loss([torch.cat(chunks) for chunks in reps], labels)
        if with_backward:
            loss.backward()
            loss = loss.detach()
        return loss

    def _loss(self, embeddings: list[torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
        queries_QxD = embeddings[0]
        groups_QxGxD = torch.stack(embeddings[1:], dim=1)
        n_queries, group_size = groups_QxGxD.shape[:2]
        passages_PxD = all_gather_with_grad(groups_QxGxD).flatten(0, 1)
        columns_P = torch.arange(len(passages_PxD), device=queries_QxD.device)
        own_QxG = columns_P.view(-1, group_size)[get_rank() * n_queries :][:n_queries]
        numbers_P = all_gather(labels[:, 1:].contiguous()).flatten()
        relevant_QxP = _look_up(self._judgments.relevant, labels[:, 0], numbers_P)
        others_QxP = relevant_QxP.scatter(1, own_QxG[:, :1], False)
        teacher_QxG = None
        if self._name == "soft_labels":
            assert self._judgments.teacher is not None  # `bi_encoder_trainer` requires one
            teacher_QxP = _look_up(self._judgments.teacher, labels[:, 0], numbers_P)
            teacher_QxG = teacher_QxP.gather(1, own_QxG)

        def loss_of(queries_QxD: torch.Tensor, passages_PxD: torch.Tensor) -> torch.Tensor:
            scores_QxP = self.score(queries_QxD, passages_PxD)
            scores_QxP = scores_QxP.masked_fill(others_QxP, -torch.inf)
            if teacher_QxG is None:
                return contrastive(scores_QxP, own_QxG)
            return soft_labels(scores_QxP, own_QxG, teacher_QxG)

        loss = loss_of(queries_QxD, passages_PxD)
        for size in self._sizes[1:]:
            parts = (
                cut_vectors(x, size, self.model.similarity_fn_name)
                for x in (queries_QxD, passages_PxD)
            )
            loss = loss + loss_of(*parts)
        return loss


def _look_up(
    matrix: scipy.sparse.csr_array, queries_Q: torch.Tensor, passages_P: torch.Tensor
) -> torch.Tensor:
    rows_QxN = matrix[queries_Q.cpu().numpy()]
    return torch.from_numpy(rows_QxN[:, passages_P.cpu().numpy()].toarray()).to(queries_Q.device)
