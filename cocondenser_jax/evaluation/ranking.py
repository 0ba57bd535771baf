"""Figures of a ranking against relevance judgments."""

import logging
from collections.abc import Sequence
from typing import TypedDict

import ir_measures

from cocondenser_jax.errors import UserError
from cocondenser_jax.evaluation.trec import Qrels, Run, ranked

log = logging.getLogger(__name__)

DEFAULT_MEASURES = ("MRR@10", "Recall@20", "Recall@100", "nDCG@10")

# ir-measures' names for what papers call otherwise.
_ALIASES = {"MRR": "RR", "Recall": "R"}


class Figures(TypedDict):
    """Result of `evaluate_run`: measure → mean, and query → measure → value."""

    mean: dict[str, float]
    per_query: dict[str, dict[str, float]]


def evaluate_run(qrels: Qrels, run: Run, measures: Sequence[str] = DEFAULT_MEASURES) -> Figures:
    """Computes retrieval measures, averaged over all judged queries.

    A judged query without results counts 0; results of queries that are not judged are ignored.
    Ties in the run are broken by its own order, as `trec.write_run` would write it.

    Args:
      qrels: the judgments.
      run: the results.
      measures: names such as MRR@10, Recall@100, nDCG@10, Success@20, or any other that
        ir-measures knows.

    Raises:
      UserError: for no judged query, or a measure that is not known.
    """
    if not qrels:
        raise UserError("there are no judged queries to evaluate")
    names = {_parse(name): name for name in measures}
    without = sum(not run.get(query) for query in qrels)
    if without:
        log.warning("%d of %d judged queries have no result: they count 0", without, len(qrels))
    # Ranks instead of scores: exact, distinct, and the same for every provider of ir-measures.
    by_rank = {
        query: {passage: -float(rank) for rank, (passage, _) in enumerate(ranked(run[query]))}
        for query in qrels
        if run.get(query)
    }
    per_query = {query: dict.fromkeys(names.values(), 0.0) for query in qrels}
    if by_rank:
        for metric in ir_measures.iter_calc(list(names), qrels, by_rank):
            per_query[metric.query_id][names[metric.measure]] = float(metric.value)
    mean = {
        name: sum(values[name] for values in per_query.values()) / len(per_query)
        for name in names.values()
    }
    return {"mean": mean, "per_query": per_query}


def _parse(name: str) -> ir_measures.Measure:
    head, at, cutoff = name.partition("@")
    try:
        return ir_measures.parse_measure(_ALIASES.get(head, head) + at + cutoff)
    except (ValueError, NameError, SyntaxError, KeyError):
        raise UserError(
            f"unknown measure {name!r}: expected, for instance, {', '.join(DEFAULT_MEASURES)}"
        ) from None
