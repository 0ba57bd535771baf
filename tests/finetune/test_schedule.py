"""Plans and their hardness against definitions, and what every plan must keep."""

import itertools

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from cocondenser_jax.errors import UserError
from cocondenser_jax.finetune import schedule
from cocondenser_jax.finetune.schedule import Candidates


def make_candidates(n, k, seed=0):
    rng = np.random.default_rng(seed)
    passages_NxK = np.array([rng.permutation(n)[:k] for _ in range(n)])
    passages_NxK[rng.random((n, k)) < 0.2] = -1
    # Whole numbers, so that sums are exact in any order.
    return Candidates(passages_NxK, rng.integers(1, 1000, (n, k)).astype(np.float32))


def brute_h(candidates, batch):
    """The definition, with the scores' shift, over ordered pairs of a batch."""
    h = 0.0
    for i, j in itertools.permutations([pair for pair in batch if pair >= 0], 2):
        scores = {
            int(p): float(s)
            for p, s in zip(*(array[i] for array in candidates), strict=True)
            if p >= 0
        }
        h += scores[j] - min(scores.values()) if j in scores else 0
    return h


def test_hardness_is_the_sum_over_ordered_pairs():
    candidates = make_candidates(23, 9)
    for keep_last in (False, True):
        batches_MxB = schedule.random_plan(23, 5, seed=1, keep_last=keep_last)
        h_M = schedule.hardness(batches_MxB, schedule.pair_scores(candidates))
        assert h_M.tolist() == [brute_h(candidates, batch) for batch in batches_MxB]


def test_scores_of_queries_without_candidates_are_empty():
    nothing = Candidates(np.full((4, 2), -1), np.full((4, 2), np.nan))
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


def test_each_step_adds_hardness():
    candidates = make_candidates(60, 8)
    scores = schedule.pair_scores(candidates)
    random, replaced, grown, both = (
        schedule.hardness(schedule.hard_plan(candidates, 6, seed=2, **options), scores).sum()
        for options in (
            {"width": 0, "sweeps": 0},
            {"width": 0, "sweeps": 5},
            {"width": 1, "sweeps": 0},
            {},
        )
    )
    assert random == schedule.hardness(schedule.random_plan(60, 6, seed=2), scores).sum()
    assert random < replaced
    assert random < grown < both


@settings(max_examples=60, deadline=None)
@given(data=st.data(), width=st.integers(0, 3), sweeps=st.integers(0, 3))
def test_every_pair_once_and_groups_apart(data, width, sweeps):
    size, m = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    n, seed = size * m, data.draw(st.integers(0, 1000))
    # No group is larger than the number of batches, so that its pairs can be kept apart.
    group_N = np.random.default_rng(seed).permutation(n) // data.draw(st.integers(1, m))
    conflicts = scipy.sparse.csr_array(group_N[:, None] == group_N)
    candidates = make_candidates(n, data.draw(st.integers(1, n)), seed)
    batches_MxB = schedule.hard_plan(
        candidates, size, seed=seed, conflicts=conflicts, width=width, sweeps=sweeps
    )
    assert sorted(batches_MxB.ravel().tolist()) == list(range(n))
    assert all(len(set(group_N[batch_B])) == size for batch_B in batches_MxB)


def plans(candidates, *arguments, **options):
    yield schedule.random_plan(len(candidates.passages_NxK), *arguments, **options)
    yield schedule.hard_plan(candidates, *arguments, **options)


def test_what_every_plan_keeps():
    candidates = make_candidates(23, 6)
    outs = []
    for dropped_MxB, same_MxB, epoch_MxB, other_MxB, kept_MxB in zip(
        plans(candidates, 5, seed=3),
        plans(candidates, 5, seed=3),
        plans(candidates, 5, seed=3, epoch=1),
        plans(candidates, 5, seed=4),
        plans(candidates, 5, seed=3, keep_last=True),
        strict=True,
    ):
        assert dropped_MxB.shape == (4, 5)
        out = schedule.left_out(dropped_MxB, 23).tolist()
        assert sorted([*out, *dropped_MxB.ravel()]) == list(range(23))
        assert sorted(kept_MxB.ravel().tolist()) == [-1, -1, *range(23)]
        assert (kept_MxB[-1] == -1).sum() == 2
        np.testing.assert_array_equal(dropped_MxB, same_MxB)
        assert schedule.left_out(epoch_MxB, 23).tolist() != out
        assert schedule.left_out(other_MxB, 23).tolist() != out
        outs.append(out)
    assert outs[0] == outs[1]


def test_what_does_not_fit_is_refused():
    for passages, scores, message in [
        ([[2], [0]], [[1.0], [1.0]], "numbers of the 2 pairs"),
        ([[-2], [0]], [[1.0], [1.0]], "numbers of the 2 pairs"),
        ([[1], [0]], [[np.nan], [1.0]], "finite"),
        ([[1], [0]], [[1.0, 2.0], [1.0, 2.0]], "one shape"),
    ]:
        with pytest.raises(UserError, match=message):
            schedule.hard_plan(Candidates(np.array(passages), np.array(scores)), 2, seed=0)
    candidates = make_candidates(4, 2)
    for size, options, message in [
        (5, {}, "4 pairs do not fill one batch of 5"),
        (0, {}, "at least one pair, not 0"),
        (2, {"width": -1}, "width=-1, sweeps=5: expected at least 0"),
        (2, {"sweeps": -1}, "sweeps=-1: expected at least 0"),
        (2, {"conflicts": scipy.sparse.csr_array((3, 3))}, r"must be \(4, 4\), not \(3, 3\)"),
    ]:
        with pytest.raises(UserError, match=message):
            schedule.hard_plan(candidates, size, seed=0, **options)


def test_a_plan_comes_back_only_for_what_it_was_made_with(tmp_path):
    path = tmp_path / "plan.npz"
    settings = {"epoch": 1, "batch_size": 4}
    batches_MxB = schedule.random_plan(12, 4, seed=1)
    schedule.save_plan(path, batches_MxB, settings)
    np.testing.assert_array_equal(schedule.load_plan(path, settings), batches_MxB)
    with pytest.raises(UserError, match="batch_size=4, expected 3"):
        schedule.load_plan(path, settings | {"batch_size": 3})
    with pytest.raises(UserError, match="width=None, expected 2"):
        schedule.load_plan(path, settings | {"width": 2})
    path.write_bytes(b"no plan")
    with pytest.raises(UserError, match="cannot read the plan"):
        schedule.load_plan(path, settings)


def test_the_datas_order_fills_whole_batches():
    assert schedule.sequential_plan(7, 3).tolist() == [[0, 1, 2], [3, 4, 5]]
