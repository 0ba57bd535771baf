"""Mines hard negatives: passages that retrievers rank high for a query and that do not answer it.

A pool joins one run or several: in the second round of arXiv 2108.05540, those of BM25 and of the
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
    """Leaves out what a cross-encoder finds relevant, as RocketQA does (arXiv 2010.08191)."""

    run: Path  # logits by `rerank.rerank`; a passage without one is left out
    below: float  # the probability σ(logit) that a negative must be below; the paper's


def mine(
    sources: Sequence[Path],
    data_folder: Path,
    split: str,
    out: Path,
    depth: int = 200,
    denoising: Denoising | None = None,
) -> dict[str, Any]:
    """Writes the pool of negatives of each query that has a relevant passage, as a TREC run.

    Args:
      sources: TREC runs.
      data_folder: holds queries and judgments, and passages, whose texts are compared.
      split: the one whose queries get negatives.
      out: the run to write; see `make_pool` for its scores.
      depth: rank, in each source, of the last passage taken.
      denoising: which of them are left out too; None: only what is judged relevant, what has its
        text, and what has the query's id (see `identical_ids`).

    Returns:
      How many queries and negatives there are, and what was left out for which reason.
    """
    scored = _scored_exclusions(denoising) if denoising else {}
    qrels = with_positives(read_split(data_folder, split)[1])
    judged = _answers(qrels, data_folder)
    # Joined to one text, the names of a query's passages take a tenth of the memory.
    best = [
        {query: " ".join(names) for query, names in best_by_query(source, qrels, depth)}
        for source in sources
    ]
    exclusions: dict[str, Excludes] = {
        "relevant": lambda q, p: qrels[q].get(p, 0) > 0,
        "the query's id": lambda q, p: p == q,  # where queries are passages
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
                f"{first_three([str(source) for source in sources])}: no negative is left for any"
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
    """Adds copies to the relevant passages; warns where there are no texts."""
    try:
        corpus = corpus_file(data_folder)
    except UserError:
        logger.warning(
            "%s has no passages: negatives may have the text of a relevant passage", data_folder
        )
        return qrels
    return with_copies(qrels, read_texts(corpus), read_texts(corpus))


def _scored_exclusions(denoising: Denoising) -> dict[str, Excludes]:
    """Returns the exclusions by the scores of a cross-encoder."""
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
    """Yields each query with what several sources rank high for it, and 1 / rank as the score.

    Scores of different engines cannot be compared, so a passage's score is 1 / r, r its best rank.
    Passages of the same rank are in the order of the sources.

    Args:
      queries: that get negatives.
      best: of each source, query → its passages, best first, with spaces between them.
      exclusions: reason → test; the first that holds counts.
      excluded: reason → how many passages it excluded so far; counted on.
    """
    for query in queries:
        ranks: dict[str, int] = {}
        for source in best:
            for rank, passage in enumerate(source[query].split(), start=1):
                ranks[passage] = min(rank, ranks.get(passage, rank))
        negatives = {}
        for passage, rank in sorted(ranks.items(), key=itemgetter(1)):
            reasons = (reason for reason, holds in exclusions.items() if holds(query, passage))
            if first := next(reasons, None):
                excluded[first] += 1
            else:
                negatives[passage] = 1 / rank
        yield query, negatives
