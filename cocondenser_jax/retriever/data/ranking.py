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
    require_other_answers,
    warn_of_identical_ids,
)
from cocondenser_jax.retriever.data.trec import Qrels, Run, ranked

logger = logging.getLogger(__name__)

DEFAULT_METRICS = ("MRR@10", "Recall@100", "nDCG@10")

# ir-measures' default would also start programs that fail on ids which trec_eval accepts.
_PROVIDER = ir_measures.providers.FallbackProvider(
    [ir_measures.pytrec_eval, ir_measures.msmarco, ir_measures.judged]
)


class Metrics(TypedDict):
    """What a run scores: metric → mean, and query → metric → value."""

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
    Results of other queries are ignored. Ties keep the run's order, as in `trec.write_run`. Warns
    of a metric that is 0 for every query, and of one that is deeper than any ranking.

    Args:
      qrels: the judgments; a grade below 0 is "in the pool, not judged", as in trec_eval: infAP,
        Bpref and metrics of judged passages alone tell it from 0.
      run: the results.
      metrics: any of trec_eval's, by the names of ir-measures, such as MRR@10 or ndcg@10; the
        results have them as ir-measures spells them.
      ignore_identical_ids: drop results whose id is their query's (see `drop_identical_ids`).
      name: of the run, for warnings.

    Raises:
      UserError: also if `ignore_identical_ids` would drop passages that are judged relevant.
    """
    if ignore_identical_ids:
        require_other_answers(qrels)
        run = drop_identical_ids(run)
    else:
        warn_of_identical_ids({query: run.get(query, {}) for query in qrels}, qrels)
    measures = {metric_name(typed): parse_metric(typed) for typed in metrics}
    check_results(run, qrels, "judged", name)
    cutoffs = {metric: measure.params.get("cutoff", 0) for metric, measure in measures.items()}
    warn_of_cutoffs(name, run, cutoffs)
    # Ranks instead of scores: exact, distinct, and the same for every provider of ir-measures.
    by_rank = {
        query: {passage: -float(rank) for rank, (passage, _) in enumerate(ranked(run[query]))}
        for query in qrels
        if run.get(query)
    }
    per_query = {query: dict.fromkeys(measures, 0.0) for query in qrels}
    if by_rank:
        # -1 is "in the pool, not judged". Less would be counted before the beginning of trec_eval's
        # array of grades.
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
    """Raises a UserError for a run, by its name, that has no result for any judged query."""
    if not any(run.get(query) for query in qrels):
        raise UserError(
            f"{name} has no result for any of the {len(qrels)} judged queries: there is nothing to"
            " compare"
        )


def mean_over_queries(per_query: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Averages each metric of query → metric → value."""
    names = next(iter(per_query.values()))
    return {name: fmean(values[name] for values in per_query.values()) for name in names}


def check_results(run: Run, queries: Collection[str], having: str, name: str) -> None:
    """Warns of queries without results.

    `having` is "judged" or "answered", and `name` the run's, for the messages.

    Raises:
      UserError: if there is no query, or if the run has results for other queries only.
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
    """Warns once of metrics (name → cutoff) that are deeper than any ranking of a run."""
    depth = max(map(len, run.values()), default=0)
    if depth and (cut := [metric for metric, cutoff in cutoffs.items() if cutoff > depth]):
        stop = "stops" if len(cut) == 1 else "stop"
        log_once(
            logger,
            f"{name}: no ranking is longer than {depth}, so {', '.join(cut)} {stop} there",
        )


def metric_name(typed: str) -> str:
    """Returns a metric's name as ir-measures spells it, of one typed in any case: "ndcg@10"."""
    kind = re.match(r"[^\W\d]*", typed)[0]  # type: ignore[index]  # it always matches
    known = ir_measures.measures.registry
    alike = [name for name in known if name.lower() == kind.lower()]
    return typed if kind in known or not alike else typed.replace(kind, alike[0], 1)


def parse_metric(name: str) -> ir_measures.Measure:
    """Returns a metric by its name; raises a UserError for one that cannot be computed."""
    try:
        metric = ir_measures.parse_measure(metric_name(name))
        # ir-measures lets through 0, at which trec_eval ends the process, and what it cannot count.
        numbers = [metric.params.get(name, 1) for name in ("cutoff", "rel")]
        in_range = all(type(n) is int and 0 < n < 1 << 31 for n in numbers)
        known = in_range and _PROVIDER.supports(metric)
    except (AssertionError, KeyError, NameError, SyntaxError, ValueError):
        known = False
    if not known:
        raise UserError(
            f"unknown metric {name!r}: expected, for instance, {', '.join(DEFAULT_METRICS)}"
        )
    return metric
