"""Beam search, replacement and parting against loops that follow their definitions."""

import itertools

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from cocondenser_jax.finetune import batch_search


def random_scores(n, seed, density=1.0):
    """A symmetric matrix of whole numbers, so that sums are exact, and so large that few tie."""
    rng = np.random.default_rng(seed)
    upper_NxN = np.triu(rng.integers(1, 1 << 20, (n, n)) * (rng.random((n, n)) < density), 1)
    return (upper_NxN + upper_NxN.T).astype(np.float64)


def sparse(dense_NxN):
    matrix = scipy.sparse.csr_array(dense_NxN)
    return matrix.indptr, matrix.indices, matrix.data


def total(scores_NxN, batch):
    return sum(scores_NxN[i, j] for i, j in itertools.combinations(batch, 2))


def loop_beam(scores_NxN, order, size, width):
    plan, free = [], list(order)
    while free:
        beams = [free[:1]]
        for _ in range(min(size, len(free)) - 1):
            grown = {
                frozenset([*beam, j]): [*beam, j] for beam in beams for j in free if j not in beam
            }
            beams = sorted(grown.values(), key=lambda beam: -total(scores_NxN, beam))[:width]
        plan.append(sorted(beams[0]))
        free = [j for j in free if j not in beams[0]]
    return plan


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("width", "density"), [(1, 1.0), (1, 0.3), (3, 1.0), (7, 1.0)])
def test_beams_are_those_of_a_loop(seed, width, density):
    scores_NxN = random_scores(18, seed, density)
    order_P = np.random.default_rng(seed).permutation(18)[:17]  # one pair is not to be used
    batches_MxB = np.full((4, 5), -1)
    key_N = np.random.default_rng(9).integers(1 << 62, size=18)
    batch_search.grow(sparse(scores_NxN), order_P, key_N, width, batches_MxB)
    plan = [sorted(j for j in batch_B if j >= 0) for batch_B in batches_MxB.tolist()]
    assert plan == loop_beam(scores_NxN, order_P.tolist(), 5, width)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("density", [0.05, 0.5])
def test_a_beam_of_all_sets_finds_the_best_batch_around_its_first_pair(seed, density):
    scores_NxN = random_scores(10, seed, density)
    batches_MxB = np.full((2, 5), -1)
    key_N = np.random.default_rng(9).integers(1 << 62, size=10)
    batch_search.grow(sparse(scores_NxN), np.arange(10), key_N, 300, batches_MxB)
    best = max(total(scores_NxN, (0, *rest)) for rest in itertools.combinations(range(1, 10), 4))
    assert total(scores_NxN, batches_MxB[0]) == best
    assert sorted(batches_MxB.ravel()) == list(range(10))


def loop_sweep(scores_NxN, order, plan):
    """Returns whether it changed the plan, a list of lists."""
    changed = False
    for i in order:
        own = next(batch for batch in plan if i in batch)
        target = max(plan, key=lambda batch: (scores_NxN[i, batch].sum(), batch is own))
        if target is own:
            continue
        y = min(target, key=lambda m: scores_NxN[m, target].sum())
        new_own, new_target = [[{i: y, y: i}.get(m, m) for m in batch] for batch in (own, target)]
        before = total(scores_NxN, own) + total(scores_NxN, target)
        if total(scores_NxN, new_own) + total(scores_NxN, new_target) > before:
            own[:], target[:], changed = new_own, new_target, True
    return changed


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sweeps", [1, 2, 50])
def test_replacement_is_that_of_a_loop(seed, sweeps):
    scores_NxN = random_scores(23, seed)
    order_P = np.random.default_rng(seed).permutation(23)[:22]
    batches_MxB = np.append(order_P, [-1, -1]).reshape(4, 6)
    plan = [[m for m in batch if m >= 0] for batch in batches_MxB.tolist()]
    batch_search.replace(sparse(scores_NxN), order_P, batches_MxB, sweeps, 0.5)
    changes = [loop_sweep(scores_NxN, order_P.tolist(), plan) for _ in range(sweeps)]
    assert changes[0]
    assert [[m for m in batch if m >= 0] for batch in batches_MxB.tolist()] == plan


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(2, 14),
    size=st.integers(1, 6),
    density=st.sampled_from([0.1, 0.3, 0.6]),
    seed=st.integers(0, 1000),
)
def test_parting_ends_where_no_exchange_makes_conflicts_fewer(n, size, density, seed):
    conflict_NxN = random_scores(n, seed, density) > 0
    scores_NxN = random_scores(n, seed + 1, 0.5)
    penalty = 2.0 * size**2 * (scores_NxN.max() or 1)
    order_P = np.random.default_rng(seed).permutation(n)
    padded_P = np.pad(order_P, (0, -n % size), constant_values=-1)
    batches_MxB = padded_P.reshape(-1, size)
    plan = [[m for m in batch if m >= 0] for batch in batches_MxB.tolist()]
    before = sum(total(conflict_NxN, batch) for batch in plan)
    batch_search.part(
        sparse(scores_NxN - penalty * conflict_NxN), order_P, batches_MxB, penalty / 2
    )
    plan = [[m for m in batch if m >= 0] for batch in batches_MxB.tolist()]
    after = sum(total(conflict_NxN, batch) for batch in plan)
    assert sorted(itertools.chain(*plan)) == list(range(n))
    assert after <= before
    for i, y in itertools.combinations(range(n), 2):
        other = [[{i: y, y: i}.get(m, m) for m in batch] for batch in plan]
        assert sum(total(conflict_NxN, batch) for batch in other) >= after
