"""Hard batches and their hardness against definitions, and what all of them must keep."""

import itertools

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.train import hard_batches
from cocondenser_jax.retriever.train.samplers import random_batches, sequential_batches
from tests.lines import whole


def make_candidates(n, k, seed=0):
    rng = np.random.default_rng(seed)
    passages_NxK = np.array([rng.permutation(n)[:k] for _ in range(n)])
    known_NxK = rng.random((n, k)) >= 0.2
    # Whole numbers, so that sums are exact in any order, and so large that few tie.
    scores_NxK = rng.integers(1, 1 << 20, (n, k)).astype(np.float32)
    cells = scores_NxK[known_NxK], (known_NxK.nonzero()[0], passages_NxK[known_NxK])
    return scipy.sparse.csr_array(cells, shape=(n, n))


def brute_h(candidates, batch):
    """The definition, with the scores' shift, over ordered pairs of a batch."""
    h = 0.0
    for i, j in itertools.permutations(batch, 2):
        row = slice(*candidates.indptr[i : i + 2])
        passages, scores = candidates.indices[row].tolist(), candidates.data[row].tolist()
        scores = dict(zip(passages, scores, strict=True))
        h += scores[j] - min(scores.values()) if j in scores else 0
    return h


def test_hardness_is_the_sum_over_ordered_pairs():
    candidates = make_candidates(23, 9)
    scores_NxN = hard_batches.pair_scores(candidates).toarray()
    for batch in random_batches(23, 5, seed=1, epoch=0).tolist():
        assert total(scores_NxN, [batch]) == brute_h(candidates, batch)


def test_scores_of_queries_without_candidates_are_empty():
    nothing = scipy.sparse.csr_array((4, 4), dtype=np.float32)
    assert hard_batches.pair_scores(nothing).nnz == 0
    assert sorted(hard_batches.greedy_batches(nothing, 2, seed=0).ravel().tolist()) == [0, 1, 2, 3]


def test_false_negatives_are_relevant_to_another_query_of_the_batch():
    rng = np.random.default_rng(0)
    queries, passages = rng.integers(0, 12, (2, 30)).astype(str).tolist()
    relevant = set(zip(queries, passages, strict=True))
    expected = [
        [(q, other) in relevant or (r, passage) in relevant for r, other in pairs]
        for pairs in [list(zip(queries, passages, strict=True))]
        for q, passage in pairs
    ]
    found = hard_batches.false_negatives(queries, passages)
    assert (found.toarray() > 0).tolist() == expected


def total(matrix_NxN, batches):
    """Returns the sum over the pairs of every batch."""
    return sum(matrix_NxN[i, j] for batch in batches for i, j in itertools.combinations(batch, 2))


def slow_batches(harder_key, n, batch_size, seed):
    """Equations 3 and 4, as Choi et al. print them: the hardness of every set is computed anew."""
    left = np.random.default_rng((seed, 0)).permutation(n).tolist()
    batches = []
    for _ in range(n // batch_size):
        batch = left[:batch_size]
        while True:
            without = max(range(batch_size), key=lambda i: harder_key(batch[:i] + batch[i + 1 :]))
            others = [
                [*batch[:without], pair, *batch[without + 1 :]]
                for pair in range(n)
                if pair in left and pair not in batch
            ]
            best = max(others, key=harder_key, default=batch)
            if harder_key(best) <= harder_key(batch):
                break
            batch = best
        batches.append(batch)
        left = [pair for pair in left if pair not in batch]
    return batches


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("n", "depth"), [(23, 3), (23, 22), (20, 9)])
def test_batches_are_those_of_the_equations(seed, n, depth):
    candidates = make_candidates(n, depth, seed)
    found = hard_batches.greedy_batches(candidates, 5, seed=seed)
    assert len(found) == n // 5 >= 4
    assert found.tolist() == slow_batches(lambda batch: brute_h(candidates, batch), n, 5, seed)


@pytest.mark.parametrize("seed", range(6))
def test_fewer_conflicts_come_before_hardness(seed):
    candidates = make_candidates(20, 12, seed)
    upper_NxN = np.triu(np.random.default_rng(seed).random((20, 20)) < 0.3, 1)
    conflict_NxN = upper_NxN | upper_NxN.T

    def key(batch):
        return -total(conflict_NxN, [batch]), brute_h(candidates, batch)

    conflicts = scipy.sparse.csr_array(conflict_NxN | np.eye(20, dtype=bool))
    found = hard_batches.greedy_batches(candidates, 5, seed=seed, conflicts=conflicts).tolist()
    assert found == slow_batches(key, 20, 5, seed)
    assert total(conflict_NxN, found) < total(conflict_NxN, random_batches(20, 5, seed, epoch=0))


def clustered(n, size):
    """Scores of pairs with those of their cluster."""
    label_N = np.random.default_rng(0).permutation(n) // size
    scores_NxN = np.random.default_rng(1).uniform(1, 2, (n, n))
    return scipy.sparse.csr_array(np.where(label_N[:, None] == label_N, scores_NxN, 0))


def test_batches_are_far_harder_than_random_ones():
    candidates = clustered(256, 8)
    scores_NxN = hard_batches.pair_scores(candidates).toarray()
    at_random = total(scores_NxN, random_batches(256, 8, seed=0, epoch=0))
    assert total(scores_NxN, hard_batches.greedy_batches(candidates, 8, seed=0)) > 10 * at_random


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_pair_once_and_groups_apart(data):
    size = data.draw(st.integers(1, 6))
    n = data.draw(st.integers(3 * size, 40))
    seed = data.draw(st.integers(0, 1000))
    group_N = np.random.default_rng(seed).permutation(n) // 2
    conflicts = scipy.sparse.csr_array(group_N[:, None] == group_N)
    candidates = make_candidates(n, data.draw(st.integers(1, n)), seed)
    batches_MxB = hard_batches.greedy_batches(candidates, size, seed=seed, conflicts=conflicts)
    assert batches_MxB.shape == (n // size, size)
    assert len(set(batches_MxB.flat)) == batches_MxB.size
    assert set(batches_MxB.flat) <= set(range(n))
    n_left = n
    for batch_B in batches_MxB:
        # Any group of two can be kept apart while enough pairs of other groups are left.
        if n_left >= 2 * size:
            assert len(set(group_N[batch_B])) == size
        n_left -= size


@pytest.mark.parametrize("greedy", [False, True])
def test_batches_depend_on_seed_and_epoch(greedy):
    candidates = make_candidates(23, 6)

    def make(seed, epoch=0):
        if greedy:
            return hard_batches.greedy_batches(candidates, 5, seed=seed, epoch=epoch).tolist()
        return random_batches(23, 5, seed, epoch).tolist()

    first = make(seed=3)
    assert first == make(seed=3)
    assert first != make(seed=3, epoch=1)
    assert first != make(seed=4)
    assert make(seed=4) != make(seed=3, epoch=1)  # as the sum of both would give
    assert len({pair for batch in first for pair in batch}) == 20


def test_scores_that_are_not_finite_are_refused():
    diverged = scipy.sparse.csr_array([[0, np.nan], [1, 0]])
    with pytest.raises(UserError, match=whole("the scores of candidates must be finite")):
        hard_batches.greedy_batches(diverged, 2, seed=0)


def test_batches_come_back_or_are_refused(tmp_path):
    path = tmp_path / "batches.npz"
    batches_MxB = random_batches(12, 4, seed=1, epoch=0)
    hard_batches.save_batches(path, batches_MxB)
    np.testing.assert_array_equal(hard_batches.load_batches(path), batches_MxB)
    path.write_bytes(b"no batches")
    with pytest.raises(
        UserError, match=whole("cannot read the batches in TMP…, delete it to make them again: …")
    ):
        hard_batches.load_batches(path)
    np.savez(path, batches=np.ones(3))
    with pytest.raises(UserError, match=whole("… holds no batches: expected rows of pair numbers")):
        hard_batches.load_batches(path)


def test_the_datas_order_fills_whole_batches():
    assert sequential_batches(7, 3).tolist() == [[0, 1, 2], [3, 4, 5]]
