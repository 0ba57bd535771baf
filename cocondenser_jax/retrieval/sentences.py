"""Evaluates sentence encoders: correlation with human scores, and accuracy on triplets."""

import math
import warnings
from pathlib import Path

from sentence_transformers.sentence_transformer.evaluation import (
    EmbeddingSimilarityEvaluator,
    TripletEvaluator,
)

from cocondenser_jax.collection.sentences import read_scored_pairs, read_triplets
from cocondenser_jax.errors import UserError
from cocondenser_jax.retrieval.models import load_retriever

_BATCH_SIZE = 32


def evaluate_scored_pairs(path: Path, folder: Path, pooling: str | None = None) -> dict[str, float]:
    """Computes Spearman's and Pearson's correlation of cosines with human scores, times 100.

    `path` holds pairs in the layout of the STS Benchmark; `folder` and `pooling` are those of
    `models.load_retriever`. Where all scores or all cosines are equal, there is no correlation.
    """
    first, second, scores = map(list, zip(*read_scored_pairs(path), strict=True))
    evaluator = EmbeddingSimilarityEvaluator(
        first, second, scores, _BATCH_SIZE, "cosine", show_progress_bar=True
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy's, of what the error below says
        found = evaluator(load_retriever(folder, pooling=pooling))
    metrics = {
        "Spearman": 100 * float(found["spearman_cosine"]),
        "Pearson": 100 * float(found["pearson_cosine"]),
    }
    if not all(map(math.isfinite, metrics.values())):
        raise UserError("all pairs have the same score: a correlation needs different ones")
    return metrics


def evaluate_triplets(path: Path, folder: Path, pooling: str | None = None) -> dict[str, float]:
    """Computes the share of anchors nearer to their positive than to their negative.

    In Euclidean distance, as in arXiv 1908.10084. `path` is a file of triplets, the other arguments
    are those of `evaluate_scored_pairs`.
    """
    anchors, positives, negatives = map(list, zip(*read_triplets(path), strict=True))
    evaluator = TripletEvaluator(
        anchors,
        positives,
        negatives,
        main_similarity_function="euclidean",
        batch_size=_BATCH_SIZE,
        show_progress_bar=True,
    )
    found = evaluator(load_retriever(folder, pooling=pooling))
    return {"Accuracy": float(found["euclidean_accuracy"])}
