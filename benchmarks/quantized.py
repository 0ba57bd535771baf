"""Exact search among vectors of each number format, on the same random vectors and queries.

  OMP_WAIT_POLICY=passive taskset -c 0 python -m benchmarks.quantized \
    --json_out=benchmarks/results/quantized.json

Times are CPU seconds of this process, whatever else the machine does. The formats take turns, each
with one query and with many at once; the median of the rounds is reported. Vectors are in memory,
as the mapped files of `search --embeddings` are once they have been read. Each format's first
neighbors are those of a product of matrices with the numbers that its codes mean, or the program
ends: all of them, and of `binary`, whose candidates are chosen by other numbers, the nearest.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.results import report
from benchmarks.step import device_name
from cocondenser_jax.retriever.search.exact import nearest
from cocondenser_jax.retriever.search.quantized import (
    BINARY,
    INT8,
    BitVectors,
    Int8Vectors,
    nearest_by_bits,
    quantize,
)

DEPTH = 10
OVERSAMPLING = 4  # the default of `search`

Search = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]


class Format(NamedTuple):
    """Vectors in one format."""

    name: str
    n_bytes: int  # of a passage
    search: Search
    numbers_NxD: np.ndarray  # what the vectors are read as


def main() -> None:
    """Measures all formats, and prints a row for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passages", type=int, default=100_000, help="default: %(default)s")
    parser.add_argument("--dimension", type=int, default=384, help="default: %(default)s")
    parser.add_argument("--queries", type=int, default=100, help="at once; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=9, help="default: %(default)s")
    parser.add_argument("--json_out", type=Path)
    arguments = parser.parse_args()
    report(measure(arguments), arguments.json_out)


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns a row for each format."""
    rng = np.random.default_rng(0)
    vectors_NxD = _unit(rng.standard_normal((arguments.passages, arguments.dimension), np.float32))
    queries_QxD = _unit(rng.standard_normal((arguments.queries, arguments.dimension), np.float32))
    formats = make_formats(vectors_NxD)
    for each in formats:
        require_nearest(each, queries_QxD)
    one: dict[str, list[float]] = {each.name: [] for each in formats}
    many: dict[str, list[float]] = {each.name: [] for each in formats}
    for turn in range(arguments.rounds):
        for each in formats if turn % 2 else formats[::-1]:
            number = turn % len(queries_QxD)
            one[each.name].append(_seconds(each.search, queries_QxD[number : number + 1]))
            many[each.name].append(_seconds(each.search, queries_QxD) / len(queries_QxD))
    return [
        {
            "format": each.name,
            "passages": len(vectors_NxD),
            "numbers": arguments.dimension,
            "device": device_name(),
            "cores used": len(os.sched_getaffinity(0)),
            "bytes a passage": each.n_bytes,
            "ms for one query": 1000 * statistics.median(one[each.name]),
            f"ms a query of {len(queries_QxD)}": 1000 * statistics.median(many[each.name]),
        }
        for each in formats
    ]


def make_formats(vectors_NxD: np.ndarray) -> list[Format]:
    """Returns the same vectors in each format that `encode` writes."""
    formats = []
    for dtype in (np.float32, np.float16):
        stored_NxD = vectors_NxD.astype(dtype)
        row_bytes = stored_NxD.nbytes // len(stored_NxD)
        search = partial(nearest, [stored_NxD])
        formats.append(Format(dtype.__name__, row_bytes, search, stored_NxD.astype(np.float32)))
    codes_NxD, ranges_2xD = quantize(vectors_NxD, INT8)
    assert ranges_2xD is not None  # of int8
    eight = Int8Vectors(codes_NxD, ranges_2xD)
    search = partial(nearest, [eight])
    formats.append(Format(INT8, codes_NxD.shape[1], search, eight[: len(eight)]))
    bits_NxB, _ = quantize(vectors_NxD, BINARY)
    bits = BitVectors(bits_NxB)
    search = partial(nearest_by_bits, [bits], OVERSAMPLING)
    formats.append(Format(BINARY, bits_NxB.shape[1], search, bits[: len(bits)]))
    return formats


def require_nearest(each: Format, queries_QxD: np.ndarray) -> None:
    """Raises where a search does not find what a product of matrices does."""
    if each.name == BINARY:
        queries_QxD = each.numbers_NxD[: len(queries_QxD)]  # their nearest is themselves
    scores_QxK, _ = each.search(queries_QxD, DEPTH)
    expected_QxN = queries_QxD @ each.numbers_NxD.T
    depth = 1 if each.name == BINARY else DEPTH
    expected_QxK = -np.sort(-expected_QxN, axis=1)[:, :depth]
    if not np.allclose(scores_QxK[:, :depth], expected_QxK, atol=1e-5):
        raise SystemExit(f"{each.name}: the search finds others than a product of matrices")


def _unit(vectors_NxD: np.ndarray) -> np.ndarray:
    return vectors_NxD / np.linalg.norm(vectors_NxD, axis=1, keepdims=True)


def _seconds(search: Search, queries_QxD: np.ndarray) -> float:
    start = time.process_time()
    search(queries_QxD, DEPTH)
    return time.process_time() - start


if __name__ == "__main__":
    main()
