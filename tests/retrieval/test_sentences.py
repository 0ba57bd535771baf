"""Metrics of sentence encoders, against SciPy and distances by hand."""

import csv

import numpy as np
import pytest
from scipy import stats

from cocondenser_jax.errors import UserError
from cocondenser_jax.retrieval import sentences


class Vectors:
    """Stands for a model: each sentence is the name of its vector."""

    similarity_fn_name = None
    truncate_dim = None

    class model_card_data:
        set_evaluation_metrics = staticmethod(lambda *args, **kwargs: None)

    def __init__(self, vectors):
        self._vectors = vectors

    def encode(self, names, **kwargs):
        return np.array([self._vectors[name] for name in names])

    encode_query = encode_document = encode


@pytest.fixture
def encoder(monkeypatch):
    """Three columns of 200 sentences, with their vectors."""
    columns = np.random.default_rng(0).normal(size=(3, 200, 8))
    table = {
        f"{i} {j}": vector for i, column in enumerate(columns) for j, vector in enumerate(column)
    }
    loaded = []

    def load(folder, pooling=None):
        loaded.append((folder, pooling))
        return Vectors(table)

    monkeypatch.setattr(sentences, "load_retriever", load)
    return columns, loaded


def write_pairs(path, scores):
    lines = [f"g\tf\t2012\t{j}\t{score}\t0 {j}\t1 {j}\n" for j, score in enumerate(scores)]
    path.write_text("".join(lines))
    return path


def test_correlations_of_cosines_ties_included(tmp_path, encoder):
    (first, second, _), loaded = encoder
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosines = (first * second).sum(1) / norms
    # Scores in steps of a half, so that most are tied.
    scores = (
        np.clip(np.round(3 * cosines + np.random.default_rng(1).normal(size=200) + 5), 0, 10) / 2
    )
    assert len(np.unique(scores)) < 15
    path = write_pairs(tmp_path / "sts.csv", scores)
    found = sentences.evaluate_scored_pairs(path, "folder", "mean")
    assert loaded == [("folder", "mean")]
    expected = 100 * stats.spearmanr(cosines, scores).statistic
    assert found["Spearman"] == pytest.approx(expected, rel=1e-6)
    assert found["Pearson"] == pytest.approx(
        100 * stats.pearsonr(cosines, scores).statistic, rel=1e-6
    )
    assert 10 < found["Spearman"] < 90


@pytest.mark.filterwarnings("error")
def test_equal_scores_have_no_correlation(tmp_path, encoder):
    path = write_pairs(tmp_path / "sts.csv", [2.0] * 200)
    with pytest.raises(UserError, match="all pairs have the same score"):
        sentences.evaluate_scored_pairs(path, "folder")


def write_triplets(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["Sentence1", "Sentence2", "Sentence3"])
        writer.writerows(rows)
    return path


def test_triplet_accuracy_counts_euclidean_distances(tmp_path, encoder):
    (anchors, positives, negatives), _ = encoder
    rows = [(f"0 {j}", f"1 {j}", f"2 {j}") for j in range(200)]
    found = sentences.evaluate_triplets(write_triplets(tmp_path / "a.csv", rows), "folder")
    near = ((anchors - positives) ** 2).sum(1) < ((anchors - negatives) ** 2).sum(1)
    assert found == {"Accuracy": pytest.approx(near.mean())}
    assert 0.3 < near.mean() < 0.7
    # By angle they are others.
    cosine = [v / np.linalg.norm(v, axis=1, keepdims=True) for v in (anchors, positives, negatives)]
    by_angle = (cosine[0] * cosine[1]).sum(1) > (cosine[0] * cosine[2]).sum(1)
    assert by_angle.mean() != near.mean()
    # As near as the positive is not farther.
    same = write_triplets(tmp_path / "b.csv", [("0 0", "1 0", "1 0")])
    assert sentences.evaluate_triplets(same, "folder") == {"Accuracy": 0.0}
