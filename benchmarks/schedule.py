"""Planning batches that are hard: pairs per second of one core's time, and hardness against random.

python -m benchmarks.schedule --json_out=benchmarks/results/schedule.json
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import report
from cocondenser_jax.finetune import schedule
from cocondenser_jax.finetune.schedule import Candidates

BATCH_SIZE, DEPTH, CLUSTER, DIMENSIONS = 64, 100, 200, 32

METHODS: dict[str, dict[str, Any]] = {
    "beam search, width 1": {"width": 1, "sweeps": 0},
    "beam search, width 4": {"width": 4, "sweeps": 0},
    "replacement": {"width": 0},
    "beam search, width 1, then replacement": {"width": 1},
    "beam search, width 4, then replacement": {"width": 4},
}


def main() -> None:
    """Measures every method and prints it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--json_out", type=Path)
    arguments = parser.parse_args()
    report(measure(clustered(arguments.pairs)), arguments.json_out)


def clustered(n: int) -> Candidates:
    """Returns the best passages of queries that lie in clusters, searched in the cluster only."""
    rng = np.random.default_rng(0)
    label_N = rng.permutation(n) // CLUSTER
    passages_NxK = np.full((n, DEPTH), -1, np.int32)
    scores_NxK = np.zeros((n, DEPTH), np.float32)
    for cluster in range(-(-n // CLUSTER)):
        pairs_C = np.flatnonzero(label_N == cluster)
        centre_D = rng.normal(size=DIMENSIONS)
        queries_CxD, texts_CxD = centre_D + rng.normal(size=(2, len(pairs_C), DIMENSIONS))
        scores_CxC = queries_CxD @ texts_CxD.T
        best_CxK = np.argsort(-scores_CxC)[:, :DEPTH]
        passages_NxK[pairs_C, : best_CxK.shape[1]] = pairs_C[best_CxK]
        scores_NxK[pairs_C, : best_CxK.shape[1]] = np.take_along_axis(scores_CxC, best_CxK, 1)
    return Candidates(passages_NxK, scores_NxK)


def measure(candidates: Candidates) -> Iterator[dict[str, Any]]:
    """Yields a row per method; compiling is not in the time."""
    scores = schedule.pair_scores(candidates)
    few = Candidates(np.zeros((4, 1), np.int32), np.zeros((4, 1), np.float32))
    schedule.hard_plan(few, 2, seed=0)
    random_MxB = schedule.random_plan(len(candidates.passages_NxK), BATCH_SIZE, seed=0)
    at_random = float(schedule.hardness(random_MxB, scores).mean())
    for name, options in METHODS.items():
        start = time.process_time()
        batches_MxB = schedule.hard_plan(candidates, BATCH_SIZE, seed=0, **options)
        seconds = time.process_time() - start
        h = float(schedule.hardness(batches_MxB, scores).mean())
        yield {
            "method": name,
            "pairs/s": round(batches_MxB.size / seconds),
            "mean h": h,
            "times random": h / at_random,
        }


if __name__ == "__main__":
    main()
