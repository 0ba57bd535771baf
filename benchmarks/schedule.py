"""Planning batches that are hard: pairs per second on one thread, and hardness against random.

python -m benchmarks.schedule --json_out=benchmarks/results/schedule.json
"""

import argparse
import functools
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.results import Rows, report
from cocondenser_jax.retrieval import schedule
from cocondenser_jax.retrieval.schedule import Candidates

BATCH_SIZE, DEPTH, CLUSTER, DIMENSIONS = 64, 100, 200, 32

METHODS: dict[str, Callable[..., np.ndarray]] = {
    "random": schedule.random_plan,
    "beam 1": schedule.beam_plan,
    "beam 4": functools.partial(schedule.beam_plan, width=4),
    "replacement": schedule.replacement_plan,
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


def measure(candidates: Candidates) -> Rows:
    """Returns a row per method; compiling is not in the time."""
    scores = schedule.pair_scores(candidates)
    few = Candidates(np.zeros((4, 1), np.int32), np.zeros((4, 1), np.float32))
    rows: Rows = []
    for name, planner in METHODS.items():
        planner(few, 2, seed=0)
        start = time.perf_counter()
        batches_MxB = planner(candidates, BATCH_SIZE, seed=0)
        seconds = time.perf_counter() - start
        h = float(schedule.hardness(batches_MxB, scores).mean())
        rows.append({"method": name, "pairs/s": round(batches_MxB.size / seconds), "mean h": h})
    for row in rows:
        row["times random"] = row["mean h"] / rows[0]["mean h"]
    return rows


if __name__ == "__main__":
    main()
