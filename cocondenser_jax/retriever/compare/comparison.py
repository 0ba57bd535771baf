"""Ranks queries by BM25 and by several models, alone and fused, and tests the rankings.

The folder of a comparison:

    DIR/started.json    the collection, by its checksums, and the settings
    DIR/queries.jsonl   the ranked queries, without judgments
    DIR/bm25.trec       the ranking of BM25
    DIR/models/NAME/    for each model: started.json, embeddings/, dense.trec, and fused.trec
                        (dense.trec fused with bm25.trec)
    DIR/results.json    the rows of the table
    DIR/seconds.json    seconds that each result took, interruptions included

Existing parts are not made again. Models may be added later; so may judgments and queries, for
which rankings are made again from the same vectors.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.runs import start_or_compare
from cocondenser_jax.files.steps import make_once, seconds_of, timed
from cocondenser_jax.files.whole import write_json
from cocondenser_jax.model_folder.folder import ModelFolder
from cocondenser_jax.retriever.compare.changes import Changes, Judged, find_changes
from cocondenser_jax.retriever.compare.rankings import Ranking, measure, with_tests
from cocondenser_jax.retriever.compare.trial import STARTED, Trial
from cocondenser_jax.retriever.data.folder import read_asked, read_split
from cocondenser_jax.retriever.data.identical_ids import finds_itself, warn_of_identical_ids
from cocondenser_jax.retriever.data.same_text import Texts, warn_of_copies
from cocondenser_jax.retriever.data.trec import Qrels, read_run, write_run
from cocondenser_jax.retriever.search.bm25 import Bm25Settings, Searched, write_bm25_run
from cocondenser_jax.retriever.search.embeddings import open_shards, read_manifest, texts_of
from cocondenser_jax.retriever.search.encode import Encoding, encode_corpus
from cocondenser_jax.retriever.search.fuse import Method, fuse_runs
from cocondenser_jax.retriever.search.opening import open_index
from cocondenser_jax.retriever.search.search import retrieve
from cocondenser_jax.retriever.search.terms import LANGUAGE

logger = logging.getLogger(__name__)

BM25 = "BM25"
_ALL_JUDGED = 0.98  # share of the first ten; another precision may find another passage
FUSION: Method = "min_max"  # with BM25; ahead of rrf in docs/results.md, "Hybrid search"


class Outcome(NamedTuple):
    """The result of a command that compares rankings."""

    table: list[list[str]]  # the header first; [] if nothing was compared
    summary: str  # a line that starts with "BEST: " or "VERDICT: "
    search: list[str]  # flags of `search` for the best row; [] if it cannot be searched


def rank_by_all(workdir: Path, trial: Trial, models: Mapping[str, ModelFolder]) -> list[Ranking]:
    """Ranks by BM25 and by each model, alone and fused with BM25.

    Args:
      workdir: the folder described at the top of this file, locked by the caller.
      trial: the result of `start_comparison`.
      models: the models by their names in the table.
    """
    bm25 = rank_by_bm25(workdir, trial)
    rankings = [bm25]
    for name, model in models.items():
        rankings += _rank_by_model(workdir, trial, name, model, bm25.run)
    return rankings


def compare_models(
    workdir: Path,
    trial: Trial,
    models: Mapping[str, ModelFolder],
    baselines: Collection[str] = (),
    trained: Mapping[str, float] = {},
) -> list[Ranking]:
    """Ranks by BM25 and by each model, alone and fused with BM25, and evaluates all rankings.

    Args:
      workdir: see `rank_by_all`.
      trial: see `rank_by_all`.
      models: see `rank_by_all`.
      baselines: names of models. All rankings are tested against the best one of BM25 and these
        models; (): against the best one of all.
      trained: seconds of training, by name, of models that were trained.
    """
    rankings = [
        each._replace(seconds=each.seconds + trained.get(each.model, 0.0))
        for each in rank_by_all(workdir, trial, models)
    ]
    embeddings = embeddings_of(workdir, next(iter(models)))
    passages = open_shards(embeddings, read_manifest(embeddings))
    measured = measure_all(trial, rankings, partial(texts_of, passages))
    against = [each.name for each in rankings if each.model in ("", *baselines)]
    tested = with_tests(measured, against if baselines else ())
    write_json(workdir / "results.json", [each.record() for each in tested])
    return tested


def search_flags(workdir: Path, trial: Trial, best: Ranking, model: str) -> list[str]:
    """Returns the flags with which `search` reproduces a ranking of a comparison.

    Args:
      workdir: the comparison's folder.
      trial: the comparison's trial.
      best: the ranking.
      model: the folder or name of the ranking's model; unused for BM25.
    """
    language = [] if trial.language == LANGUAGE else [f"--language={trial.language}"]
    if not best.model:
        return [f"--corpus={trial.passages}", *language]
    flags = [f"--embeddings={embeddings_of(workdir, best.model)}"]
    if best.is_fused:
        flags += [f"--hybrid={FUSION}", *language]
    return [*flags, f"--model={model}"]


def changes_between(trial: Trial, before: Ranking, after: Ranking) -> Changes:
    """Returns the changes from one ranking to another, by query."""
    queries, qrels = read_split(trial.data, trial.split)
    return find_changes(before, after, Judged(trial.metrics[0], qrels, queries, trial.passages))


def measure_all(trial: Trial, rankings: Sequence[Ranking], texts: Texts) -> list[Ranking]:
    """Evaluates rankings by judgments.

    Args:
      trial: the judgments and metrics.
      rankings: the rankings, such as those of `rank_by_all`.
      texts: returns the passages' texts by id.
    """
    _, qrels = read_split(trial.data, trial.split)
    ignore = trial.ignore_identical_ids
    measured, own = [], {}
    for each in rankings:
        run = read_run(each.run)
        own[each.name] = finds_itself(run, qrels)
        measured.append(measure(each, run, qrels, trial.metrics, ignore_identical_ids=ignore))
    if not ignore:
        warn_of_identical_ids(own, qrels)
    _warn_of_unjudged(measured, qrels)
    warn_of_copies({each.name: each.first for each in measured}, qrels, texts)
    return measured


def _warn_of_unjudged(rankings: Sequence[Ranking], qrels: Qrels) -> None:
    """Warns of rankings with unjudged first passages if those of another ranking are all judged.

    Unjudged passages count as not relevant, so such a ranking may be better than its metrics.
    """
    shares = {}
    for ranking in rankings:
        is_judged = [name in qrels[query] for query in qrels for name in ranking.first[query]]
        shares[ranking.name] = fmean(is_judged or [True])
    full = [name for name, share in shares.items() if share >= _ALL_JUDGED]
    for name, share in shares.items():
        if full and share < _ALL_JUDGED:
            logger.warning(
                "%.0f %% of the first ten passages of %s are judged, and all of %s: those that are"
                " not count as not relevant, so judge them too before you compare the two",
                100 * share,
                name,
                full[0],
            )


def embeddings_of(workdir: Path, model: str) -> Path:
    """Returns the folder of a model's vectors in a comparison."""
    return workdir / "models" / model / "embeddings"


def _rank_by_model(
    workdir: Path, trial: Trial, name: str, model: ModelFolder, bm25: Path
) -> list[Ranking]:
    """Makes the rankings of a model, alone and fused with BM25, if they are missing."""
    embeddings = embeddings_of(workdir, name)
    folder = embeddings.parent
    start_or_compare(folder / STARTED, {"model": model.sha256()})
    dense = folder / "dense.trec"
    if not dense.exists():  # timed separately, since other queries may use the same vectors
        with timed(workdir, embeddings):
            encode_corpus(Encoding(model), trial.passages, embeddings)
        if read_manifest(embeddings).corpus_sha256 != trial.passages_sha256:
            raise UserError(
                f"{trial.passages} has changed while it was compared: remove {workdir}, and compare"
                " again"
            )
    make_once(workdir, dense, rank_by_vectors, embeddings, model, trial)
    fused = make_once(workdir, folder / "fused.trec", _fuse, bm25, dense)
    manifest = read_manifest(embeddings)
    alone = Ranking(
        name=name,
        run=dense,
        model=name,
        vectors=(manifest.passages, manifest.dimension),
        seconds=seconds_of(workdir, [embeddings, dense]),
    )
    seconds = alone.seconds + seconds_of(workdir, [bm25, fused])
    both = alone._replace(name=f"{name} + {BM25}", run=fused, is_fused=True, seconds=seconds)
    return [alone, both]


def _fuse(bm25: Path, dense: Path, out: Path) -> None:
    write_run(out, fuse_runs([read_run(bm25), read_run(dense)], FUSION))


def rank_by_bm25(workdir: Path, trial: Trial) -> Ranking:
    """Makes the ranking of BM25 if it is missing."""
    run = make_once(workdir, workdir / "bm25.trec", _write_bm25_run, trial)
    return Ranking(BM25, run, seconds=seconds_of(workdir, [run]))


def _write_bm25_run(trial: Trial, out: Path) -> None:
    write_bm25_run(
        Searched(trial.data, trial.ranked_split, trial.corpus),
        out,
        settings=Bm25Settings(language=trial.language),
        ignore_identical_ids=trial.ignore_identical_ids,
        depth=100,
        warns=False,
    )


def rank_by_vectors(index: Path, model: ModelFolder, trial: Trial, out: Path) -> None:
    """Writes the ranking by the vectors of an index or of embeddings."""
    asked = read_asked(trial.data, trial.ranked_split)
    retrieve(open_index(index, model), asked, out, ignore_identical_ids=trial.ignore_identical_ids)
