"""Making hard batches: pairs per second of one core's time, and hardness against random.

python -m benchmarks.hard_batches --json_out=benchmarks/results/hard_batches.json
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from benchmarks.results import report
from cocondenser_jax.retriever.train.hard_batches import greedy_batches, pair_scores
from cocondenser_jax.retriever.train.samplers import random_batches

DEPTH, DIMENSIONS = 100, 32


def main() -> None:
    """Measures and prints the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--json_out", type=Path)
    arguments = parser.parse_args()
    report(measure(arguments.pairs), arguments.json_out)


def measure(n_pairs: int) -> Iterator[dict[str, Any]]:
    """Yields a row per data set."""
    for clusters, candidates, batch_size in (
        ("small", small_clusters(1_600, 32), 32),
        ("large", large_clusters(1_600, 200), 32),
        ("large", large_clusters(n_pairs, 200), 64),
    ):
        scores = pair_scores(candidates)
        n = candidates.shape[0]
        at_random = hardness(random_batches(n, batch_size, seed=0), scores).mean()
        start = time.process_time()
        batches_MxB = greedy_batches(candidates, batch_size, seed=0)
        seconds = time.process_time() - start
        h = hardness(batches_MxB, scores).mean()
        yield {
            "pairs": n,
            "batch size": batch_size,
            "clusters": clusters,
            "pairs/s": round(batches_MxB.size / seconds),
            "mean h": float(h),
            "times random": float(h / at_random),
        }


def hardness(batches_MxB: np.ndarray, scores: scipy.sparse.csr_array) -> np.ndarray:
    """Returns h of each batch, from the matrix that `pair_scores` returns."""
    return np.array([scores[batch_B][:, batch_B].sum() / 2 for batch_B in batches_MxB])


def small_clusters(n: int, size: int) -> scipy.sparse.csr_array:
    """Returns the best passages of queries in clusters as large as a batch, searched in all."""
    rng = np.random.default_rng(0)
    centers_NxD = np.repeat(rng.normal(size=(-(-n // size), DIMENSIONS)), size, axis=0)[:n]
    queries_NxD, texts_NxD = centers_NxD + rng.normal(size=(2, n, DIMENSIONS))
    scores_NxN = queries_NxD @ texts_NxD.T
    best_NxK = np.argsort(-scores_NxN)[:, :DEPTH]
    return to_matrix(best_NxK, np.take_along_axis(scores_NxN, best_NxK, 1))


def large_clusters(n: int, size: int) -> scipy.sparse.csr_array:
    """Returns the best passages of queries in clusters of several batches, searched in these."""
    rng = np.random.default_rng(0)
    label_N = rng.permutation(n) // size
    passages_NxK = np.full((n, DEPTH), -1, np.int32)
    scores_NxK = np.zeros((n, DEPTH), np.float32)
    for cluster in range(-(-n // size)):
        pairs_C = np.flatnonzero(label_N == cluster)
        center_D = rng.normal(size=DIMENSIONS)
        queries_CxD, texts_CxD = center_D + rng.normal(size=(2, len(pairs_C), DIMENSIONS))
        scores_CxC = queries_CxD @ texts_CxD.T
        best_CxK = np.argsort(-scores_CxC)[:, :DEPTH]
        passages_NxK[pairs_C, : best_CxK.shape[1]] = pairs_C[best_CxK]
        scores_NxK[pairs_C, : best_CxK.shape[1]] = np.take_along_axis(scores_CxC, best_CxK, 1)
    return to_matrix(passages_NxK, scores_NxK)


def to_matrix(passages_NxK: np.ndarray, scores_NxK: np.ndarray) -> scipy.sparse.csr_array:
    """Returns the scores as a matrix over queries and passages; there is none where that is -1."""
    known_NxK, n = passages_NxK >= 0, len(passages_NxK)
    cells = scores_NxK[known_NxK], (known_NxK.nonzero()[0], passages_NxK[known_NxK])
    return scipy.sparse.csr_array(cells, shape=(n, n))


if __name__ == "__main__":
    main()
