"""Losses of a bi-encoder over the scores of all queries and passages of a step.

Shapes: Q queries, each with its own group of G passages, the positive first, P = Q·G passages in
all; D, the size of an embedding. A row of scores belongs to a query, a column to a passage, and
query i's group is the columns i·G to i·G + G − 1. A column that must not count holds −inf.
"""

from collections.abc import Iterable
from typing import Literal, get_args

import numpy as np
import scipy.sparse
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.losses.gradcache import CachedLossMixin
from sentence_transformers.base.losses.merged_forward import embed_columns
from sentence_transformers.util import all_gather, all_gather_with_grad, get_rank
from torch.nn import functional

from cocondenser_jax.finetune.training_data import Known

Loss = Literal["contrastive", "pairwise", "soft_labels", "soft_labels_group"]
LOSSES: tuple[Loss, ...] = get_args(Loss)


def inner_products(queries_QxD: torch.Tensor, passages_PxD: torch.Tensor) -> torch.Tensor:
    """Returns all inner products (Q, P), in float32 also where the encoder runs in bfloat16.

    At the size such logits have, about 200, neighbouring bfloat16 numbers are 1.0 apart.
    """
    with torch.autocast(queries_QxD.device.type, enabled=False):
        return queries_QxD.float() @ passages_PxD.float().T


def contrastive(scores_QxP: torch.Tensor, group_size: int, first: int = 0) -> torch.Tensor:
    """Returns −1/Q Σ_q log( exp s(q, d⁺_q) / Σ_d exp s(q, d) ), over all passages of the step.

    Gao & Callan, arXiv 2108.05540, section 4.

    Args:
      scores_QxP: s, of some queries of the step with all its passages.
      group_size: passages per query.
      first: which query of the step the first row is.
    """
    return functional.cross_entropy(scores_QxP, _positives(scores_QxP, group_size, first))


def pairwise(scores_QxP: torch.Tensor, group_size: int, first: int = 0) -> torch.Tensor:
    """Returns the mean over q and d ≠ d⁺_q of log(1 + exp(s(q, d) − s(q, d⁺_q))): RankNet.

    The learning-to-rank loss of Burges et al., *Learning to rank using gradient descent* (ICML
    2005), over all passages of the step. Arguments as `contrastive`'s.
    """
    own_Qx1 = _positives(scores_QxP, group_size, first)[:, None]
    margins_QxP = scores_QxP - scores_QxP.gather(1, own_Qx1)
    losses_QxP = functional.softplus(margins_QxP.scatter(1, own_Qx1, -torch.inf))
    return losses_QxP.sum() / (losses_QxP.numel() - len(losses_QxP))


def soft_labels(
    scores_QxP: torch.Tensor, teacher_QxG: torch.Tensor, first: int = 0, *, group_only: bool = False
) -> torch.Tensor:
    """Returns 1/Q Σ_q KL(T_q ‖ S_q), the distillation of a cross-encoder.

    T_q is the softmax of the teacher's scores over the query's own group, 0 elsewhere; S_q is the
    softmax of s over all passages of the step, so that what the teacher has not seen is pushed away
    as a negative is.

    Args:
      scores_QxP: as in `contrastive`; the group of a query must be finite.
      teacher_QxG: the teacher's scores of each query's group.
      first: as in `contrastive`.
      group_only: let S_q too run over the group alone.
    """
    n_queries, group_size = teacher_QxG.shape
    rows = torch.arange(n_queries, device=scores_QxP.device)[:, None]
    columns = (first + rows) * group_size + torch.arange(group_size, device=rows.device)
    if group_only:
        log_student_QxG = scores_QxP[rows, columns].log_softmax(1)
    else:
        log_student_QxG = scores_QxP.log_softmax(1)[rows, columns]
    log_teacher_QxG = teacher_QxG.log_softmax(1)
    return functional.kl_div(
        log_student_QxG, log_teacher_QxG, reduction="batchmean", log_target=True
    )


class InBatchLoss(CachedLossMixin, torch.nn.Module):
    """One of the losses above as sentence-transformers' trainer wants it.

    A passage that is judged relevant to a query is never its negative: where another query of the
    step brings it along, its score does not count. With several processes, the passages of all are
    scored against the queries of each, and the mean over processes is the loss of the whole step.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        name: Loss,
        known: Known,
        scale: float = 1.0,
        chunk_size: int = 0,
    ) -> None:
        """Makes the loss.

        Args:
          model: the bi-encoder.
          name: which loss.
          known: judgments, and for soft labels a teacher's scores of every group.
          scale: factor of the inner products.
          chunk_size: texts per forward pass, whose gradients are cached (Gao et al., arXiv
            2101.06983); 0: all of a column at once, without a cache.
        """
        super().__init__()
        self.model = model
        self.mini_batch_size = chunk_size
        self._name, self._known, self._scale = name, known, scale

    def forward(
        self, sentence_features: Iterable[dict[str, torch.Tensor]], labels: torch.Tensor
    ) -> torch.Tensor:
        """Returns the loss of a step.

        Args:
          sentence_features: tokens of the queries, then of the passages at each place of a group.
          labels: numbers (queries, 1 + G) of the query and the passages of its group, see `Known`.
        """
        if self.mini_batch_size:
            return self.forward_cached(sentence_features, labels)
        return self._loss(embed_columns(self.model, sentence_features), labels)

    def calculate_loss(
        self,
        reps: list[list[torch.Tensor]],
        labels: torch.Tensor | None = None,
        *,
        with_backward: bool = False,
    ) -> torch.Tensor:
        """Returns the loss of embeddings that came in chunks: see `CachedLossMixin`."""
        assert labels is not None  # `forward` passes them on
        loss = self._loss([torch.cat(chunks) for chunks in reps], labels)
        if with_backward:
            loss.backward()
            loss = loss.detach()
        return loss

    def _loss(self, embeddings: list[torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
        queries_QxD, groups_QxGxD = embeddings[0], torch.stack(embeddings[1:], dim=1)
        n_queries, group_size = groups_QxGxD.shape[:2]
        first = get_rank() * n_queries
        passages_PxD = all_gather_with_grad(groups_QxGxD).flatten(0, 1)
        numbers_P = all_gather(labels[:, 1:].contiguous()).flatten()
        scores_QxP = self._scale * inner_products(queries_QxD, passages_PxD)
        relevant_QxP = _look_up(self._known.relevant, labels[:, 0], numbers_P)
        own_Qx1 = _positives(scores_QxP, group_size, first)[:, None]
        scores_QxP = scores_QxP.masked_fill(relevant_QxP.scatter(1, own_Qx1, False), -torch.inf)
        if self._name == "contrastive":
            return contrastive(scores_QxP, group_size, first)
        if self._name == "pairwise":
            return pairwise(scores_QxP, group_size, first)
        teacher_QxG = _look_up_groups(self._known.teacher, labels)
        return soft_labels(
            scores_QxP, teacher_QxG, first, group_only=self._name == "soft_labels_group"
        )


def _positives(scores_QxP: torch.Tensor, group_size: int, first: int) -> torch.Tensor:
    """Returns the column of each row's positive."""
    rows_Q = torch.arange(len(scores_QxP), device=scores_QxP.device)
    return (first + rows_Q) * group_size


def _look_up(
    matrix: scipy.sparse.csr_array, queries_Q: torch.Tensor, passages_P: torch.Tensor
) -> torch.Tensor:
    """Returns the matrix's values for all queries and passages (Q, P)."""
    rows_QxN = matrix[queries_Q.cpu().numpy()]
    return torch.from_numpy(rows_QxN[:, passages_P.cpu().numpy()].toarray()).to(queries_Q.device)


def _look_up_groups(
    matrix: scipy.sparse.csr_array | None, labels_Qx1G: torch.Tensor
) -> torch.Tensor:
    """Returns the matrix's values for each query and its own group (Q, G)."""
    assert matrix is not None  # `finetune` does not go without a teacher
    queries_Qx1, passages_QxG = np.split(labels_Qx1G.cpu().numpy(), [1], axis=1)
    values_QxG = matrix[np.broadcast_to(queries_Qx1, passages_QxG.shape), passages_QxG].toarray()
    return torch.from_numpy(values_QxG).float().to(labels_Qx1G.device)
