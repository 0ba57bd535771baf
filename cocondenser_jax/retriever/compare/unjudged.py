"""Compares rankings for queries that nobody has judged: where they differ, and what to judge."""

from collections.abc import Sequence
from pathlib import Path

from cocondenser_jax.files.whole import write_json
from cocondenser_jax.retriever.compare.changes import first_of
from cocondenser_jax.retriever.compare.comparison import RankedModel, rank_by_all
from cocondenser_jax.retriever.compare.differences import (
    Differences,
    Ranked,
    find_differences,
    most_different,
)
from cocondenser_jax.retriever.compare.judging import N_QUERIES, write_to_judge
from cocondenser_jax.retriever.compare.steps import seconds_of
from cocondenser_jax.retriever.compare.trial import Trial
from cocondenser_jax.retriever.data.folder import read_corpus, read_queries
from cocondenser_jax.retriever.data.trec import read_run


def compare_unjudged(
    workdir: Path, trial: Trial, models: Sequence[RankedModel], to_judge: Path
) -> Differences:
    """Ranks by BM25 and by each model, alone and fused, and writes what to judge.

    Args:
      workdir: see `comparison`.
      trial: what `start_comparison` returned.
      models: with different names.
      to_judge: the folder for the queries on which the rankings differ most, see `judging`.
    """
    queries = read_queries(trial.data)
    rankings = [
        Ranked(
            name=entry.name,
            source=entry.results[-1],
            first=first_of(read_run(entry.results[-1]), queries),
            vectors=entry.vectors,
            seconds=entry.seconds + seconds_of(workdir, entry.results),
        )
        for entry in rank_by_all(workdir, trial, models)
    ]
    firsts = [ranking.first for ranking in rankings]
    chosen = {query: queries[query] for query in most_different(firsts, N_QUERIES)}
    write_to_judge(to_judge, read_corpus(trial.passages), chosen, firsts)
    differences = find_differences(rankings, queries, chosen, trial.passages)
    write_json(workdir / "results.json", _as_records(rankings, differences.in_common))
    return differences


def _as_records(
    rankings: Sequence[Ranked], in_common: Sequence[Sequence[float | None]]
) -> list[dict[str, object]]:
    names = [ranking.name for ranking in rankings]
    return [
        {
            "name": ranking.name,
            "in_common": dict(zip(names, shares, strict=True)),
            "vectors": ranking.vectors,
            "seconds": ranking.seconds,
        }
        for ranking, shares in zip(rankings, in_common, strict=True)
    ]
