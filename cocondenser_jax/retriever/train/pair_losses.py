"""Losses of pairs of texts of a corpus, in PyTorch; `pretrain/objectives.py` has them in JAX.

Shapes: S texts, of which 2i and 2i + 1 are a pair, I = S / 2 pairs; D, the size of a vector.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.losses import CachedLossMixin
from torch.nn import functional

from cocondenser_jax.representation import Representation
from cocondenser_jax.retriever.search.cut import cut_vectors
from cocondenser_jax.retriever.train.losses import inner_products


class PairLossSettings(NamedTuple):
    """Which loss, and how it is computed; see configs/default.py."""

    objective: str  # of PAIR_LOSSES
    chunk_size: int  # texts of a forward pass; 0: all


def corpus_contrastive(
    vectors_SxD: torch.Tensor, origins_Sx2: torch.Tensor, scale: float
) -> torch.Tensor:
    """Returns the mean over texts of the corpus-level contrastive loss.

    Equation 6 of Gao & Callan, arXiv 2108.05540, with scaled scores: for text j of pair i,
    L_co = -log exp s<h_i1, h_i2> / sum over kl != ij of exp s<h_ij, h_kl>.

    Args:
      vectors_SxD: float32.
      origins_Sx2: of each text, as in `Batch`: texts of one origin are no negatives of each other.
      scale: s.
    """
    positives_S = torch.arange(len(vectors_SxD), device=vectors_SxD.device) ^ 1
    scores_SxS = scale * inner_products(vectors_SxD, vectors_SxD)
    return _positive_loss(scores_SxS, _share_origin(origins_Sx2, origins_Sx2), positives_S)


def inverse_cloze(
    vectors_SxD: torch.Tensor, origins_Sx2: torch.Tensor, scale: float
) -> torch.Tensor:
    """Returns the mean over pairs of the loss of the inverse cloze task.

    Equations 7 and 8 of Lee, Chang & Toutanova, arXiv 1906.00300, with scaled scores: for sentence
    q_i taken out of text b_i, L = -log exp s<q_i, b_i> / sum over k of exp s<q_i, b_k>. Text 2i is
    a sentence, text 2i + 1 what it was taken out of; otherwise as `corpus_contrastive`.
    """
    scores_IxI = scale * inner_products(vectors_SxD[::2], vectors_SxD[1::2])
    positives_I = torch.arange(len(scores_IxI), device=vectors_SxD.device)
    return _positive_loss(
        scores_IxI, _share_origin(origins_Sx2[::2], origins_Sx2[1::2]), positives_I
    )


# By the names of `config.train.objective`: from vectors, origins and scale to the loss of a batch.
PAIR_LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]] = {
    "contrastive": corpus_contrastive,
    "ict": inverse_cloze,
}


class PairLoss(CachedLossMixin, torch.nn.Module):
    """One of PAIR_LOSSES, as sentence-transformers' trainer calls it.

    Where vectors have several sizes, it is the sum of the losses for each (Kusupati et al., arXiv
    2205.13147, equation 1 with weights of 1).
    """

    def __init__(
        self,
        model: SentenceTransformer,
        representation: Representation,
        settings: PairLossSettings,
    ) -> None:
        """Makes the loss of a model with vectors of this representation.

        Where a batch has more than `chunk_size` texts, there is a gradient cache (Gao et al., arXiv
        2101.06983).
        """
        super().__init__()
        self.model = model
        self.mini_batch_size = settings.chunk_size  # the name that `CachedLossMixin` reads
        self._loss = PAIR_LOSSES[settings.objective]
        self._representation = representation

    def forward(
        self, sentence_features: Iterable[dict[str, torch.Tensor]], labels: torch.Tensor
    ) -> torch.Tensor:
        """Returns the loss of a step.

        Args:
          sentence_features: one column, the tokens of all texts, in any order.
          labels: [S, 3], the origins of the texts in the order of the pairs, and where each is in
            the column.
        """
        (features,) = sentence_features
        if 0 < self.mini_batch_size < len(labels):
            return self.forward_cached([features], labels)
        return self.calculate_loss([[self.model(features)["sentence_embedding"]]], labels)

    def calculate_loss(
        self, reps: list[list[torch.Tensor]], labels: Any = None, *, with_backward: bool = False
    ) -> torch.Tensor:
        """Returns the loss of vectors in chunks, for `CachedLossMixin`."""
        (chunks,) = reps
        vectors_SxD = torch.cat(chunks)[labels[:, 2]]
        scale = self._representation.score_scale
        loss = torch.zeros((), device=vectors_SxD.device)
        for size in self._representation.sizes or (vectors_SxD.shape[1],):
            cut_SxD = cut_vectors(vectors_SxD, size, self._representation.similarity)
            loss = loss + self._loss(cut_SxD, labels[:, :2], scale)
        if with_backward:
            loss.backward()
            loss = loss.detach()
        return loss


def _share_origin(origins_Sx2: torch.Tensor, others_Ax2: torch.Tensor) -> torch.Tensor:
    return (origins_Sx2[:, None] == others_Ax2[None]).any(dim=2)


def _positive_loss(
    scores_SxA: torch.Tensor, is_left_out_SxA: torch.Tensor, positives_S: torch.Tensor
) -> torch.Tensor:
    """Returns the mean of −log softmax at each row's positive, which is never left out."""
    is_left_out_SxA = is_left_out_SxA.scatter(1, positives_S[:, None], False)
    return functional.cross_entropy(
        scores_SxA.masked_fill(is_left_out_SxA, -torch.inf), positives_S
    )
