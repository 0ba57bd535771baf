"""Figures of sentence encoders: correlation with people's scores, and triplets."""

import numpy as np
from scipy import stats

from cocondenser_jax.errors import UserError


def similarity_figures(
    first_NxD: np.ndarray, second_NxD: np.ndarray, scores_N: np.ndarray
) -> dict[str, float]:
    """Returns Spearman's and Pearson's correlation of cosines with people's scores, times 100.

    Args:
      first_NxD: vectors of the first sentences.
      second_NxD: vectors of the second ones.
      scores_N: people's scores; equal ones have their mean rank.

    Raises:
      UserError: if all scores or all cosines are equal: then there is no correlation.
    """
    norms_N = np.linalg.norm(first_NxD, axis=1) * np.linalg.norm(second_NxD, axis=1)
    cosines_N = (first_NxD * second_NxD).sum(axis=1) / np.maximum(norms_N, 1e-12)
    if np.ptp(scores_N) == 0 or np.ptp(cosines_N) == 0:
        raise UserError("all pairs have the same score: a correlation needs different ones")
    return {
        "Spearman": 100 * float(stats.spearmanr(cosines_N, scores_N).statistic),
        "Pearson": 100 * float(stats.pearsonr(cosines_N, scores_N).statistic),
    }


def triplet_accuracy(
    anchor_NxD: np.ndarray, positive_NxD: np.ndarray, negative_NxD: np.ndarray
) -> float:
    """Returns the share of anchors nearer to their positive than to their negative.

    In Euclidean distance, as Reimers & Gurevych (arXiv 1908.10084) train and evaluate.
    """
    to_positive_N = np.linalg.norm(anchor_NxD - positive_NxD, axis=1)
    to_negative_N = np.linalg.norm(anchor_NxD - negative_NxD, axis=1)
    return float((to_positive_N < to_negative_N).mean())
