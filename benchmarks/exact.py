"""Exact search on the CPU and on a GPU: the same random vectors, the same blocks.

  python -m benchmarks.exact --json_out=benchmarks/results/exact.json

The CPU searches for a part of the queries, as `--device=cpu` does, and the GPU for all of them, as
`--device=cuda`. A row says on how many of those that both searched for the nearest rows are equal.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.results import report
from benchmarks.step import device_name
from cocondenser_jax.retriever.search.exact import nearest, nearest_in_torch

DEPTH = 100


def main() -> None:
    """Searches on both devices, and prints a row for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passages", type=int, default=2_000_000, help="default: %(default)s")
    parser.add_argument("--queries", type=int, default=16_384, help="default: %(default)s")
    parser.add_argument("--cpu_queries", type=int, default=1_024, help="default: %(default)s")
    parser.add_argument("--dimension", type=int, default=768, help="default: %(default)s")
    parser.add_argument("--device", default="cuda", help="of PyTorch; default: %(default)s")
    parser.add_argument("--json_out", type=Path)
    arguments = parser.parse_args()
    report(measure(arguments), arguments.json_out)


def measure(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row for the CPU and one for the other device."""
    rng = np.random.default_rng(0)
    shape = (arguments.passages, arguments.dimension)
    vectors_NxD = rng.standard_normal(shape, np.float32).astype(np.float16)
    queries_QxD = rng.standard_normal((arguments.queries, arguments.dimension), np.float32)
    device = torch.device(arguments.device)
    few_QxD = queries_QxD[: arguments.cpu_queries]
    nearest_in_torch([vectors_NxD[:1000]], few_QxD[:10], DEPTH, None, device)  # starts the device

    start = time.perf_counter()
    _, found_QxK = nearest_in_torch([vectors_NxD], queries_QxD, DEPTH, None, device)
    seconds = time.perf_counter() - start
    start = time.perf_counter()
    _, expected_QxK = nearest([vectors_NxD], few_QxD, DEPTH)
    cpu_seconds = time.perf_counter() - start
    same = float(np.mean(found_QxK[: len(few_QxD)] == expected_QxK))

    for name, n_queries, took in (
        ("cpu", len(few_QxD), cpu_seconds),
        (arguments.device, len(queries_QxD), seconds),
    ):
        yield {
            "device": device_name() if name == "cuda" else name,
            "passages": len(vectors_NxD),
            "numbers": arguments.dimension,
            "queries": n_queries,
            "seconds": took,
            "queries/s": n_queries / took,
            "GFLOP/s": 2 * n_queries * vectors_NxD.size / took / 1e9,
            "ranks as on the CPU": same,
        }


if __name__ == "__main__":
    main()
