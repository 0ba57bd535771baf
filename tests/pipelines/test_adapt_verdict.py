"""Whether an adapted model harmed: each of its rankings beside the same one as published."""

from pathlib import Path

import pytest

from cocondenser_jax.pipelines.adapt import find_harm
from cocondenser_jax.retriever.compare.rankings import Ranking, with_tests

# What queries score by each ranking without adapting.
BEFORE = {"BM25": 0.3, "published": 0.4, "published + BM25": 0.5}


def rankings(n_queries, alone, fused):
    """Rankings that have the same value for every query, or the given ones."""
    found = []
    for name, value in {**BEFORE, "adapted": alone, "adapted + BM25": fused}.items():
        values = value if isinstance(value, list) else [value] * n_queries
        per_query = {f"q{i}": {"nDCG@10": each} for i, each in enumerate(values)}
        metrics = {"mean": {"nDCG@10": sum(values) / n_queries}, "per_query": per_query}
        model = name.removesuffix("BM25").removesuffix(" + ")
        is_fused = name.endswith(" + BM25")
        found.append(Ranking(name, Path(), model=model, is_fused=is_fused, metrics=metrics))
    return with_tests(found, [*BEFORE])


# Where all n queries differ alike, the p of a test is 2 / 2^n, which Holm's method doubles here.
@pytest.mark.parametrize(
    ("n_queries", "alone", "fused", "harmed"),
    [
        (8, 0.41, 0.6, ""),
        (8, 0.4, 0.5, ""),
        (8, 0.41, 0.45, "adapted + BM25"),
        (6, 0.41, 0.45, ""),  # by itself, this test's p is 0.031
        (8, 0.3, 0.6, "adapted"),  # although the best ranking gains
        (8, [0.5] * 7 + [-3.0], 0.49, "adapted + BM25"),  # the larger loss is by chance
        (8, [0.3] * 6 + [0.41] * 2, 0.45, "adapted + BM25"),  # both lose, p 0.031 and 0.016
    ],
)
def test_a_ranking_that_loses_against_its_own_is_harm(n_queries, alone, fused, harmed):
    harm = find_harm(rankings(n_queries, alone, fused))
    assert (harm.one.name if harm else "") == harmed
    if harm:
        assert harm.other.name == harmed.replace("adapted", "published")


def test_the_line_of_harm():
    harm = find_harm(rankings(8, 0.3, 0.6))
    assert harm.line() == (
        "nDCG@10 | adapted 0.3000, published 0.4000 | -0.1000 (-0.1000 to -0.1000) | p 0.016"
    )
