"""Mines hard negatives: passages that retrievers rank highly but that are not relevant.

A pool joins one or several runs; in the second round of arXiv 2108.05540, those of BM25 and of the
first round's retriever.
"""

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from cocondenser_jax.errors import UserError, first_three
from cocondenser_jax.retriever.data.folder import (
    best_by_query,
    corpus_file,
    read_split,
    read_texts,
    with_positives,
)
from cocondenser_jax.retriever.data.same_text import with_copies
from cocondenser_jax.retriever.data.trec import Qrels, Results, read_run, write_results

logger = logging.getLogger(__name__)

# f(query, passage) says whether the passage is excluded from the query's negatives.
Excludes = Callable[[str, str], bool]


class Denoising(NamedTuple):
    """Removes passages that a cross-encoder finds relevant, as in RocketQA (arXiv 2010.08191)."""

    run: Path  # logits of `rerank.rerank`; passages without a logit are removed
    below: float  # upper bound of a negative's probability σ(logit), as in the paper


def mine(
    runs: Sequence[Path],
    data_folder: Path,
    split: str,
    out: Path,
    depth: int = 200,
    denoising: Denoising | None = None,
) -> dict[str, Any]:
    """Writes a pool of negatives for each query with a relevant passage, as a TREC run.

    Relevant passages, their copies and passages with the query's id (see `identical_ids`) are
    always left out.

    Args:
      runs: TREC runs.
      data_folder: the folder of queries, judgments and passages.
      split: the split of the queries.
      out: the run to write; see `make_pool` for its scores.
      depth: number of first passages taken from each run.
      denoising: also leaves out passages by a cross-encoder's scores.

    Returns:
      The numbers of queries, of negatives, and of excluded passages by reason.
    """
    scored = _scored_exclusions(denoising) if denoising else {}
    qrels = with_positives(read_split(data_folder, split)[1])
    judged = _answers(qrels, data_folder)
    # Joined to one string, the ids of a query's passages take a tenth of the memory.
    best = [
        {query: " ".join(names) for query, names in best_by_query(run, qrels, depth)}
        for run in runs
    ]
    exclusions: dict[str, Excludes] = {
        "relevant": lambda q, p: qrels[q].get(p, 0) > 0,
        "the query's id": lambda q, p: p == q,  # if queries are passages
        "a relevant one's text": lambda q, p: p in judged[q],
    }
    exclusions |= scored
    excluded = dict.fromkeys(exclusions, 0)
    sizes: list[int] = []

    def noted() -> Results:
        for query, negatives in make_pool(qrels, best, exclusions, excluded):
            sizes.append(len(negatives))
            yield query, negatives
        if not any(sizes):
            reasons = ", ".join(f"{count} {reason}" for reason, count in excluded.items())
            raise UserError(
                f"{first_three([str(run) for run in runs])}: no negative is left for any"
                f" of the {len(sizes)} queries of the split ({reasons})"
            )

    write_results(out, noted(), tag="negatives")
    summary = {
        "queries": len(sizes),
        "queries without negatives": sizes.count(0),
        "negatives": sum(sizes),
        "negatives per query, mean": sum(sizes) / len(sizes),
        "negatives per query, least": min(sizes),
    }
    return summary | {f"excluded, {reason}": count for reason, count in excluded.items()}


def _answers(qrels: Qrels, data_folder: Path) -> Qrels:
    """Adds copies to the relevant passages; warns if there are no texts."""
    try:
        corpus = corpus_file(data_folder)
    except UserError:
        logger.warning(
            "%s has no passages: negatives may have the text of a relevant passage", data_folder
        )
        return qrels
    return with_copies(qrels, read_texts(corpus), read_texts(corpus))


def _scored_exclusions(denoising: Denoising) -> dict[str, Excludes]:
    """Returns the exclusions by a cross-encoder's scores."""
    if not 0 < denoising.below < 1:
        raise UserError(
            f"--denoise_below={denoising.below}: expected a probability above 0, below 1"
        )
    least = math.log(denoising.below / (1 - denoising.below))
    logits = read_run(denoising.run)
    return {
        "not scored": lambda q, p: p not in logits.get(q, {}),
        "scored too high": lambda q, p: logits[q][p] >= least,
    }


def make_pool(
    queries: Iterable[str],
    best: Sequence[Mapping[str, str]],
    exclusions: Mapping[str, Excludes],
    excluded: dict[str, int],
) -> Results:
    """Yields each query with the passages of several runs, scored by 1 / rank.

    Scores of different engines are not comparable, so a passage's score is 1 / r, where r is its
    best rank. Passages with the same rank keep the order of the runs.

    Args:
      queries: the queries.
      best: for each run, query → ids of passages, best first, separated by spaces.
      exclusions: reason → test; the first that holds applies.
      excluded: reason → number of passages excluded so far; updated.
    """
    for query in queries:
        ranks: dict[str, int] = {}
        for run in best:
            for rank, passage in enumerate(run[query].split(), start=1):
                ranks[passage] = min(rank, ranks.get(passage, rank))
        negatives = {}
        for passage, rank in sorted(ranks.items(), key=itemgetter(1)):
            reasons = (reason for reason, holds in exclusions.items() if holds(query, passage))
            if first := next(reasons, None):
                excluded[first] += 1
            else:
                negatives[passage] = 1 / rank
        yield query, negatives
