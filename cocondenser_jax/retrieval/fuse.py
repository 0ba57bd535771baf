"""Several runs made into one, by ranks or by scores."""

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Literal

from cocondenser_jax.collection.trec import Run, ranked
from cocondenser_jax.errors import UserError

_RRF_K = 60  # the paper's


def fuse_runs(
    runs: Sequence[Run],
    method: Literal["rrf", "min_max"] = "rrf",
    weights: Sequence[float] | None = None,
    depth: int = 100,
) -> Run:
    """Sums a passage's values in several runs, times their weights; 0 where a run has it not.

    Args:
      runs: two or more; a query need not be in all of them.
      method: `rrf`: 1 / (60 + rank), of Cormack, Clarke & Büttcher, "Reciprocal Rank Fusion
        outperforms Condorcet and Individual Rank Learning Methods" (SIGIR 2009); `min_max`: (score
        - least) / (most - least) of a query's scores in the run, 1 where all are equal.
      weights: of the runs; None: 1 each.
      depth: passages kept of a query, the best; of equal ones those of the first run.
    """
    weights = [1.0] * len(runs) if weights is None else weights
    numbers = (*weights, depth)
    if len(runs) < 2 or len(weights) != len(runs) or not all(0 < n < math.inf for n in numbers):
        raise UserError(
            f"runs={len(runs)}, weights={weights}, depth={depth}: expected two runs or more, "
            "a weight above 0 for each, and a depth of at least 1"
        )
    fused: Run = {}
    for query in dict.fromkeys(chain(*runs)):
        sums: dict[str, float] = {}
        for run, weight in zip(runs, weights, strict=True):
            for passage, value in _values(run.get(query, {}), method).items():
                sums[passage] = sums.get(passage, 0.0) + weight * value
        # In double precision: `ranked`, in single precision, keeps the order of equals.
        fused[query] = dict(sorted(sums.items(), key=itemgetter(1), reverse=True)[:depth])
    return fused


def _values(scores: Mapping[str, float], method: str) -> dict[str, float]:
    if method == "rrf":
        return {p: 1 / (_RRF_K + rank) for rank, (p, _) in enumerate(ranked(scores), start=1)}
    least = min(scores.values(), default=0)
    most = max(scores.values(), default=0)
    return {p: (s - least) / (most - least) if most > least else 1.0 for p, s in scores.items()}
