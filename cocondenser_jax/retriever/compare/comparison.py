"""Compares what BM25 and several models find for queries, and shows what changes.

The folder of a comparison:

    DIR/started.json    the collection, by its checksums, and the settings
    DIR/data/           the passages that are tested on, where they are a sample
    DIR/queries.jsonl   the queries that are ranked, where nothing is judged
    DIR/bm25.trec       what BM25 finds
    DIR/models/NAME/    of each model: started.json, embeddings/, dense.trec, and fused.trec, which
                        is dense.trec fused with bm25.trec
    DIR/results.json    the rows of the table
    DIR/seconds.json    how long each result took, interruptions included

What exists is not made again. Another model may be added to the folder later. So may judgments and
queries: the rankings are then made again, of the same vectors.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.runs import start_or_compare
from cocondenser_jax.files.whole import read_object, write_json
from cocondenser_jax.model_folder.model import ModelFolder
from cocondenser_jax.retriever.compare.changes import (
    Changes,
    Judged,
    Ranking,
    find_changes,
    measure,
)
from cocondenser_jax.retriever.compare.report import Evaluation, ResultRow, result_rows
from cocondenser_jax.retriever.compare.sample import read_sampled
from cocondenser_jax.retriever.compare.steps import make_once, seconds_of, timed
from cocondenser_jax.retriever.compare.trial import STARTED, Trial
from cocondenser_jax.retriever.data.folder import (
    read_asked,
    read_split,
)
from cocondenser_jax.retriever.data.ranking import cutoffs_of, longest_ranking, warn_of_cutoffs
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
_ALL_JUDGED = 0.98  # of the first ten; vectors in another precision may find another one
FUSION: Method = "min_max"  # with BM25; ahead of rrf in docs/results.md, "Hybrid search"


class RankedModel(NamedTuple):
    """A model that is compared."""

    name: str  # in the table
    model: ModelFolder
    seconds: float = 0.0  # that it took to make


class Entry(NamedTuple):
    """A ranking that is compared, by what makes it different from the others."""

    model: str  # by whose vectors; "": by BM25 alone
    is_fused: bool  # with the ranking of BM25
    results: Sequence[Path]  # all that was made for it, and timed; the last is its TREC run
    vectors: tuple[int, int] = (0, 0)  # as in `Evaluation`
    seconds: float = 0.0  # beside those of the results

    @property
    def name(self) -> str:
        """The name of its row."""
        return ranking_name(self.model, self.is_fused)


class Compared(NamedTuple):
    """The outcome of a comparison."""

    rows: list[ResultRow]
    trial: Trial  # on the passages that were tested on
    rankings: Mapping[str, Ranking]  # of the rows, by their names


class Outcome(NamedTuple):
    """What a command that compares ends with."""

    table: list[list[str]]  # the heads first; nothing where nothing was compared
    summary: str  # a line that starts with "BEST: " or "VERDICT: "
    search: list[str]  # the flags of `search` for the best row; none where it cannot be searched


def ranking_name(model: str, is_fused: bool) -> str:
    """Returns the name of a ranking by a model's vectors, or of BM25's if there is no model."""
    if not model:
        return BM25
    return f"{model} + {BM25}" if is_fused else model


def rank_by_all(workdir: Path, trial: Trial, models: Sequence[RankedModel]) -> list[Entry]:
    """Ranks by BM25 and by each model, alone and fused with BM25.

    Args:
      workdir: the head of this file says what it will hold. Its lock is the caller's.
      trial: what `start_comparison` returned.
      models: with different names.
    """
    bm25 = rank_by_bm25(workdir, trial)
    entries = [Entry("", False, [bm25])]
    for model in models:
        entries += _rank_by_model(workdir, trial, model, bm25)
    return entries


def compare_models(
    workdir: Path, trial: Trial, models: Sequence[RankedModel], baselines: Collection[str] = ()
) -> Compared:
    """Ranks by BM25 and by each model, alone and fused with BM25, and evaluates all.

    Args:
      workdir: the head of this file says what it will hold. Its lock is the caller's.
      trial: what `start_comparison` returned.
      models: with different names.
      baselines: names of models. All rankings are tested against the best one of BM25 and of these;
        (): against the best one of all.
    """
    entries = rank_by_all(workdir, trial, models)
    known = {"", *baselines} if baselines else {"", *(model.name for model in models)}
    names = [entry.name for entry in entries if entry.model in known]
    embeddings = _embeddings_of(workdir, models[0])
    passages = open_shards(embeddings, read_manifest(embeddings))
    compared = compare_entries(workdir, trial, entries, names, partial(texts_of, passages))
    write_json(workdir / "results.json", [row._asdict() for row in compared.rows])
    return compared


def changes_between(compared: Compared, before: str, after: str) -> Changes:
    """Finds what changes for the queries from one row of a comparison to another."""
    trial = compared.trial
    queries, qrels = read_split(trial.data, trial.split)
    judged = Judged(trial.metrics[0], qrels, queries, trial.passages)
    return find_changes(compared.rankings[before], compared.rankings[after], judged)


def search_flags(
    workdir: Path, compared: Compared, winner: str, model: RankedModel | None
) -> list[str]:
    """Returns what makes `search` rank as a row of a comparison does.

    Args:
      workdir: of the comparison.
      compared: its outcome.
      winner: the row's name.
      model: by whose vectors to search, unless the row is that of BM25.

    Returns:
      Flags; none where the vectors are of a sample of the passages.
    """
    trial = compared.trial
    if trial.n_passages is not None:
        return []
    language = [] if trial.language == LANGUAGE else [f"--language={trial.language}"]
    if model is None or winner == BM25:
        return [f"--corpus={trial.passages}", *language]
    flags = [f"--embeddings={_embeddings_of(workdir, model)}"]
    if any(row.name == winner and row.is_fused for row in compared.rows):
        flags += [f"--hybrid={FUSION}", *language]
    return [*flags, f"--model={model.model.name}"]


def passages_note(compared: Compared) -> list[str]:
    """Names the passages that were tested on, where they were not all: fewer are easier to rank."""
    if compared.trial.n_passages is None:
        return []
    sampled = read_sampled(compared.trial.data)
    if sampled.kept == sampled.passages:
        return []
    return [
        f"on {sampled.kept:,} of {sampled.passages:,} passages, the {sampled.judged:,} judged ones"
        " among them: metrics are higher than on all"
    ]


def compare_entries(
    workdir: Path,
    trial: Trial,
    entries: Sequence[Entry],
    baselines: Collection[str],
    texts: Texts,
) -> Compared:
    """Evaluates rankings by judgments, and tests each against the best baseline.

    Args:
      workdir: the pipeline's folder.
      trial: where the judgments are, and what is computed of them.
      entries: one for each row.
      baselines: names of entries; the best is that with the highest mean of the first metric.
      texts: of the passages.
    """
    _, qrels = read_split(trial.data, trial.split)
    evaluations = []
    rankings = {}
    longest = {}
    for entry in entries:
        source = entry.results[-1]
        run = read_run(source)
        longest[entry.name] = longest_ranking(run)
        rankings[entry.name] = measure(
            entry.name,
            source,
            run,
            qrels,
            trial.metrics,
            ignore_identical_ids=trial.ignore_identical_ids,
        )
        evaluation = Evaluation(
            name=entry.name,
            model=entry.model,
            is_fused=entry.is_fused,
            metrics=rankings[entry.name].metrics,
            seconds=entry.seconds + seconds_of(workdir, entry.results),
            vectors=entry.vectors,
        )
        evaluations.append(evaluation)
    warn_of_cutoffs(longest, cutoffs_of(trial.metrics))
    _warn_of_unjudged(rankings.values(), qrels)
    firsts = {name: ranking.first for name, ranking in rankings.items()}
    warn_of_copies(firsts, qrels, texts)
    return Compared(result_rows(evaluations, baselines), trial, rankings)


def _warn_of_unjudged(rankings: Collection[Ranking], qrels: Qrels) -> None:
    """Warns of rankings whose first passages were not all judged, where those of another were.

    What is not judged counts as not relevant, so such a ranking may be better than its metrics.
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


def _embeddings_of(workdir: Path, model: RankedModel) -> Path:
    return workdir / "models" / model.name / "embeddings"


def _rank_by_model(workdir: Path, trial: Trial, model: RankedModel, bm25: Path) -> list[Entry]:
    """Makes, once, the rankings by a model's vectors, alone and fused with BM25."""
    embeddings = _embeddings_of(workdir, model)
    folder = embeddings.parent
    start_or_compare(folder / STARTED, {"model": model.model.sha256()})
    dense = folder / "dense.trec"
    if not dense.exists():  # timed by itself: other queries are searched for by the same vectors
        with timed(workdir, embeddings):
            encode_corpus(Encoding(model.model), trial.passages, embeddings)
        _require_same_passages(workdir, trial, embeddings)
    make_once(workdir, dense, rank_by_vectors, embeddings, model.model, trial)
    fused = make_once(workdir, folder / "fused.trec", _fuse, bm25, dense)
    manifest = read_manifest(embeddings)
    alone = Entry(
        model=model.name,
        is_fused=False,
        results=[embeddings, dense],
        vectors=(manifest.passages, manifest.dimension),
        seconds=model.seconds,
    )
    return [alone, alone._replace(is_fused=True, results=[bm25, *alone.results, fused])]


def _require_same_passages(workdir: Path, trial: Trial, embeddings: Path) -> None:
    """Raises a UserError if other passages were encoded than the comparison began with."""
    expected = read_object(workdir / STARTED)["data"]["corpus"]
    # A sample is a copy in the workdir.
    if trial.n_passages is None and read_manifest(embeddings).corpus_sha256 != expected:
        raise UserError(
            f"{trial.passages} has changed while it was compared: remove {workdir}, and compare"
            " again"
        )


def _fuse(bm25: Path, dense: Path, out: Path) -> None:
    write_run(out, fuse_runs([read_run(bm25), read_run(dense)], FUSION))


def rank_by_bm25(workdir: Path, trial: Trial) -> Path:
    """Makes, once, the ranking of BM25; returns its TREC run."""
    return make_once(workdir, workdir / "bm25.trec", _write_bm25_run, trial)


def _write_bm25_run(trial: Trial, out: Path) -> None:
    write_bm25_run(
        Searched(trial.data, trial.ranked_split, trial.corpus),
        out,
        settings=Bm25Settings(language=trial.language),
        ignore_identical_ids=trial.ignore_identical_ids,
    )


def rank_by_vectors(index: Path, model: ModelFolder, trial: Trial, out: Path) -> None:
    """Writes what the vectors of an index, or of embeddings, find for the queries."""
    asked = read_asked(trial.data, trial.ranked_split)
    retrieve(open_index(index, model), asked, out, ignore_identical_ids=trial.ignore_identical_ids)
