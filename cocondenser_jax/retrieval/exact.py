"""Exact search: the inner products of queries with all vectors, one block after another."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import faiss
import numpy as np
from tqdm import tqdm

# Vectors held as float32 while shards are searched or indexed: 200 MB at 768 numbers each.
_BLOCK_ROWS = 65_536


# Raises a UserError for a block, N x D, whose first row has the given number.
Check = Callable[[np.ndarray, int], None]


def float_blocks(shards: Iterable[np.ndarray], check: Check | None = None) -> Iterator[np.ndarray]:
    """Yields the vectors of all shards as float32, a block at a time, N x D, after a check."""
    first_row = 0
    for vectors_NxD in shards:
        for start in range(0, len(vectors_NxD), _BLOCK_ROWS):
            block_NxD = np.asarray(vectors_NxD[start : start + _BLOCK_ROWS], np.float32)
            if check:
                check(block_NxD, first_row)
            yield block_NxD
            first_row += len(block_NxD)


def nearest_checked(
    shards: Sequence[np.ndarray], check: Check
) -> Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]:
    """Returns `nearest` in these shards; its first call checks what it reads.

    A check takes as long as the search for one query, so later calls do without.
    """
    unchecked: Check | None = check

    def search(queries_QxD: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        nonlocal unchecked
        found = nearest(shards, queries_QxD, k, unchecked)
        unchecked = None
        return found

    return search


def nearest(
    shards: Sequence[np.ndarray], queries_QxD: np.ndarray, k: int, check: Check | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the vectors with the largest inner products.

    Args:
      shards: vectors, N x D each.
      queries_QxD: float32.
      k: neighbors per query, at most as many as there are vectors.
      check: of each block, see `float_blocks`.

    Returns:
      `scores_QxK`, decreasing, and `rows_QxK`, counted through all shards.
    """
    best = faiss.ResultHeap(len(queries_QxD), k, keep_max=True)
    first_row = 0
    bar = tqdm(shards, desc="search", unit=" shards", disable=len(queries_QxD) == 1)
    for block_NxD in float_blocks(bar, check):
        scores_QxK, rows_QxK = faiss.knn(
            queries_QxD, block_NxD, min(k, len(block_NxD)), faiss.METRIC_INNER_PRODUCT
        )
        best.add_result(scores_QxK, rows_QxK + first_row)
        first_row += len(block_NxD)
    best.finalize()
    return best.D, best.I
