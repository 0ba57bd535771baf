"""Exact search through shards, compared with faiss's flat index and with NumPy."""

import faiss
import numpy as np
import pytest

from cocondenser_jax.retriever.search import exact


def integers(rng, *shape):
    """Numbers whose products and sums are exact, so that equal scores are equal in any order."""
    return rng.integers(-8, 9, shape).astype(np.float32)


def nearest_in_torch(shards, queries_QxD, k):
    """As on a GPU, by PyTorch on the CPU."""
    return exact.nearest_in_torch(shards, queries_QxD, k, "cpu")


@pytest.mark.parametrize("nearest", [exact.nearest, nearest_in_torch])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("n_queries", [1, 30])  # faiss has one way for few queries, one for many
def test_shards_give_what_a_flat_index_gives(monkeypatch, nearest, dtype, n_queries):
    monkeypatch.setattr(exact, "_BLOCK_ROWS", 40)
    monkeypatch.setattr(exact, "_FEW_ROWS", 30)
    monkeypatch.setattr(exact, "_QUERIES_AT_ONCE", 25)
    rng = np.random.default_rng(0)
    vectors_NxD = integers(rng, 230, 6)
    vectors_NxD[200:] = vectors_NxD[:30]  # ties, within a shard and across
    queries_QxD = integers(rng, n_queries, 6)
    shards = [shard.astype(dtype) for shard in np.split(vectors_NxD, [100, 107, 150])]
    index = faiss.IndexFlatIP(6)
    index.add(vectors_NxD)
    all_QxN = queries_QxD @ vectors_NxD.T
    for k in (1, 5, 60, 120, 230):  # from less than the smallest shard to more than the largest
        scores_QxK, rows_QxK = nearest(shards, queries_QxD, k)
        flat_QxK, flat_rows_QxK = index.search(queries_QxD, k)
        np.testing.assert_array_equal(scores_QxK, flat_QxK)
        np.testing.assert_array_equal(scores_QxK, -np.sort(-all_QxN, 1)[:, :k])
        np.testing.assert_array_equal(scores_QxK, np.take_along_axis(all_QxN, rows_QxK, 1))
        for scores_K, rows_K, flat_rows_K in zip(scores_QxK, rows_QxK, flat_rows_QxK, strict=True):
            assert len(set(rows_K)) == k
            # Of those that tie for the last place any may be there; all others must be.
            sure = scores_K > scores_K[-1] if k < 230 else slice(None)
            assert set(rows_K[sure]) == set(flat_rows_K[sure])


def test_one_query_reads_blocks_that_stay_in_the_cache(monkeypatch):
    """Converted a block at a time, such as those of 8 bits: four times as fast as in large ones."""
    vectors_NxD = np.ones((5_000, 4), np.float16)

    read = exact.float_blocks

    def sizes_read(n_queries):
        """The rows of each block, and the number of queries from which faiss multiplies it."""
        sizes, thresholds = [], set()

        def noted(*given):
            for block_NxD in read(*given):
                sizes.append(len(block_NxD))
                thresholds.add(faiss.cvar.distance_compute_blas_threshold)
                yield block_NxD

        monkeypatch.setattr(exact, "float_blocks", noted)
        own = faiss.cvar.distance_compute_blas_threshold
        exact.nearest([vectors_NxD], np.ones((n_queries, 4), np.float32), 3)
        assert faiss.cvar.distance_compute_blas_threshold == own
        (threshold,) = thresholds
        return sizes, threshold

    for n_queries in (1, 3):
        sizes, threshold = sizes_read(n_queries)
        assert sizes == [1024, 1024, 1024, 1024, 904]
        assert threshold > n_queries  # vector by vector
    for n_queries in (4, 30):
        sizes, threshold = sizes_read(n_queries)
        assert sizes == [5000]
        assert threshold <= n_queries  # as matrices
