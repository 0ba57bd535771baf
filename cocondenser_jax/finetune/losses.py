"""Losses of a bi-encoder over the scores of all queries and passages of a step.

Shapes: Q queries, each with its own group of G passages, the positive first, P = Q·G passages in
all; D, the size of an embedding. A row of scores belongs to a query, a column to a passage, and
query i's group is the columns i·G to i·G + G − 1. A column that must not count holds −inf.
"""

from collections.abc import Iterable
from typing import Literal

import numpy as np
import scipy.sparse
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.losses.gradcache import CachedLossMixin
from sentence_transformers.base.losses.merged_forward import embed_columns
from sentence_transformers.util import all_gather, all_gather_with_grad, get_rank
from torch.nn import functional

from cocondenser_jax.finetune.training_data import Judgments

Loss = Literal["contrastive", "learning_to_rank", "pairwise", "soft_labels", "soft_labels_group"]
SOFT_LOSSES = ("soft_labels", "soft_labels_group")  # those that need a teacher


def inner_products(queries_QxD: torch.Tensor, passages_PxD: torch.Tensor) -> torch.Tensor:
    """Returns scores_QxP, the inner products, in float32 even if the encoder runs in bfloat16.

    Such logits are about 200, where neighbouring bfloat16 numbers are 1.0 apart.
    """
    with torch.autocast(queries_QxD.device.type, enabled=False):
        return queries_QxD.float() @ passages_PxD.float().T


def learned_scores(
    queries_QxD: torch.Tensor, passages_PxD: torch.Tensor, scorer: torch.nn.Linear
) -> torch.Tensor:
    """Returns scores_QxP, σ(W{q, d} + b), {q, d} being the two vectors side by side.

    With `contrastive`, this is the learning-to-rank loss (equation 14) of the study of Condenser
    with adaptive batches. The scorer is trained with the model, and discarded: what is exported
    scores by the inner product.

    Args:
      queries_QxD: q.
      passages_PxD: d.
      scorer: W and b, from 2·D numbers to one.
    """
    with torch.autocast(queries_QxD.device.type, enabled=False):
        of_query_D, of_passage_D = scorer.weight[0].chunk(2)
        from_query_Qx1 = (queries_QxD.float() @ of_query_D + scorer.bias)[:, None]
        return torch.sigmoid(from_query_Qx1 + passages_PxD.float() @ of_passage_D)


def contrastive(scores_QxP: torch.Tensor, group_size: int, first: int = 0) -> torch.Tensor:
    """Returns −1/Q Σ_q log( exp s(q, d⁺_q) / Σ_d exp s(q, d) ), over all passages of the step.

    Gao & Callan, arXiv 2108.05540, the equation in section 3.4.

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
    softmax of s over all passages of the step, so that passages the teacher has not scored are
    pushed away like negatives. It is not KL(S_q ‖ T_q), as equation 16 of the study of Condenser
    with adaptive batches prints it: S_q is nowhere 0, so that diverges wherever T_q is.

    Args:
      scores_QxP: as in `contrastive`; the group of a query must be finite.
      teacher_QxG: the teacher's scores of each query's group.
      first: as in `contrastive`.
      group_only: S_q, too, is a softmax over the group alone.
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
    """One of the losses above, as sentence-transformers' trainer calls it.

    A passage that is judged relevant to a query is never its negative: if it is in the group of
    another query of the step, its score does not count. With several processes, each scores its
    queries against the passages of all, and the mean over processes is the loss of the whole step.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        name: Loss,
        judgments: Judgments,
        scale: float = 1.0,
        chunk_size: int = 0,
    ) -> None:
        """Makes the loss.

        Args:
          model: the bi-encoder.
          name: which loss.
          judgments: for soft labels with a teacher's scores of every group.
          scale: factor of the scores.
          chunk_size: texts per forward pass, with a gradient cache (Gao et al., arXiv
            2101.06983); 0: a whole column at once, without a cache.
        """
        super().__init__()
        self.model = model
        self.mini_batch_size = chunk_size
        self._name, self._judgments, self._scale = name, judgments, scale
        n_inputs = 2 * (model.get_embedding_dimension() or 0)
        self.scorer = torch.nn.Linear(n_inputs, 1) if name == "learning_to_rank" else None

    def forward(
        self, sentence_features: Iterable[dict[str, torch.Tensor]], labels: torch.Tensor
    ) -> torch.Tensor:
        """Returns the loss of a step.

        Args:
          sentence_features: tokens of the queries, then of the passages at each place of a group.
          labels: labels_Qx1G, the numbers of each query and the passages of its group, see
            `Judgments`.
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
        """Returns the loss of embeddings in chunks: see `CachedLossMixin`."""
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
        if self.scorer:
            scores_QxP = learned_scores(queries_QxD, passages_PxD, self.scorer)
        else:
            scores_QxP = inner_products(queries_QxD, passages_PxD)
        scores_QxP = self._scale * scores_QxP
        relevant_QxP = _look_up(self._judgments.relevant, labels[:, 0], numbers_P)
        own_Qx1 = _positives(scores_QxP, group_size, first)[:, None]
        scores_QxP = scores_QxP.masked_fill(relevant_QxP.scatter(1, own_Qx1, False), -torch.inf)
        if self._name in ("contrastive", "learning_to_rank"):
            return contrastive(scores_QxP, group_size, first)
        if self._name == "pairwise":
            return pairwise(scores_QxP, group_size, first)
        assert self._judgments.teacher is not None  # `train_bi_encoder` requires one
        teacher_QxG = _look_up_groups(self._judgments.teacher, labels)
        group_only = self._name == "soft_labels_group"
        return soft_labels(scores_QxP, teacher_QxG, first, group_only=group_only)


def _positives(scores_QxP: torch.Tensor, group_size: int, first: int) -> torch.Tensor:
    """Returns the column of each row's positive."""
    rows_Q = torch.arange(len(scores_QxP), device=scores_QxP.device)
    return (first + rows_Q) * group_size


def _look_up(
    matrix: scipy.sparse.csr_array, queries_Q: torch.Tensor, passages_P: torch.Tensor
) -> torch.Tensor:
    """Returns values_QxP, the matrix's for each of the queries with each of the passages."""
    rows_QxN = matrix[queries_Q.cpu().numpy()]
    return torch.from_numpy(rows_QxN[:, passages_P.cpu().numpy()].toarray()).to(queries_Q.device)


def _look_up_groups(matrix: scipy.sparse.csr_array, labels_Qx1G: torch.Tensor) -> torch.Tensor:
    """Returns values_QxG, the matrix's for each query with its own group."""
    queries_Qx1, passages_QxG = np.split(labels_Qx1G.cpu().numpy(), [1], axis=1)
    values_QxG = matrix[np.broadcast_to(queries_Qx1, passages_QxG.shape), passages_QxG].toarray()
    return torch.from_numpy(values_QxG).float().to(labels_Qx1G.device)
