"""Compares what BM25 and several models find for the queries of test."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from cocondenser_jax.analysis.report import Evaluation, ResultRow, result_rows
from cocondenser_jax.collection.folder import read_queries, read_split
from cocondenser_jax.collection.trec import read_run
from cocondenser_jax.evaluation.ranking import DEFAULT_METRICS, evaluate_run
from cocondenser_jax.quickstart.steps import make_once, seconds_of
from cocondenser_jax.retrieval.bm25 import Bm25Settings, write_bm25_run
from cocondenser_jax.retrieval.fuse import Method
from cocondenser_jax.retrieval.search import open_cut, open_index, retrieve
from cocondenser_jax.retrieval.terms import LANGUAGE

BM25 = "BM25"
FUSION: Method = "min_max"  # with BM25; ahead of rrf in docs/results.md, "Hybrid search"


class Entry(NamedTuple):
    """A ranking that is compared, by what makes it different from the others."""

    model: str  # by whose vectors; "": by BM25 alone
    is_fused: bool  # with the ranking of BM25
    results: Sequence[Path]  # all that `make_once` made for it; the last is its TREC run
    part: str = ""  # of each vector, as in `Evaluation`

    @property
    def name(self) -> str:
        """The name of its row."""
        return ranking_name(self.model, self.is_fused, self.part)


def ranking_name(model: str, is_fused: bool, part: str = "") -> str:
    """Returns the name of a ranking by a model's vectors, or of BM25's if there is no model."""
    if not model:
        return BM25
    vectors = f"{model}, {part}" if part else model
    return f"{vectors} + {BM25}" if is_fused else vectors


def compare_entries(
    workdir: Path,
    data: Path,
    entries: Sequence[Entry],
    baselines: Collection[str],
    metrics: Sequence[str] = DEFAULT_METRICS,
    *,
    ignore_identical_ids: bool = False,
) -> list[ResultRow]:
    """Evaluates rankings by the judgments of test, and tests each against the best baseline.

    Args:
      workdir: the pipeline's folder.
      data: the folder of the judgments.
      entries: one for each row.
      baselines: names of entries; the best is that with the highest mean of the first metric.
      metrics: see `evaluate_run`.
      ignore_identical_ids: see `evaluate_run`.
    """
    _, qrels = read_split(data, "test")
    evaluations = []
    for entry in entries:
        run = read_run(entry.results[-1])
        evaluation = Evaluation(
            name=entry.name,
            model=entry.model,
            is_fused=entry.is_fused,
            metrics=evaluate_run(qrels, run, metrics, ignore_identical_ids=ignore_identical_ids),
            seconds=seconds_of(workdir, entry.results),
            part=entry.part,
        )
        evaluations.append(evaluation)
    return result_rows(evaluations, baselines)


def rank_by_bm25(
    workdir: Path, data: Path, language: str = LANGUAGE, *, ignore_identical_ids: bool = False
) -> Path:
    """Makes, once, the ranking of BM25, in a language; returns its TREC run."""
    run = workdir / "bm25.trec"
    return make_once(workdir, run, _write_bm25_run, data, language, ignore_identical_ids)


def _write_bm25_run(data: Path, language: str, ignore_identical_ids: bool, out: Path) -> None:
    write_bm25_run(
        data,
        out,
        split="test",
        settings=Bm25Settings(language=language),
        ignore_identical_ids=ignore_identical_ids,
    )


def rank_by_vectors(
    index: Path, model: Path, data: Path, out: Path, *, ignore_identical_ids: bool = False
) -> None:
    """Writes what the vectors of an index, or of embeddings, find for the queries of test."""
    queries = read_queries(data, "test")
    retrieve(open_index(index, model), queries, out, ignore_identical_ids=ignore_identical_ids)


def rank_by_cut_vectors(
    embeddings: Path,
    model: Path,
    size: int,
    data: Path,
    out: Path,
    *,
    ignore_identical_ids: bool = False,
) -> None:
    """Writes what the first `size` numbers of embeddings find for the queries of test."""
    index = open_cut(embeddings, model, size)
    queries = read_queries(data, "test")
    retrieve(index, queries, out, ignore_identical_ids=ignore_identical_ids)
