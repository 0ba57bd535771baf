"""Neighborhood recall against its definition, written with sets."""

import numpy as np
import pytest

from cocondenser_jax.errors import UserError
from papers.figures.neighborhood import neighborhood_recall

Rankings = dict[str, list[str]]


def random_rankings(seed, lengths):
    rng = np.random.default_rng(seed)
    return {
        query: [f"d{i}" for i in rng.permutation(40)[:length]] for query, length in lengths.items()
    }


def by_sets(stage1, stage2, n, k):
    shares = []
    for query, passages in stage2.items():
        neighbors = set(passages[:n])
        shares.append(len(set(stage1.get(query, [])[:k]) & neighbors) / len(neighbors))
    return sum(shares) / len(shares)


@pytest.mark.parametrize("n", [1, 5, 12])
def test_recall_is_what_sets_say(n):
    # Some rankings are shorter than n or than the longest; a query of each stage has no other.
    stage1 = random_rankings(0, {"q1": 30, "q2": 7, "q3": 0, "q4": 25, "only1": 40})
    stage2 = random_rankings(2, {"q1": 20, "q2": 12, "q3": 9, "q4": 3, "only2": 15})
    recall = neighborhood_recall(stage1, stage2, n)
    assert recall.shape == (30,)
    expected = [by_sets(stage1, stage2, n, k) for k in range(1, 31)]
    np.testing.assert_allclose(recall, expected, rtol=1e-12)
    assert 0 < recall[-1] < 1


def test_recall_by_hand():
    stage2 = {"q1": ["a", "b", "c"], "q2": ["x"]}
    stage1 = {"q1": ["b", "c", "z", "a"], "q2": ["y", "x"]}
    # q1 finds b at 1 and a at 4 of its top 2; q2 has one neighbor only, at 2.
    np.testing.assert_allclose(neighborhood_recall(stage1, stage2, 2), [0.25, 0.75, 0.75, 1.0])
    np.testing.assert_allclose(neighborhood_recall(stage2, stage2, 3), [2 / 3, 5 / 6, 1.0])


def test_a_query_that_stage_1_lacks_counts_as_not_found():
    stage2 = {"q1": ["a"], "q2": ["b"], "q3": ["c"], "q4": []}
    np.testing.assert_allclose(neighborhood_recall({"q1": ["a"]}, stage2, 1), [1 / 3])


@pytest.mark.parametrize(
    ("stage1", "stage2", "says"),
    [
        ({"q": ["a"]}, {"q": ["a", "b"], "p": ["a"]}, r"no query has 3 passages .* \(at most 2\)"),
        ({"q": ["a"]}, {}, "no query has 3 passages"),
        ({"p": ["a"], "q": []}, {"q": ["a", "b", "c"]}, "stage 1 has none of the 1 queries"),
    ],
)
def test_what_cannot_be_compared(stage1, stage2, says):
    with pytest.raises(UserError, match=says):
        neighborhood_recall(stage1, stage2, 3)
