"""Scores a first stage's passages with a cross-encoder."""

import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from sentence_transformers import CrossEncoder

from cocondenser_jax.collection import folder as collection
from cocondenser_jax.collection.trec import first_passages, read_run, write_run
from cocondenser_jax.errors import UserError
from cocondenser_jax.retrieval.models import load_cross_encoder, uses_bfloat16


def rerank(  # noqa: PLR0913
    model_folder: Path,
    data_folder: Path,
    run_file: Path,
    out: Path,
    *,
    split: str | None = None,
    depth: int = 100,
    batch_size: int = 64,
    with_positives: bool = False,
    precision: Literal["auto", "float32", "bfloat16"] = "auto",
) -> dict[str, Any]:
    """Scores the passages of a run with a cross-encoder and writes them as a new run.

    The new run's scores are the model's logits; ties keep the order of the first stage (see
    `trec.ranked`). Of the corpus, only what is scored is held in memory.

    Args:
      model_folder: see `models.load_cross_encoder`.
      data_folder: holds queries and passages.
      run_file: the first stage's TREC run.
      out: the run to write.
      split: the one with the run's queries; None: the run may have any query of the folder.
      depth: passages of the run, per query, to score. Those below are not in the new run.
      batch_size: pairs per forward pass.
      with_positives: score each query's relevant passages too, though the run may not have them.
      precision: see `models.uses_bfloat16`; the head is always in float32.

    Returns:
      How many queries and pairs there are, and how long scoring took.
    """
    if with_positives and split is None:
        raise UserError("with_positives needs a split, whose judgments say what is relevant")
    model = load_cross_encoder(model_folder)
    best = {query: first_passages(scores, depth) for query, scores in read_run(run_file).items()}
    if not best:
        raise UserError(f"{run_file} is empty: expected a TREC run")
    queries = collection.read_queries(data_folder, split)
    collection.require_known(best, queries, "queries", run_file)
    relevant: dict[str, list[str]] = {}
    judgments = run_file
    if with_positives and split is not None:
        judgments = collection.judgments_file(data_folder, split)
        _, qrels = collection.read_split(data_folder, split)
        relevant = {q: list(found) for q, found in collection.with_positives(qrels).items()}
    passages = collection.read_named(data_folder, (run_file, best), (judgments, relevant))
    # The dictionaries keep the first stage's order, and so do equal scores.
    wanted = {
        query: list(dict.fromkeys([*best.get(query, []), *relevant.get(query, [])]))
        for query in best | relevant
    }
    pairs = [
        (queries[query], collection.passage_text(passages[passage]))
        for query, found in wanted.items()
        for passage in found
    ]
    start = time.perf_counter()
    scores_N = iter(score_pairs(model, pairs, batch_size, precision).tolist())
    seconds = time.perf_counter() - start
    write_run(
        out, {q: dict(zip(ps, islice(scores_N, len(ps)), strict=True)) for q, ps in wanted.items()}
    )
    return {
        "queries": len(wanted),
        "pairs": len(pairs),
        "reranking_seconds": seconds,
        "reranking_ms_per_query": 1000 * seconds / len(wanted),
    }


def score_pairs(
    model: CrossEncoder,
    pairs: Sequence[tuple[str, str]],
    batch_size: int = 64,
    precision: Literal["auto", "float32", "bfloat16"] = "auto",
) -> np.ndarray:
    """Returns `scores_N`, float32: the logit of each (query, passage)."""
    with torch.autocast(model.device.type, torch.bfloat16, enabled=uses_bfloat16(precision)):
        scores_N = model.predict(pairs, batch_size=batch_size, show_progress_bar=True)
    if not np.isfinite(scores_N).all():
        raise UserError(
            "the model scores a pair with NaN or infinity: its weights are damaged, or its "
            "training failed"
        )
    return np.asarray(scores_N)
