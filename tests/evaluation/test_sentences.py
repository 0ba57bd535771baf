"""Metrics of sentence encoders against sentence-transformers' own evaluators."""

import numpy as np
import pytest
from sentence_transformers import SimilarityFunction
from sentence_transformers.sentence_transformer.evaluation import (
    EmbeddingSimilarityEvaluator,
    TripletEvaluator,
)

from cocondenser_jax.errors import UserError
from cocondenser_jax.evaluation import sentences


class Vectors:
    """Stands for a model: each sentence is the name of its vector."""

    similarity_fn_name = SimilarityFunction.COSINE
    truncate_dim = None

    class model_card_data:
        set_evaluation_metrics = staticmethod(lambda *args, **kwargs: None)

    def __init__(self, vectors):
        self._vectors = vectors

    def encode(self, names, **kwargs):
        return np.array([self._vectors[name] for name in names])

    encode_query = encode_document = encode


@pytest.fixture
def vectors():
    rng = np.random.default_rng(0)
    return rng.normal(size=(3, 200, 8))


def test_correlations_are_the_librarys_ties_included(vectors):
    first, second, _ = vectors
    # Scores in steps of a half, so that most are tied.
    cosines = (first * second).sum(1) / np.linalg.norm(first, axis=1)
    scores = np.clip(np.round(cosines + 2.5), 0, 10) / 2
    assert len(np.unique(scores)) < 15
    names = [f"a{i}" for i in range(200)], [f"b{i}" for i in range(200)]
    table = dict(zip(names[0] + names[1], [*first, *second], strict=True))
    evaluator = EmbeddingSimilarityEvaluator(*names, scores.tolist(), main_similarity="cosine")
    expected = evaluator(Vectors(table))
    found = sentences.similarity_metrics(first, second, scores)
    assert found["Spearman"] == pytest.approx(100 * expected["spearman_cosine"], rel=1e-9)
    assert found["Pearson"] == pytest.approx(100 * expected["pearson_cosine"], rel=1e-9)
    assert 1 < found["Spearman"] < 99
    with pytest.raises(UserError, match="all pairs have the same score"):
        sentences.similarity_metrics(first, second, np.full(200, 2.0))


def test_triplet_accuracy_is_the_librarys(vectors):
    anchors, positives, negatives = vectors
    names = [[f"{name}{i}" for i in range(200)] for name in "apn"]
    table = {
        name: vector
        for column, vectors in zip(names, (anchors, positives, negatives), strict=True)
        for name, vector in zip(column, vectors, strict=True)
    }
    evaluator = TripletEvaluator(*names, main_similarity_function="euclidean")
    expected = evaluator(Vectors(table))["euclidean_accuracy"]
    assert sentences.triplet_accuracy(anchors, positives, negatives) == pytest.approx(expected)
    assert 0.3 < expected < 0.7
    # Farther by angle, nearer by distance.
    far = sentences.triplet_accuracy(np.eye(2)[:1], np.eye(2)[1:], 9 * np.eye(2)[:1])
    assert far == 1.0
    # As near as the positive is not farther, here and in the library.
    assert sentences.triplet_accuracy(np.eye(3)[:1], np.eye(3)[1:2], np.eye(3)[2:]) == 0.0
