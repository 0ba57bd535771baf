"""Metrics of sentence encoders: correlation with human scores, and accuracy on triplets."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from scipy import stats

from cocondenser_jax.collection.sentences import read_scored_pairs, read_triplets
from cocondenser_jax.errors import UserError

# Columns of sentences to the vectors of each, N x D.
Encode = Callable[[Sequence[Sequence[str]]], list[np.ndarray]]


def evaluate_scored_pairs(path: Path, encode: Encode) -> dict[str, float]:
    """Computes the correlations of a file in the layout of the STS Benchmark."""
    first, second, scores = zip(*read_scored_pairs(path), strict=True)
    first_NxD, second_NxD = encode([first, second])
    return similarity_metrics(first_NxD, second_NxD, np.array(scores))


def evaluate_triplets(path: Path, encode: Encode) -> dict[str, float]:
    """Computes the accuracy on a file of triplets."""
    columns = list(zip(*read_triplets(path), strict=True))
    return {"Accuracy": triplet_accuracy(*encode(columns))}


def similarity_metrics(
    first_NxD: np.ndarray, second_NxD: np.ndarray, scores_N: np.ndarray
) -> dict[str, float]:
    """Returns Spearman's and Pearson's correlation of cosines with human scores, times 100.

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
