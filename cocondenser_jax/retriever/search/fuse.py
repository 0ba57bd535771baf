"""Fuses several runs into one, by ranks or by scores."""

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Literal, get_args

import numpy as np

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.data.trec import Name, Run, ranked

logger = logging.getLogger(__name__)

Method = Literal["min_max", "rrf"]
METHODS = get_args(Method)
_RRF_K = 60  # the paper's


def fuse_runs(
    runs: Sequence[Run],
    method: Method = "min_max",
    weights: Sequence[float] | None = None,
    depth: int = 100,
) -> Run:
    """Fuses runs by the weighted sum of each passage's values, with 0 in runs that lack it.

    Args:
      runs: two or more; a query need not be in all of them.
      method: `min_max`: (score - min) / (max - min) over a query's scores in a run, or 1 if all are
        equal; `rrf`: 1 / (60 + rank) (Cormack, Clarke & Büttcher, SIGIR 2009).
      weights: one per run; None: 1 each.
      depth: number of passages kept per query; ties keep the order of the first run.
    """
    weights = [1.0] * len(runs) if weights is None else weights
    numbers = (*weights, depth)
    if len(runs) < 2 or len(weights) != len(runs) or not all(0 < n < math.inf for n in numbers):
        raise UserError(
            f"runs={len(runs)}, weights={weights}, depth={depth}: expected two runs or more, "
            "a weight above 0 for each, and a depth of at least 1"
        )
    return {
        query: fuse_scores([run.get(query, {}) for run in runs], method, weights, depth)
        for query in dict.fromkeys(chain(*runs))
    }


def check_runs(runs: Mapping[str, Run]) -> None:
    """Warns of queries without results in some of the runs to be fused.

    Their fused ranking uses only the other runs.

    Args:
      runs: the runs by file name.

    Raises:
      UserError: for a run without results, or if no query is in two runs.
    """
    in_runs = Counter(query for run in runs.values() for query in run)
    for name, run in runs.items():
        n_without = sum(not run.get(query) for query in in_runs)
        if n_without == len(in_runs):
            raise UserError(f"{name} has no results: there is nothing to fuse")
        if n_without:
            logger.warning("%s has no result for %d of %d queries", name, n_without, len(in_runs))
    if len(runs) > 1 and max(in_runs.values()) < 2:
        raise UserError(f"no query is in two of the runs {', '.join(runs)}: nothing to fuse")


def fuse_scores(
    rankings: Sequence[Mapping[Name, float]],
    method: Method,
    weights: Sequence[float],
    depth: int,
) -> dict[Name, float]:
    """Fuses the scores of one query, see `fuse_runs`; best first."""
    sums: dict[Name, float] = {}
    for scores, weight in zip(rankings, weights, strict=True):
        for passage, value in _values(scores, method).items():
            sums[passage] = sums.get(passage, 0.0) + weight * value
    # In double precision, since `ranked` would treat equal float32 values as ties.
    return dict(sorted(sums.items(), key=itemgetter(1), reverse=True)[:depth])


def _values(scores: Mapping[Name, float], method: Method) -> dict[Name, float]:
    if method == "rrf":
        return {p: 1 / (_RRF_K + rank) for rank, (p, _) in enumerate(ranked(scores), start=1)}
    least = min(scores.values(), default=0)
    most = max(scores.values(), default=0)
    equal = most == least or _were_equal(scores)
    return {p: 1.0 if equal else (s - least) / (most - least) for p, s in scores.items()}


def _were_equal(scores: Mapping[Name, float]) -> bool:
    """Whether `ranked` made these scores from equal ones: each is the next smaller float32."""
    values = np.sort(np.fromiter(scores.values(), np.float32, len(scores)))
    return bool(np.all(np.nextafter(values[:-1], np.float32(np.inf)) == values[1:]))
