"""Plans and their hardness against definitions, and what every plan must keep."""

import itertools

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from cocondenser_jax.errors import UserError
from cocondenser_jax.finetune import schedule


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
    scores_NxN = schedule.pair_scores(candidates).toarray()
    for batch in schedule.random_plan(23, 5, seed=1).tolist():
        assert total(scores_NxN, [batch]) == brute_h(candidates, batch)


def test_scores_of_queries_without_candidates_are_empty():
    nothing = scipy.sparse.csr_array((4, 4), dtype=np.float32)
    assert schedule.pair_scores(nothing).nnz == 0
    assert sorted(schedule.hard_plan(nothing, 2, seed=0).ravel().tolist()) == [0, 1, 2, 3]


def test_false_negatives_are_relevant_to_another_query_of_the_batch():
    rng = np.random.default_rng(0)
    queries, passages = rng.integers(0, 12, (2, 30)).astype(str).tolist()
    relevant = set(zip(queries, passages, strict=True))
    expected = [
        [(q, other) in relevant or (r, passage) in relevant for r, other in pairs]
        for pairs in [list(zip(queries, passages, strict=True))]
        for q, passage in pairs
    ]
    found = schedule.false_negatives(queries, passages)
    assert (found.toarray() > 0).tolist() == expected


def total(matrix_NxN, plan):
    """Returns the sum over the pairs of every batch."""
    return sum(matrix_NxN[i, j] for batch in plan for i, j in itertools.combinations(batch, 2))


def exchanged(plan, i, y):
    return [[{i: y, y: i}.get(pair, pair) for pair in batch] for batch in plan]


def loop_sweep(scores_NxN, plan):
    """Returns the plan after one sweep. Each exchange is judged by Σ h computed anew."""
    for place in itertools.product(range(len(plan)), range(len(plan[0]))):
        i = plan[place[0]][place[1]]
        partners = [
            y for batch in plan if i not in batch and scores_NxN[i, batch].any() for y in batch
        ]
        others = [exchanged(plan, i, y) for y in partners]
        plan = max([plan, *others], key=lambda other: total(scores_NxN, other))
    return plan


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("depth", [3, 22])
def test_exchanges_are_those_of_a_loop(seed, depth):
    candidates = make_candidates(22, depth, seed)
    scores_NxN = schedule.pair_scores(candidates).toarray()
    plan = schedule.random_plan(22, 5, seed=seed).tolist()
    for sweeps in range(1, 4):
        before, plan = plan, loop_sweep(scores_NxN, plan)
        assert plan != before or sweeps > 1
        found = schedule.hard_plan(candidates, 5, seed=seed, sweeps=sweeps)
        assert found.tolist() == plan
    converged = schedule.hard_plan(candidates, 5, seed=seed, sweeps=50).tolist()
    assert loop_sweep(scores_NxN, converged) == converged


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(2, 14),
    size=st.integers(1, 6),
    density=st.sampled_from([0.1, 0.3, 0.6]),
    sweeps=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
def test_no_exchange_leaves_fewer_conflicts(n, size, density, sweeps, seed):
    size = min(size, n)
    upper_NxN = np.triu(np.random.default_rng(seed).random((n, n)) < density, 1)
    conflict_NxN = upper_NxN | upper_NxN.T
    plan = schedule.hard_plan(
        make_candidates(n, 5 if n > 5 else 2, seed),
        size,
        seed=seed,
        sweeps=sweeps,
        conflicts=scipy.sparse.csr_array(conflict_NxN),
    ).tolist()
    left = total(conflict_NxN, plan)
    assert left <= total(conflict_NxN, schedule.random_plan(n, size, seed=seed))
    for i, y in itertools.combinations(itertools.chain(*plan), 2):
        assert total(conflict_NxN, exchanged(plan, i, y)) >= left


@settings(max_examples=60, deadline=None)
@given(data=st.data(), sweeps=st.integers(0, 3))
def test_every_pair_once_and_groups_apart(data, sweeps):
    size, m = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    n, seed = size * m, data.draw(st.integers(0, 1000))
    # No group is larger than the number of batches, so that its pairs can be kept apart.
    group_N = np.random.default_rng(seed).permutation(n) // data.draw(st.integers(1, m))
    conflicts = scipy.sparse.csr_array(group_N[:, None] == group_N)
    candidates = make_candidates(n, data.draw(st.integers(1, n)), seed)
    batches_MxB = schedule.hard_plan(
        candidates, size, seed=seed, conflicts=conflicts, sweeps=sweeps
    )
    assert sorted(batches_MxB.ravel().tolist()) == list(range(n))
    assert all(len(set(group_N[batch_B])) == size for batch_B in batches_MxB)


def plans(candidates, *arguments, **options):
    yield schedule.random_plan(candidates.shape[0], *arguments, **options)
    yield schedule.hard_plan(candidates, *arguments, **options)


def test_what_every_plan_keeps():
    candidates = make_candidates(23, 6)
    pairs = []
    for plan_MxB, same_MxB, epoch_MxB, other_MxB in zip(
        plans(candidates, 5, seed=3),
        plans(candidates, 5, seed=3),
        plans(candidates, 5, seed=3, epoch=1),
        plans(candidates, 5, seed=4),
        strict=True,
    ):
        assert plan_MxB.shape == (4, 5)
        pairs.append(set(plan_MxB.flat))
        assert len(pairs[-1]) == 20
        assert pairs[-1] < set(range(23))
        np.testing.assert_array_equal(plan_MxB, same_MxB)
        assert set(epoch_MxB.flat) != pairs[-1]
        assert set(other_MxB.flat) != pairs[-1]
    assert pairs[0] == pairs[1]


def test_scores_that_are_not_finite_are_refused():
    diverged = scipy.sparse.csr_array([[0, np.nan], [1, 0]])
    with pytest.raises(UserError, match="finite"):
        schedule.hard_plan(diverged, 2, seed=0)


def test_a_plan_comes_back_or_is_refused(tmp_path):
    path = tmp_path / "plan.npz"
    batches_MxB = schedule.random_plan(12, 4, seed=1)
    schedule.save_plan(path, batches_MxB)
    np.testing.assert_array_equal(schedule.load_plan(path), batches_MxB)
    path.write_bytes(b"no plan")
    with pytest.raises(UserError, match="cannot read the plan"):
        schedule.load_plan(path)
    np.savez(path, batches=np.ones(3))
    with pytest.raises(UserError, match="is not a plan: expected batches of pair numbers"):
        schedule.load_plan(path)


def test_the_datas_order_fills_whole_batches():
    assert schedule.sequential_plan(7, 3).tolist() == [[0, 1, 2], [3, 4, 5]]
