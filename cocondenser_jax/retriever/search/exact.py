"""Exact search by the inner products of queries with all vectors, block by block.

faiss computes on the CPU and PyTorch on a GPU, both in float32, with the same results.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import faiss
import numpy as np
from tqdm import tqdm

from cocondenser_jax.retriever.search.quantized import Vectors

# Rows held as float32 while shards are searched or indexed: 200 MB for 768 dimensions.
_BLOCK_ROWS = 65_536
# The same for few queries: a block is read only once, so it should stay in the cache.
_FEW_ROWS = 1_024
# Queries multiplied with a block at once: 256 MiB of scores.
_QUERIES_AT_ONCE = 1_024
# Up to this number of queries, faiss may compare vector by vector, which is then faster. Its own
# limit is above a hundred, where a matrix multiplication is fifteen times as fast.
_FEW_QUERIES = 3

# Maps vectors_QxD and k to `scores_QxK`, decreasing, and `rows_QxK`, counted over all shards.
Nearest = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]


def float_blocks(shards: Iterable[Vectors], n_rows: int | None = None) -> Iterator[np.ndarray]:
    """Yields the vectors of all shards as float32, a block at a time, N x D."""
    n_rows = n_rows or _BLOCK_ROWS
    for vectors_NxD in shards:
        for start in range(0, len(vectors_NxD), n_rows):
            yield np.asarray(vectors_NxD[start : start + n_rows], np.float32)


@contextlib.contextmanager
def _matrices_from(n_queries: int) -> Iterator[None]:
    """Lets faiss multiply matrices from this number of queries on, and compare vectors below it."""
    own = faiss.cvar.distance_compute_blas_threshold
    faiss.cvar.distance_compute_blas_threshold = n_queries
    try:
        yield
    finally:
        faiss.cvar.distance_compute_blas_threshold = own


def nearest(
    shards: Sequence[Vectors], queries_QxD: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the vectors with the largest inner products.

    Memory contains one block of vectors, and k neighbors for each query.

    Args:
      shards: vectors, N x D each.
      queries_QxD: float32.
      k: neighbors per query, at most as many as there are vectors.

    Returns:
      `scores_QxK`, decreasing, and `rows_QxK`, counted over all shards.
    """
    parts = _parts(len(queries_QxD))
    few = len(queries_QxD) <= _FEW_QUERIES
    heaps = [faiss.ResultHeap(part.stop - part.start, k, keep_max=True) for part in parts]
    first_row = 0
    bar = _bar(shards, len(queries_QxD))
    with _matrices_from(2**30 if few else 1):
        for block_NxD in float_blocks(bar, _FEW_ROWS if few else None):
            for part, heap in zip(parts, heaps, strict=True):
                scores_QxK, rows_QxK = faiss.knn(
                    queries_QxD[part],
                    block_NxD,
                    min(k, len(block_NxD)),
                    faiss.METRIC_INNER_PRODUCT,
                )
                heap.add_result(scores_QxK, rows_QxK + first_row)
            first_row += len(block_NxD)
    scores_QxK = np.empty((len(queries_QxD), k), np.float32)
    rows_QxK = np.empty((len(queries_QxD), k), np.int64)
    for part in parts:
        heap = heaps.pop(0)
        heap.finalize()
        scores_QxK[part], rows_QxK[part] = heap.D, heap.I
    return scores_QxK, rows_QxK


def nearest_in_torch(
    shards: Sequence[Vectors],
    queries_QxD: np.ndarray,
    k: int,
    device: str,
) -> tuple[np.ndarray, np.ndarray]:
    """Computes `nearest` on a PyTorch device, with the same contents in its memory."""
    import torch  # slow to import

    queries = torch.from_numpy(queries_QxD).to(device)
    best_QxK = torch.full((len(queries), k), -torch.inf, device=device)
    rows_QxK = torch.full((len(queries), k), -1, dtype=torch.int64, device=device)
    first_row = 0
    for block_NxD in float_blocks(_bar(shards, len(queries_QxD))):
        # `from_numpy` would warn, since shards are mapped read-only.
        block_DxN = torch.tensor(block_NxD, device=device).T
        for part in _parts(len(queries)):
            # By default, PyTorch multiplies in full float32, not in TF32.
            scores_QxN = queries[part] @ block_DxN
            found = scores_QxN.topk(min(k, len(block_NxD)), dim=1)
            both_QxM = torch.cat([best_QxK[part], found.values], dim=1)
            rows_QxM = torch.cat([rows_QxK[part], found.indices + first_row], dim=1)
            best_QxK[part], places_QxK = both_QxM.topk(k, dim=1)
            rows_QxK[part] = rows_QxM.gather(1, places_QxK)
        first_row += len(block_NxD)
    return best_QxK.cpu().numpy(), rows_QxK.cpu().numpy()


def _parts(n_queries: int) -> list[slice]:
    starts = range(0, n_queries, _QUERIES_AT_ONCE)
    return [slice(start, min(start + _QUERIES_AT_ONCE, n_queries)) for start in starts]


def _bar(shards: Sequence[Vectors], n_queries: int) -> Iterable[Vectors]:
    """Yields the shards, with a progress bar if there are several queries."""
    return tqdm(shards, desc="search", unit=" shards", disable=n_queries == 1)
