"""Documents that are never drawn for training: a run is measured on them."""

import functools

import numpy as np

from cocondenser_jax.corpus.store import TokenStore

_DOCUMENTS_AT_ONCE = 10_000


@functools.lru_cache(maxsize=8)
def held_out_documents(store: TokenStore, n: int) -> np.ndarray:
    """Returns the numbers of `n` documents of two spans, or of a tenth of them if that is fewer.

    They are those whose first and last spans have the lowest hashes, in that order: the same ones
    however a store is sharded, and identical texts together. Where no document has two spans, they
    have one.
    """
    documents_D = store.documents_of_pairs
    if not len(documents_D):
        documents_D = np.arange(store.n_documents)
    n = min(n, len(documents_D) // 10)
    if not n:
        return np.zeros(0, np.int64)
    parts = np.array_split(documents_D, -(-len(documents_D) // _DOCUMENTS_AT_ONCE))
    hashes_D = np.concatenate([_hashes(store, part) for part in parts])
    order_D = np.argsort(hashes_D, kind="stable")
    return documents_D[order_D[: np.sum(hashes_D <= hashes_D[order_D[n - 1]])]]


def _hashes(store: TokenStore, documents_D: np.ndarray) -> np.ndarray:
    """Returns 64 bits of each document: the sum of its tokens times a random factor per place."""
    ends = store.first_span_D[documents_D], store.first_span_D[documents_D + 1] - 1
    ids = [store.read_spans(spans_D, store.max_tokens - 2)[0] for spans_D in ends]
    ids_DxL = np.concatenate(ids, axis=1).astype(np.uint64)
    return ids_DxL @ np.random.Philox(key=0).random_raw(ids_DxL.shape[1])
