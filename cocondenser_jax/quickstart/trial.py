"""What rankings are compared on: found to be possible before any work, and then begun."""

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cocondenser_jax.collection.beir import write_passages
from cocondenser_jax.collection.folder import (
    is_unjudged,
    judgments_file,
    queries_file,
    read_split,
    relevant_passages,
    warn_of_missing,
)
from cocondenser_jax.collection.layouts import Passage
from cocondenser_jax.collection.own_passages import require_other_answers
from cocondenser_jax.collection.query_log import draw_queries, read_log
from cocondenser_jax.collection.trec import Qrels
from cocondenser_jax.errors import UserError
from cocondenser_jax.evaluation.ranking import parse_metric
from cocondenser_jax.quickstart.sample import require_room, write_sample
from cocondenser_jax.quickstart.steps import make_once, remove_results
from cocondenser_jax.quickstart.survey import Survey, survey_passages
from cocondenser_jax.retrieval.terms import LANGUAGE, require_language
from cocondenser_jax.storage.files import file_sha256, new_file, read_object, write_json
from cocondenser_jax.storage.runs import start_or_compare

logger = logging.getLogger(__name__)

SPLIT = "test"
STARTED = "started.json"
N_DRAWN = 300  # queries that are ranked, of those of a log
DRAWN = "queries.jsonl"
METRICS = ("nDCG@10", "MRR@10", "Recall@100")


class Trial(NamedTuple):
    """What rankings are compared on, and by."""

    data: Path  # the folder of passages, queries and judgments; or queries alone
    split: str = SPLIT  # whose judgments are used
    metrics: tuple[str, ...] = METRICS  # see `evaluate_run`; the first decides
    language: str = LANGUAGE  # of BM25's terms, see `terms.languages`
    n_passages: int | None = None  # that are tested on, see `sample`; None: all
    ignore_identical_ids: bool = False  # see `drop_identical_ids`
    corpus: str | Path | None = None  # see `read_corpus`; None: the passages of `data`
    is_judged: bool = True  # False: queries of `data` are ranked, whatever their split
    log: Path | None = None  # from which those are drawn

    @property
    def passages(self) -> str | Path:
        """What `read_corpus` reads."""
        return self.data if self.corpus is None else self.corpus

    @property
    def ranked_split(self) -> str | None:
        """The split whose queries are ranked; None: all."""
        return self.split if self.is_judged else None


def with_first(metric: str | None) -> tuple[str, ...]:
    """Returns the metrics of a comparison that is decided by one of them, or by another."""
    return METRICS if metric is None else tuple(dict.fromkeys([metric, *METRICS]))


def check_trial(trial: Trial) -> tuple[Trial, Survey]:
    """Raises a UserError for what a comparison would fail at, before any work.

    Returns:
      The trial, which is not judged where `data` has no judgments at all, and no other split than
      SPLIT is asked for; and its passages.
    """
    require_language(trial.language)
    for metric in trial.metrics:
        parse_metric(metric)
    if is_unjudged(trial.data) and trial.split == SPLIT:
        trial = trial._replace(is_judged=False)
        _check_unjudged(trial)
        return trial, survey_passages(trial.passages)
    _, qrels = read_split(trial.data, trial.split)
    if len(qrels) < 2:
        raise UserError(
            f"{trial.data} has one judged query of {trial.split}: a comparison needs two"
        )
    if trial.ignore_identical_ids:
        require_other_answers(qrels)
    if trial.n_passages is not None:
        require_room(qrels, trial.n_passages)
    return trial, _survey_judged(trial, qrels)


def _check_unjudged(trial: Trial) -> None:
    if trial.data.is_file() and trial.corpus is None:
        raise UserError(f"{trial.data} is a file of queries: name the passages by --corpus")
    read_log(trial.data)
    if trial.metrics != METRICS:
        raise UserError(
            f"{trial.data} has no judgments, so {trial.metrics[0]} decides nothing: leave it out"
        )
    if trial.n_passages is not None:
        raise UserError(
            f"{trial.data} has no judgments: a sample of {trial.n_passages:,} passages may lack"
            " what its queries look for; search all of them"
        )


def _survey_judged(trial: Trial, qrels: Qrels) -> Survey:
    """Raises a UserError if a collection has no passage that is judged relevant; counts those."""
    relevant = relevant_passages(qrels)
    survey = survey_passages(trial.passages, relevant)
    n_found = survey.n_wanted
    if not relevant:
        raise UserError(
            f"{trial.data} has no judgment of {trial.split} with a score above 0: all metrics would"
            " be 0"
        )
    if not n_found:
        raise UserError(
            f"{trial.data} has none of the {len(relevant)} passages that its judgments of"
            f" {trial.split} find relevant: all metrics would be 0"
        )
    warn_of_missing(n_found, relevant, trial.split)
    return survey


def start_comparison(workdir: Path, trial: Trial, survey: Survey) -> Trial:
    """Starts the folder of a comparison, or continues it.

    Args:
      workdir: see `comparison`.
      trial: what `check_trial` returned,
      survey: and this too.

    Returns:
      The trial on the passages, and by the queries, that are ranked.

    Raises:
      UserError: also if the folder was started on other passages, or on a sample for other
        judgments.
    """
    started = {
        "data": {"corpus": survey.sha256, **_asked_sha256(trial)},
        "split": trial.ranked_split,
        "language": trial.language,
        "test_passages": trial.n_passages,
        "ignore_identical_ids": trial.ignore_identical_ids,
    }
    if trial.n_passages is None:
        _start_on_queries(workdir, started)
        return trial if trial.is_judged else _with_drawn(workdir, trial)
    start_or_compare(workdir / STARTED, started)
    folder = workdir / "data"
    make_once(
        workdir, folder, write_sample, trial.data, trial.split, trial.passages, trial.n_passages
    )
    return trial._replace(data=folder, corpus=None)


def _asked_sha256(trial: Trial) -> dict[str, str | None]:
    """Returns the checksums of judgments and queries."""
    if trial.is_judged:
        files = (judgments_file(trial.data, trial.split), queries_file(trial.data, trial.split))
        judgments, queries = map(file_sha256, files)
        return {"judgments": judgments, "queries": queries}
    log = json.dumps(read_log(trial.data))
    return {"judgments": None, "queries": hashlib.sha256(log.encode()).hexdigest()}


def _start_on_queries(workdir: Path, started: Mapping[str, Any]) -> None:
    """Starts the folder of a comparison, or continues it; other queries need other rankings."""
    path = workdir / STARTED
    start_or_compare(path, started, free=("data.judgments", "data.queries", "split"))
    if read_object(path) == started:
        return
    logger.info("%s: other judgments or queries: ranking again, by the same vectors", workdir)
    made = [*workdir.glob(DRAWN), *workdir.glob("*.trec"), *(workdir / "models").rglob("*.trec")]
    remove_results(workdir, made)
    write_json(path, started)


def _with_drawn(workdir: Path, trial: Trial) -> Trial:
    """Draws the queries that are ranked where nothing is judged; returns the trial by them."""
    drawn = make_once(workdir, workdir / DRAWN, _write_drawn, trial.data)
    return trial._replace(data=drawn, corpus=trial.passages, log=trial.data)


def queries_note(trial: Trial) -> list[str]:
    """Says how many queries of a log are ranked, where they are not all."""
    n_queries = 0 if trial.log is None else len(read_log(trial.log))
    if n_queries <= N_DRAWN:
        return []
    return [f"for {N_DRAWN} of {n_queries:,} queries, drawn at random"]


def _write_drawn(log: Path, out: Path) -> None:
    drawn = draw_queries(read_log(log), N_DRAWN)
    with new_file(out) as file:
        write_passages(file, (Passage(name, "", text) for name, text in drawn.items()))
