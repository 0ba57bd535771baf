"""Scores the passages of a first stage with a cross-encoder."""

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cocondenser_jax.errors import UserError
from cocondenser_jax.model_folder.model import open_network
from cocondenser_jax.retriever.data.folder import (
    judgments_file,
    passage_text,
    read_asked,
    read_named,
    require_known,
    searched_passages,
    with_positives,
)
from cocondenser_jax.retriever.data.identical_ids import (
    drop_identical_ids,
    finds_itself,
    warn_of_identical_ids,
)
from cocondenser_jax.retriever.data.layouts import numbers_queries
from cocondenser_jax.retriever.data.trec import first_passages, read_run, write_run

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder

    from cocondenser_jax.retriever.search.models import Precision

logger = logging.getLogger(__name__)

_SHOWN = 60  # characters of a text shown in a message


class Candidates(NamedTuple):
    """The passages to score: the first ones of a run."""

    data: Path  # a folder with the queries, or a file of them
    run: Path  # the first stage's TREC run
    split: str | None = None  # the split of the run's queries; None: all queries
    depth: int = 100  # passages of the run per query; all others are dropped
    with_positives: bool = False  # whether to add each query's relevant passages
    ignore_identical_ids: bool = False  # see `drop_identical_ids`
    corpus: str | Path | None = None  # see `folder.searched_passages`


def rerank(
    model: str | Path,
    candidates: Candidates,
    out: Path,
    batch_size: int = 64,
    precision: "Precision" = "auto",
) -> dict[str, Any]:
    """Scores the passages of a run with a cross-encoder and writes them as a new run.

    The new run's scores are the model's logits; ties keep the order of the first stage (see
    `trec.ranked`). Of the corpus, only what is scored is held in memory.

    Args:
      model: the cross-encoder, by folder or by name on the Hub.
      candidates: the passages to score.
      out: the run to write.
      batch_size: pairs per forward pass.
      precision: see `models.uses_bfloat16`; the head is always in float32.

    Returns:
      The numbers of queries and pairs, and the seconds for scoring.
    """
    if candidates.with_positives and candidates.split is None:
        raise UserError("--with_positives needs a --split, whose judgments say what is relevant")
    corpus = searched_passages(candidates.data, candidates.corpus)
    named = _read_names(candidates)  # finds errors before the model is loaded
    network = open_network(model)
    from cocondenser_jax.retriever.search.cross_encoders import load_cross_encoder  # slow to import

    cross_encoder = load_cross_encoder(network)
    passages, pairs = _read_pairs(corpus, candidates, named)
    start = time.perf_counter()
    scores = iter(score_pairs(cross_encoder, pairs, batch_size, precision).tolist())
    seconds = time.perf_counter() - start
    write_run(out, {query: {name: next(scores) for name in passages[query]} for query in passages})
    return {
        "queries": len(passages),
        "pairs": len(pairs),
        "reranking_seconds": seconds,
        "reranking_ms_per_query": 1000 * seconds / len(passages),
    }


class _Named(NamedTuple):
    """The pairs to score, by id."""

    queries: dict[str, str]  # id → text
    first: dict[str, list[str]]  # query → passages of the first stage, best first
    relevant: dict[str, list[str]]  # query → its relevant passages; {} without positives


def _read_names(candidates: Candidates) -> _Named:
    """Reads everything except the passages, which may be many."""
    run = read_run(candidates.run)
    if not run:
        raise UserError(f"{candidates.run} is empty: expected a TREC run")
    queries, qrels = read_asked(
        candidates.data, candidates.split, ignore_identical_ids=candidates.ignore_identical_ids
    )
    if candidates.ignore_identical_ids:
        run = drop_identical_ids(run)
        if not any(run.values()):
            raise UserError(
                f"{candidates.run} has no result but passages with their query's id, which are left"
                " out"
            )
    first = {query: first_passages(scores, candidates.depth) for query, scores in run.items()}
    if not numbers_queries(candidates.data):
        warn_of_identical_ids({str(candidates.run): finds_itself(first, first)}, qrels)
    require_known(first, queries, "queries", candidates.run)
    n_without = sum(not first.get(query) for query in queries)
    if candidates.split is not None and n_without:
        logger.warning(
            "%s has no result for %d of %d queries of %s",
            candidates.run,
            n_without,
            len(queries),
            candidates.split,
        )
    relevant: dict[str, list[str]] = {}
    if candidates.with_positives:
        relevant = {query: list(grades) for query, grades in with_positives(qrels).items()}
    return _Named(queries, first, relevant)


def _read_pairs(
    corpus: str | Path, candidates: Candidates, named: _Named
) -> tuple[dict[str, list[str]], list[tuple[str, str]]]:
    """Reads the passages to score.

    Returns:
      The ids of each query's passages, in the order of the first stage, which ties will keep; and
      the texts of all pairs of query and passage, in the same order.
    """
    sources = [(candidates.run, named.first)]
    if candidates.with_positives and candidates.split is not None:
        sources.append((judgments_file(candidates.data, candidates.split), named.relevant))
    named_passages = read_named(corpus, *sources, judged=candidates.split is not None)
    texts = {name: passage_text(passage) for name, passage in named_passages.items()}
    passages = {
        query: list(dict.fromkeys([*named.first.get(query, []), *named.relevant.get(query, [])]))
        for query in named.first | named.relevant
    }
    pairs = [(named.queries[query], texts[name]) for query in passages for name in passages[query]]
    return passages, pairs


def score_pairs(
    model: "CrossEncoder",
    pairs: Sequence[tuple[str, str]],
    batch_size: int,
    precision: "Precision",
) -> np.ndarray:
    """Returns `scores_N`, float32: the logit of each (query, passage)."""
    import torch

    from cocondenser_jax.retriever.search.models import uses_bfloat16

    with torch.autocast(model.device.type, torch.bfloat16, enabled=uses_bfloat16(precision)):
        scores_N = model.predict(pairs, batch_size=batch_size, show_progress_bar=True)
    if not np.isfinite(scores_N).all():
        query, passage = pairs[int(np.flatnonzero(~np.isfinite(scores_N))[0])]
        raise UserError(
            f"the model scores a pair with NaN or infinity ({query[:_SHOWN]!r},"
            f" {passage[:_SHOWN]!r}): its weights are damaged, or too large for what it computes"
        )
    return np.asarray(scores_N)
