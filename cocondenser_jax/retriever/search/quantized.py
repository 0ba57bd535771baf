"""Quantizes vectors to 8 bits or one bit per dimension, decodes and searches them.

The codes are those of sentence-transformers' `quantize_embeddings`. An 8-bit code is the number of
one of 256 equal intervals and is decoded to its center; the intervals start at the minimum and end
beyond the maximum of the dimension in its shard. A bit is 1 for positive numbers.
"""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np
from tqdm import tqdm

from cocondenser_jax.errors import UserError

INT8 = "int8"
BINARY = "binary"
QUANTIZED = (INT8, BINARY)

# Queries with candidates compared at once: 80 MB for 400 candidates of 768 dimensions each.
_QUERIES_AT_ONCE = 64


class Vectors(Protocol):
    """Vectors that are read some rows at a time."""

    def __len__(self) -> int:
        """Returns the number of rows."""

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Returns rows, N x D."""


class Int8Vectors:
    """Vectors of 8 bits per dimension."""

    def __init__(self, codes_NxD: np.ndarray, ranges_2xD: np.ndarray) -> None:
        """Takes the codes, and the minimum and maximum of each dimension."""
        self._codes_NxD = codes_NxD
        self._low_D = ranges_2xD[0]
        self._step_D = (ranges_2xD[1] - ranges_2xD[0]) / np.float32(255)

    def __len__(self) -> int:
        """Returns the number of rows."""
        return len(self._codes_NxD)

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Returns rows as float32, N x D, with an error of at most half an interval."""
        numbers_NxD = self._codes_NxD[rows].astype(np.float32)
        numbers_NxD += 128.5
        numbers_NxD *= self._step_D
        numbers_NxD += self._low_D
        return numbers_NxD


class BitVectors:
    """Vectors of one bit per dimension."""

    def __init__(self, bits_NxB: np.ndarray) -> None:
        """Takes bytes with the bits of eight dimensions each."""
        self.bits_NxB = bits_NxB

    def __len__(self) -> int:
        """Returns the number of rows."""
        return len(self.bits_NxB)

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Returns rows as float32, N x D: signs, scaled to length 1."""
        return _signs(self.bits_NxB[rows])


def _signs(bits: np.ndarray) -> np.ndarray:
    """Decodes bytes of any shape to numbers 1/√D and -1/√D."""
    signs = np.unpackbits(bits, axis=-1).astype(np.float32)
    signs *= 2
    signs -= 1
    signs /= np.sqrt(np.float32(signs.shape[-1]))
    return signs


def require_quantizable(dtype: str, *, has_unit_length: bool) -> None:
    """Raises a UserError where a number format cannot stand for vectors, by how they compare."""
    if dtype == BINARY and not has_unit_length:
        raise UserError(
            "--dtype=binary loses the lengths of vectors, which inner products need: expected a"
            " model that compares by cosine, or --dtype=int8"
        )


def require_whole_bytes(dtype: str, dimension: int) -> None:
    """Raises a UserError for one bit per dimension unless dimensions are a multiple of 8."""
    if dtype == BINARY and dimension % 8:
        raise UserError(f"--dtype=binary packs 8 dimensions into a byte: these have {dimension}")


def quantize(vectors_NxD: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns the codes of vectors and, for int8, their ranges, 2 x D."""
    if dtype == BINARY:
        return _codes(vectors_NxD, "ubinary"), None
    ranges_2xD = np.stack([vectors_NxD.min(axis=0), vectors_NxD.max(axis=0)]).astype(np.float32)
    return _codes(vectors_NxD, "int8", ranges_2xD), ranges_2xD


def _codes(
    vectors_NxD: np.ndarray, precision: Literal["int8", "ubinary"], ranges_2xD: Any = None
) -> np.ndarray:
    """Returns int8 codes, N x D, or bytes of bits for `ubinary`, N x D/8."""
    from sentence_transformers import quantize_embeddings  # loads PyTorch, which BM25 does not need

    return np.asarray(quantize_embeddings(vectors_NxD, precision, ranges=ranges_2xD))


def nearest_by_bits(
    shards: Sequence[BitVectors], oversampling: int, queries_QxD: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Finds vectors by Hamming distance, and ranks them by inner products of queries and signs.

    The `oversampling` · `k` vectors with the fewest bits different from the query's are candidates,
    as in Yamada et al., arXiv 2106.00882, and sentence-transformers.

    Args:
      shards: the vectors.
      oversampling: candidates per neighbor, at least 1.
      queries_QxD: float32.
      k: neighbors per query, at most as many as there are vectors.

    Returns:
      `scores_QxK`, decreasing, and `rows_QxK`, counted through all shards.
    """
    n_rows = sum(map(len, shards))
    rows_QxC = _candidates(shards, queries_QxD, min(k * oversampling, n_rows))
    scores_QxK = np.empty((len(queries_QxD), k), np.float32)
    rows_QxK = np.empty((len(queries_QxD), k), np.int64)
    for start in range(0, len(queries_QxD), _QUERIES_AT_ONCE):
        part = slice(start, start + _QUERIES_AT_ONCE)
        signs_QxCxD = _signs(_gather(shards, rows_QxC[part]))
        scores_QxC = (signs_QxCxD @ queries_QxD[part, :, None])[:, :, 0]
        order_QxK = np.lexsort((rows_QxC[part], -scores_QxC))[:, :k]
        scores_QxK[part] = np.take_along_axis(scores_QxC, order_QxK, axis=1)
        rows_QxK[part] = np.take_along_axis(rows_QxC[part], order_QxK, axis=1)
    return scores_QxK, rows_QxK


def _candidates(shards: Sequence[BitVectors], queries_QxD: np.ndarray, n: int) -> np.ndarray:
    """Returns the rows, Q x n, with the smallest Hamming distances to each query."""
    import faiss  # not needed for encoding

    bits_QxB = _codes(queries_QxD, "ubinary")
    heap = faiss.ResultHeap(len(queries_QxD), n)
    first_row = 0
    for shard in tqdm(shards, desc="search", unit=" shards", disable=len(queries_QxD) == 1):
        differing_QxC, rows_QxC = faiss.knn_hamming(
            bits_QxB, np.ascontiguousarray(shard.bits_NxB), min(n, len(shard))
        )
        heap.add_result(differing_QxC.astype(np.float32), rows_QxC + first_row)
        first_row += len(shard)
    heap.finalize()
    return heap.I


def _gather(shards: Sequence[BitVectors], rows_QxC: np.ndarray) -> np.ndarray:
    """Returns the bytes of rows, Q x C x B."""
    ends = np.cumsum([len(shard) for shard in shards])
    shard_QxC = np.searchsorted(ends, rows_QxC, side="right")
    bits_QxCxB = np.empty((*rows_QxC.shape, shards[0].bits_NxB.shape[1]), np.uint8)
    for number in np.unique(shard_QxC):
        here_QxC = shard_QxC == number
        first_row = ends[number] - len(shards[number])
        bits_QxCxB[here_QxC] = shards[number].bits_NxB[rows_QxC[here_QxC] - first_row]
    return bits_QxCxB
