"""Plans against brute force, and what every plan must keep."""

import itertools

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from cocondenser_jax.errors import UserError
from cocondenser_jax.retrieval import schedule
from cocondenser_jax.retrieval.schedule import Candidates

PLANNERS = [
    schedule.sequential_plan,
    schedule.random_plan,
    schedule.beam_plan,
    schedule.replacement_plan,
]


def make_candidates(n, k, seed=0, missing=0.2):
    rng = np.random.default_rng(seed)
    passages_NxK = np.array([rng.permutation(n)[:k] for _ in range(n)])
    passages_NxK[rng.random((n, k)) < missing] = -1
    # Whole numbers, so that sums are exact in any order.
    return Candidates(passages_NxK, rng.integers(1, 1000, (n, k)).astype(np.float32))


def dense(candidates):
    """The shifted s, by a loop over its definition."""
    n = len(candidates.passages_NxK)
    s_NxN = np.zeros((n, n))
    for i, (passages_K, scores_K) in enumerate(zip(*candidates, strict=True)):
        kept = {int(p): float(s) for p, s in zip(passages_K, scores_K, strict=True) if p >= 0}
        for p, s in kept.items():
            s_NxN[i, p] = s - min(kept.values())
    return s_NxN


def brute_h(s_NxN, batch):
    return sum(s_NxN[i, j] for i, j in itertools.permutations([p for p in batch if p >= 0], 2))


def test_hardness_is_the_sum_over_ordered_pairs():
    candidates = make_candidates(23, 9)
    batches_MxB = schedule.random_plan(candidates, 5, seed=1, keep_last=True)
    expected = [brute_h(dense(candidates), batch) for batch in batches_MxB]
    h_M = schedule.hardness(batches_MxB, schedule.pair_scores(candidates))
    np.testing.assert_array_equal(h_M, expected)


def test_reverse_keeps_the_best_queries_of_each_passage():
    candidates = make_candidates(20, 8)
    reverse = schedule.reverse(candidates, 3)
    for p in range(20):
        queries, columns = np.nonzero(candidates.passages_NxK == p)
        ranked = sorted((-candidates.scores_NxK[queries, columns]).tolist())[:3]
        kept_K = reverse.passages_NxK[p] >= 0
        assert (-reverse.scores_NxK[p][kept_K]).tolist() == ranked
        for q, s in zip(
            reverse.passages_NxK[p][kept_K], reverse.scores_NxK[p][kept_K], strict=True
        ):
            assert s == candidates.scores_NxK[q][candidates.passages_NxK[q] == p]


@pytest.mark.parametrize("seed", range(5))
def test_a_wide_beam_finds_the_best_batch_around_its_seed(seed):
    candidates = make_candidates(9, 5, seed)
    first_B = schedule.beam_plan(candidates, 4, seed=seed, width=200)[0]
    # Batches grow from the first pair of the random order.
    start = schedule.random_plan(candidates, 4, seed=seed)[0, 0]
    assert first_B[0] == start
    pool = schedule.random_plan(candidates, 4, seed=seed).ravel()
    best = max(
        brute_h(dense(candidates), (start, *rest))
        for rest in itertools.combinations(sorted(set(pool.tolist()) - {int(start)}), 3)
    )
    assert brute_h(dense(candidates), first_B) == best


@pytest.mark.parametrize("seed", range(5))
def test_replacement_ends_where_its_swaps_gain_nothing(seed):
    # With two batches, the batch a pair is hardest with is the other one or none.
    candidates = make_candidates(8, 5, seed)
    batches_2x4 = schedule.replacement_plan(candidates, 4, seed=seed, sweeps=100)
    s_NxN = dense(candidates)
    both_NxN = s_NxN + s_NxN.T
    total = sum(brute_h(s_NxN, batch) for batch in batches_2x4)
    for i, y in itertools.product(*map(list, batches_2x4)):
        left, right = [y, *set(batches_2x4[0]) - {i}], [i, *set(batches_2x4[1]) - {y}]
        if both_NxN[i, batches_2x4[1]].sum() > both_NxN[i, batches_2x4[0]].sum():
            assert brute_h(s_NxN, left) + brute_h(s_NxN, right) <= total


@pytest.mark.parametrize("planner", [schedule.beam_plan, schedule.replacement_plan])
def test_clustered_pairs_meet(planner):
    rng = np.random.default_rng(0)
    label_N = rng.permutation(240) // 12
    passages_NxK = np.array([rng.permutation(np.flatnonzero(label_N == c)) for c in label_N])
    candidates = Candidates(passages_NxK, rng.random(passages_NxK.shape))
    scores = schedule.pair_scores(candidates)
    baseline = schedule.hardness(schedule.random_plan(candidates, 8, seed=0), scores).mean()
    assert schedule.hardness(planner(candidates, 8, seed=0), scores).mean() > 5 * baseline


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_every_pair_once_and_groups_apart(data):
    size, m = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    n = size * m
    k = data.draw(st.integers(1, n))
    seed = data.draw(st.integers(0, 1000))
    # No group is larger than the number of batches, so that its pairs can be kept apart.
    group_N = np.random.default_rng(seed).permutation(n) // data.draw(st.integers(1, m))
    conflicts = schedule.same_text([str(i) for i in range(n)], [str(g) for g in group_N])
    candidates = make_candidates(n, k, seed)
    for planner in (schedule.beam_plan, schedule.replacement_plan):
        batches_MxB = planner(candidates, size, seed=seed, conflicts=conflicts)
        assert sorted(batches_MxB.ravel().tolist()) == list(range(n))
        assert all(len(set(group_N[batch_B])) == size for batch_B in batches_MxB)


@pytest.mark.parametrize("planner", PLANNERS)
def test_what_every_plan_keeps(planner):
    candidates = make_candidates(23, 6)
    dropped_MxB = planner(candidates, 5, seed=3)
    kept_MxB = planner(candidates, 5, seed=3, keep_last=True)
    assert dropped_MxB.shape == (4, 5)
    assert len(set(dropped_MxB.ravel().tolist())) == 20
    out = schedule.left_out(dropped_MxB, 23)
    assert sorted([*out, *dropped_MxB.ravel()]) == list(range(23))
    assert sorted(kept_MxB.ravel().tolist()) == [-1, -1, *range(23)]
    assert (kept_MxB[-1] == -1).sum() == 2
    np.testing.assert_array_equal(planner(candidates, 5, seed=3), dropped_MxB)
    other = schedule.left_out(planner(candidates, 5, seed=4), 23)
    assert other.tolist() != out.tolist()
    with pytest.raises(UserError, match="23 pairs do not fill one batch of 24"):
        planner(candidates, 24, seed=0)


def test_candidates_that_do_not_fit_are_refused():
    for passages, scores, message in [
        ([[2], [0]], [[1.0], [1.0]], "numbers of the 2 pairs"),
        ([[1], [0]], [[np.nan], [1.0]], "finite"),
        ([[1], [0]], [[1.0, 2.0], [1.0, 2.0]], "one shape"),
    ]:
        with pytest.raises(UserError, match=message):
            schedule.beam_plan(Candidates(np.array(passages), np.array(scores)), 2, seed=0)
    with pytest.raises(UserError, match="conflicts must be"):
        schedule.beam_plan(
            make_candidates(4, 2), 2, seed=0, conflicts=scipy.sparse.csr_array((3, 3))
        )


def test_a_plan_comes_back_only_for_what_it_was_made_for(tmp_path):
    candidates, path = make_candidates(12, 4), tmp_path / "plan.npz"
    batches_MxB = schedule.beam_plan(candidates, 4, seed=1, epoch=2)
    schedule.save_plan(path, batches_MxB, candidates, seed=1, epoch=2)
    np.testing.assert_array_equal(
        schedule.load_plan(path, candidates, 4, seed=1, epoch=2), batches_MxB
    )
    for other, size, seed, epoch, what in [
        (candidates, 5, 1, 2, "batch size 4, expected 5"),
        (candidates, 4, 0, 2, "seed 1, expected 0"),
        (candidates, 4, 1, 3, "epoch 2, expected 3"),
        (make_candidates(12, 4, seed=9), 4, 1, 2, "for candidates"),
    ]:
        with pytest.raises(UserError, match=what):
            schedule.load_plan(path, other, size, seed=seed, epoch=epoch)
    path.write_bytes(b"no plan")
    with pytest.raises(UserError, match="cannot read the plan"):
        schedule.load_plan(path, candidates, 4, seed=1, epoch=2)


def test_the_background_plans_the_same():
    candidates = make_candidates(40, 10)
    future = schedule.plan_in_background(schedule.beam_plan, candidates, 5, seed=7, width=2)
    expected = schedule.beam_plan(candidates, 5, seed=7, width=2)
    np.testing.assert_array_equal(future.result(timeout=120), expected)
