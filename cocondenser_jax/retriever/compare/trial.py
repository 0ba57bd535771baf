"""The data and settings of a comparison, checked before any work."""

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.runs import start_or_compare
from cocondenser_jax.files.steps import make_once, remove_results
from cocondenser_jax.files.whole import file_sha256, new_file, read_object, write_json
from cocondenser_jax.retriever.data.beir import write_passages
from cocondenser_jax.retriever.data.folder import (
    corpus_source,
    is_unjudged,
    judgments_file,
    queries_file,
    read_split,
    relevant_passages,
    searched_passages,
    survey_passages,
    warn_of_missing,
)
from cocondenser_jax.retriever.data.identical_ids import require_other_answers
from cocondenser_jax.retriever.data.layouts import Passage
from cocondenser_jax.retriever.data.query_log import draw_queries, read_log
from cocondenser_jax.retriever.data.ranking import metric_name, parse_metric
from cocondenser_jax.retriever.data.trec import read_qrels
from cocondenser_jax.retriever.search.terms import LANGUAGE, require_language

logger = logging.getLogger(__name__)

SPLIT = "test"
STARTED = "started.json"
N_DRAWN = 300  # queries that are ranked, of those of a log
DRAWN = "queries.jsonl"
METRICS = ("nDCG@10", "MRR@10", "Recall@100")


class QueryLog(NamedTuple):
    """Facts of a query log, which may be long and is read once."""

    n_queries: int  # distinct queries
    sha256: str  # of the distinct queries
    drawn: dict[str, str]  # id → text, of the queries to rank


class Trial(NamedTuple):
    """The data and settings of a comparison."""

    data: Path  # the folder of passages, queries and judgments; or queries alone
    split: str = SPLIT  # of the judgments
    metrics: tuple[str, ...] = METRICS  # see `evaluate_run`; the first decides
    language: str = LANGUAGE  # of BM25's terms, see `terms.languages`
    ignore_identical_ids: bool = False  # see `drop_identical_ids`
    corpus: str | Path | None = None  # see `folder.searched_passages`
    log: QueryLog | None = None  # of all queries in `data`, without judgments
    passages_sha256: str = ""  # of the passages, set by `survey_trial`

    @property
    def is_judged(self) -> bool:
        """Whether there are judgments."""
        return self.log is None

    @property
    def passages(self) -> str | Path:
        """The source of the passages, see `read_corpus`."""
        return searched_passages(self.data, self.corpus)

    @property
    def ranked_split(self) -> str | None:
        """The split of the ranked queries; None: all queries."""
        return self.split if self.is_judged else None


def with_first(metric: str | None) -> tuple[str, ...]:
    """Returns the metrics of a comparison with `metric` first."""
    if metric is None:
        return METRICS
    metric = metric_name(metric)
    first = parse_metric(metric)
    return (metric, *(name for name in METRICS if parse_metric(name) != first))


def check_trial(trial: Trial) -> Trial:
    """Raises a UserError for what would make a comparison fail, as far as no passage shows it.

    Returns:
      The trial, with a query log if `data` has no judgments at all and the split is SPLIT.
    """
    for metric in trial.metrics:
        parse_metric(metric)
    if is_unjudged(trial.data) and trial.split == SPLIT:
        trial = trial._replace(log=_check_unjudged(trial))
    else:
        _check_judged(trial)
    corpus_source(trial.passages)
    require_language(trial.language)  # after the files, since it loads bm25s
    return trial


def _check_unjudged(trial: Trial) -> QueryLog:
    """Reads a query log; raises a UserError for an unusable one or for a metric."""
    queries = read_log(trial.data)
    if trial.metrics != METRICS:
        raise UserError(
            f"{trial.data} has no judgments, so {trial.metrics[0]} decides nothing: leave it out"
        )
    sha256 = hashlib.sha256(json.dumps(queries).encode()).hexdigest()
    return QueryLog(len(queries), sha256, draw_queries(queries, N_DRAWN))


def _check_judged(trial: Trial) -> None:
    """Raises a UserError for judgments that show nothing."""
    _, qrels = read_split(trial.data, trial.split)
    if len(qrels) < 2:
        raise UserError(
            f"{trial.data} has one judged query of {trial.split}: a comparison needs two"
        )
    if trial.ignore_identical_ids:
        require_other_answers(qrels)
    if not relevant_passages(qrels):
        raise UserError(
            f"{trial.data} has no judgment of {trial.split} with a score above 0: all metrics would"
            " be 0"
        )


def survey_trial(trial: Trial) -> Trial:
    """Reads all passages of a trial that `check_trial` returned, and adds their checksum.

    Raises:
      UserError: also if none of them is relevant.
    """
    if not trial.is_judged:
        return trial._replace(passages_sha256=survey_passages(trial.passages).sha256)
    relevant = relevant_passages(read_qrels(judgments_file(trial.data, trial.split)))
    _, sha256, n_found = survey_passages(trial.passages, relevant)
    if not n_found:
        raise UserError(
            f"{trial.data} has none of the {len(relevant)} passages that its judgments of"
            f" {trial.split} find relevant: all metrics would be 0"
        )
    warn_of_missing(n_found, relevant, trial.split)
    return trial._replace(passages_sha256=sha256)


def start_comparison(workdir: Path, trial: Trial) -> Trial:
    """Starts the folder of a comparison, or continues it.

    Args:
      workdir: the folder described in `comparison`.
      trial: the result of `survey_trial`.

    Returns:
      The trial with the queries to rank.

    Raises:
      UserError: also if the folder was started with other passages.
    """
    started = {
        "data": {"corpus": trial.passages_sha256, **_asked_sha256(trial)},
        "split": trial.ranked_split,
        "language": trial.language,
        "ignore_identical_ids": trial.ignore_identical_ids,
    }
    _start_on_queries(workdir, started)
    return trial if trial.log is None else _with_drawn(workdir, trial, trial.log)


def _asked_sha256(trial: Trial) -> dict[str, str | None]:
    """Returns the SHA-256 of judgments and queries."""
    if trial.log is not None:
        return {"judgments": None, "queries": trial.log.sha256}
    files = (judgments_file(trial.data, trial.split), queries_file(trial.data, trial.split))
    judgments, queries = map(file_sha256, files)
    return {"judgments": judgments, "queries": queries}


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


def _with_drawn(workdir: Path, trial: Trial, log: QueryLog) -> Trial:
    """Writes the ranked queries of a log; returns the trial with these queries."""
    drawn = make_once(workdir, workdir / DRAWN, _write_drawn, log.drawn)
    return trial._replace(data=drawn, corpus=trial.passages)


def queries_note(trial: Trial) -> list[str]:
    """Returns the number of ranked queries in words, unless all queries of a log are ranked."""
    n_queries = 0 if trial.log is None else trial.log.n_queries
    if n_queries <= N_DRAWN:
        return []
    return [f"for {N_DRAWN} of {n_queries:,} queries, drawn at random"]


def _write_drawn(drawn: Mapping[str, str], out: Path) -> None:
    with new_file(out) as file:
        write_passages(file, (Passage(name, "", text) for name, text in drawn.items()))
