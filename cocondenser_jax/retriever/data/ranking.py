"""Metrics of a ranking against relevance judgments."""

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import TypedDict

import ir_measures

from cocondenser_jax.errors import UserError, log_once
from cocondenser_jax.retriever.data.identical_ids import (
    drop_identical_ids,
    finds_itself,
    require_other_answers,
    warn_of_identical_ids,
)
from cocondenser_jax.retriever.data.trec import Qrels, Run, ranked

logger = logging.getLogger(__name__)

DEFAULT_METRICS = ("MRR@10", "Recall@100", "nDCG@10")

# ir-measures' default also starts programs that fail on some ids that trec_eval accepts.
_PROVIDER = ir_measures.providers.FallbackProvider(
    [ir_measures.pytrec_eval, ir_measures.msmarco, ir_measures.judged]
)


class Metrics(TypedDict):
    """The metrics of a run: metric → mean, and query → metric → value."""

    mean: dict[str, float]
    per_query: dict[str, dict[str, float]]


def evaluate_run(
    qrels: Qrels,
    run: Run,
    metrics: Sequence[str] = DEFAULT_METRICS,
    *,
    ignore_identical_ids: bool = False,
    name: str = "the run",
) -> Metrics:
    """Computes retrieval metrics, averaged over all judged queries.

    A judged query without results or without a relevant passage counts as 0, as with trec_eval -c.
    Results of unjudged queries are ignored. Ties keep the run's order, as in `trec.write_run`.
    Warns of metrics that are 0 for every query, and of metrics with a cutoff beyond all rankings.

    Args:
      qrels: the judgments; a grade below 0 means "in the pool, not judged", as in trec_eval, which
        only infAP, Bpref and metrics over judged passages distinguish from 0.
      run: the results.
      metrics: metrics of trec_eval, by the names of ir-measures in any case, such as MRR@10 or
        ndcg@10; returned in the spelling of ir-measures.
      ignore_identical_ids: whether to drop passages with their query's id (see
        `drop_identical_ids`).
      name: the run's name, for warnings.

    Raises:
      UserError: also if `ignore_identical_ids` would drop passages that are judged relevant.
    """
    if not ignore_identical_ids:
        warn_of_identical_ids({name: finds_itself(run, qrels)}, qrels)
    return compute_metrics(
        qrels, run, metrics, ignore_identical_ids=ignore_identical_ids, name=name
    )


def compute_metrics(
    qrels: Qrels, run: Run, metrics: Sequence[str], *, ignore_identical_ids: bool, name: str
) -> Metrics:
    """Computes metrics as `evaluate_run` does, without its warning of identical ids."""
    if ignore_identical_ids:
        require_other_answers(qrels)
        run = drop_identical_ids(run)
    measures = {metric_name(typed): parse_metric(typed) for typed in metrics}
    check_results(run, qrels, "judged", name)
    cutoffs = {metric: measure.params.get("cutoff", 0) for metric, measure in measures.items()}
    warn_of_cutoffs(name, run, cutoffs)
    # Ranks replace scores: they are exact, distinct, and equal for all providers of ir-measures.
    by_rank = {
        query: {passage: -float(rank) for rank, (passage, _) in enumerate(ranked(run[query]))}
        for query in qrels
        if run.get(query)
    }
    per_query = {query: dict.fromkeys(measures, 0.0) for query in qrels}
    if by_rank:
        # -1 means "in the pool, not judged". Lower grades would index trec_eval's array of grades
        # before its start.
        grades = {
            query: {passage: max(grade, -1) for passage, grade in judgments.items()}
            for query, judgments in qrels.items()
        }
        names: dict[ir_measures.Measure, list[str]] = {}  # RR@10 is MRR@10
        for metric, measure in measures.items():
            names.setdefault(measure, []).append(metric)
        for result in _PROVIDER.iter_calc(list(names), grades, by_rank):
            for metric in names[result.measure]:
                per_query[result.query_id][metric] = float(result.value)
    mean = mean_over_queries(per_query)
    if zeros := [metric for metric, value in mean.items() if value == 0]:
        logger.warning(
            "%s: %s is 0 for each of the %d judged queries; do the run and the judgments"
            " use the same ids?",
            name,
            ", ".join(zeros),
            len(qrels),
        )
    return {"mean": mean, "per_query": per_query}


def require_results(run: Run, qrels: Qrels, name: object) -> None:
    """Raises a UserError for a run without results for any judged query; `name` is the run's."""
    if not any(run.get(query) for query in qrels):
        raise UserError(
            f"{name} has no result for any of the {len(qrels)} judged queries: nothing to compare"
        )


def mean_over_queries(per_query: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Averages each metric over the queries of query → metric → value."""
    names = next(iter(per_query.values()))
    return {name: fmean(values[name] for values in per_query.values()) for name in names}


def check_results(run: Run, queries: Collection[str], having: str, name: str) -> None:
    """Warns of queries without results.

    Args:
      run: the results.
      queries: the ids of the queries.
      having: "judged" or "answered", for messages.
      name: the run's name, for messages.

    Raises:
      UserError: if there are no queries, or if the run has results only for others.
    """
    if not queries:
        raise UserError(f"there are no {having} queries to evaluate")
    without = sum(not run.get(query) for query in queries)
    if without == len(queries) and any(run.values()):
        raise UserError(
            f"{name} has no result for any of the {len(queries)} {having} queries: its ids look "
            f"like {next(iter(run))}, theirs like {next(iter(queries))}; is this the right split?"
        )
    if without:
        logger.warning(
            "%s: %d of %d %s queries have no result: they count as 0",
            *(name, without, len(queries), having),
        )


def warn_of_cutoffs(name: str, run: Run, cutoffs: Mapping[str, int]) -> None:
    """Warns once of metrics with a cutoff (name → cutoff) beyond all rankings of a run."""
    depth = max(map(len, run.values()), default=0)
    if depth and (cut := [metric for metric, cutoff in cutoffs.items() if cutoff > depth]):
        stop = "stops" if len(cut) == 1 else "stop"
        log_once(
            logger,
            f"{name}: no ranking is longer than {depth}, so {', '.join(cut)} {stop} there",
        )


def metric_name(typed: str) -> str:
    """Returns the spelling of ir-measures for a metric in any case, such as "ndcg@10"."""
    kind = re.match(r"[^\W\d]*", typed)[0]  # type: ignore[index]  # it always matches
    known = ir_measures.measures.registry
    alike = [name for name in known if name.lower() == kind.lower()]
    return typed if kind in known or not alike else typed.replace(kind, alike[0], 1)


def parse_metric(name: str) -> ir_measures.Measure:
    """Returns a metric by name; raises a UserError if it is unknown or cannot be computed."""
    try:
        metric = ir_measures.parse_measure(metric_name(name))
        # ir-measures accepts 0, on which trec_eval aborts the process, and too large numbers.
        numbers = [metric.params.get(name, 1) for name in ("cutoff", "rel")]
        in_range = all(type(n) is int and 0 < n < 1 << 31 for n in numbers)
        counts = str(metric).startswith("Num")  # of queries or passages: they have no mean
        known = in_range and _PROVIDER.supports(metric) and not counts
    except (AssertionError, KeyError, NameError, SyntaxError, ValueError):
        known = False
    if not known:
        raise UserError(
            f"unknown metric {name!r}: expected, for instance, {', '.join(DEFAULT_METRICS)}"
        )
    return metric
