"""Whether an adapted model harmed: each of its rankings beside the same one as published."""

from pathlib import Path

import pytest

from cocondenser_jax.pipelines import adapt as adapting
from cocondenser_jax.pipelines.adapt import find_harm
from cocondenser_jax.retriever.compare.rankings import Ranking, comparison_table, with_tests
from cocondenser_jax.retriever.compare.trial import Trial

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


FUSED = ["--embeddings=w/test/models/{}/embeddings", "--hybrid=min_max", "--model=w/retriever"]


@pytest.mark.parametrize(
    ("bm25", "alone", "fused", "verdict", "names", "search"),
    [
        (0.3, 0.41, 0.6, "helped", ("adapted + BM25", "published + BM25"), "adapted"),
        (0.3, 0.4, 0.5, "undecided", ("adapted + BM25", "published + BM25"), "published"),
        (
            0.3,
            0.41,
            [0.6] * 5 + [0.4] * 3,
            "undecided",
            ("adapted + BM25", "published + BM25"),
            "published",
        ),
        (0.3, 0.6, 0.45, "harmed", ("adapted + BM25", "published + BM25"), "published"),
        (0.3, 0.3, 0.6, "harmed", ("adapted", "published"), "published"),
        # It loses against BM25 alone, as the published model does: that is no harm, and no help.
        (0.9, 0.4, 0.5, "undecided", ("adapted + BM25", "BM25"), ""),
    ],
)
def test_the_verdict_is_of_the_rankings_that_it_names(
    monkeypatch, bm25, alone, fused, verdict, names, search
):
    monkeypatch.setitem(BEFORE, "BM25", bm25)
    monkeypatch.setattr(adapting, "changes_between", lambda _, before, after: (after, before))
    kept = []
    monkeypatch.setattr(adapting, "_keep", lambda *given: kept.append(given) or "summary")
    found = rankings(8, alone, fused)
    outcome = adapting._conclude(Path("w"), "title", Trial(Path("data")), found)
    ((workdir, title, said, line, table, changes),) = kept
    assert (workdir, title, said) == (Path("w"), "title", verdict)
    assert tuple(each.name for each in changes) == names
    values = [f"{each.name} {each.score:.4f}" for each in changes]
    assert line.startswith(f"nDCG@10 | {', '.join(values)} | ")
    assert outcome.table == table == comparison_table(found)
    flags = [flag.format(search) for flag in FUSED] if search else ["--corpus=data"]
    assert (outcome.summary, outcome.search) == ("summary", flags)
