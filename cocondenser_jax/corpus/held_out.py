"""Documents that are never drawn for training: what a run is measured on."""

import functools
import math

import numpy as np

from cocondenser_jax.corpus.store import TokenStore

_SPANS_AT_ONCE = 10_000  # read to hash them


@functools.lru_cache(maxsize=8)
def held_out_documents(store: TokenStore, n: int) -> np.ndarray:
    """Returns the numbers of `n` documents, or of a tenth of those that have two spans if fewer.

    They are the ones whose first spans have the lowest hashes, in that order: the same documents
    however a store is sharded. Where no document has two spans, they may have one. Documents that
    begin alike are held out together or not at all; a tenth of `n` that do, as under one licence,
    are not.
    """
    candidates_D = store.documents_of_pairs
    if not len(candidates_D):
        candidates_D = np.arange(store.n_documents)
    n = min(n, len(candidates_D) // 10)
    if not n:
        return np.zeros(0, np.int64)
    parts = np.array_split(candidates_D, math.ceil(len(candidates_D) / _SPANS_AT_ONCE))
    hashes_D = np.concatenate([_hashes(store, store.first_span_D[part]) for part in parts])
    _, group_D, sizes_G = np.unique(hashes_D, return_inverse=True, return_counts=True)
    few_G = sizes_G <= max(n // 10, 1)
    chosen_G = few_G & (np.cumsum(sizes_G * few_G) <= n)
    order_D = np.argsort(group_D, kind="stable")
    return candidates_D[order_D[chosen_G[group_D[order_D]]]]


def _hashes(store: TokenStore, spans_N: np.ndarray) -> np.ndarray:
    """Returns 64 bits of each span's tokens: a sum of odd multiples, one factor per position."""
    ids_NxL, _, _ = store.read_spans(spans_N, store.max_tokens - 2)
    factors_L = np.random.Philox(key=0).random_raw(ids_NxL.shape[1]) | np.uint64(1)
    return ids_NxL.astype(np.uint64) @ factors_L
