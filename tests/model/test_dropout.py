"""Dropout: the rate, the mean, and masks that have nothing to do with each other."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from cocondenser_jax.model.dropout import _mix, dropout, fold_in


def kept(seeds, rate, n_columns):
    """Where ones survive, [seeds, columns]."""
    ones = jnp.ones((len(seeds), n_columns))
    return np.asarray(dropout(ones, rate, jnp.asarray(seeds, jnp.uint32))) > 0


def test_integers_are_mixed_by_the_published_hash():
    """Wellons' `lowbias32`, in integers without a size."""

    def lowbias32(x):
        x = (x ^ (x >> 16)) * 0x7FEB352D % 2**32
        x = (x ^ (x >> 15)) * 0x846CA68B % 2**32
        return x ^ (x >> 16)

    given = [0, 1, 2, 12_345, 2**31, 2**32 - 1]
    assert _mix(jnp.array(given, jnp.uint32)).tolist() == [lowbias32(x) for x in given]


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_rate_is_zeroed_and_the_mean_kept(rate):
    out = np.asarray(dropout(jnp.ones((2000, 500)), rate, jnp.arange(2000, dtype=jnp.uint32)))
    assert set(np.unique(out)) == {np.float32(0.0), np.float32(1 / (1 - rate))}
    # A million independent elements: four standard deviations.
    tolerance = 4 * np.sqrt(rate * (1 - rate) / out.size)
    assert np.mean(out == 0.0) == pytest.approx(rate, abs=tolerance)
    # Also of each column, of 2,000 elements: five of them.
    per_column = np.mean(out == 0.0, axis=0)
    assert np.abs(per_column - rate).max() < 5 * np.sqrt(rate * (1 - rate) / 2000)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_masks_of_neighbors_are_independent(rate):
    """Neighboring seeds of any level, and neighboring columns: correlations are noise."""
    seed = jnp.uint32(3)
    step, next_step = (fold_in(fold_in(seed, s), jnp.arange(4000)) for s in (7, 8))
    site = fold_in(step, 1)
    rows = fold_in(fold_in(step, 2), jnp.broadcast_to(jnp.arange(2), (4000, 2)))
    masks = [kept(np.asarray(s), rate, 64) for s in (step, next_step, site, *rows.T)]
    masks += [np.roll(masks[0], 1, axis=0), np.roll(masks[0], 1, axis=1)]
    limit = 5 / np.sqrt(4000 * 63)
    for left, right in itertools.combinations(masks, 2):
        both = np.corrcoef(left[:, 1:].ravel(), right[:, 1:].ravel())[0, 1]
        assert abs(both) < limit


def test_a_mask_is_a_function_of_seed_and_column_only():
    seeds = np.arange(6)
    whole = kept(seeds, 0.5, 40)
    np.testing.assert_array_equal(kept(seeds[2:4], 0.5, 30), whole[2:4, :30])
    many = dropout(jnp.ones((2, 3, 40)), 0.5, jnp.asarray(seeds, jnp.uint32).reshape(2, 3))
    np.testing.assert_array_equal(np.asarray(many).reshape(6, 40) > 0, whole)


def test_without_seeds_or_rate_nothing_changes():
    x = jnp.arange(6.0).reshape(2, 3)
    assert dropout(x, 0.5, None) is x
    assert dropout(x, 0.0, jnp.zeros(2, jnp.uint32)) is x
    assert fold_in(None, 3) is None


def test_zeros_are_seeds_like_others():
    """Seed 0, step 0, span 0, embeddings, row 0, column 0."""
    seed = jnp.uint32(0)
    for _ in range(5):
        seed = fold_in(seed, 0)
        assert int(seed) != 0
        assert kept(seed[None], 0.001, 1).all()
