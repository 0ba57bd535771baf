"""Scores of a cross-encoder for what a first stage found."""

import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from sentence_transformers import CrossEncoder
from tqdm import tqdm

from cocondenser_jax.collection import folder as data
from cocondenser_jax.collection import trec
from cocondenser_jax.errors import UserError
from cocondenser_jax.retrieval.models import load_cross_encoder, uses_bfloat16


def rerank(
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

    The new run's scores are the model's logits, exact in float32 but for ties: these keep the order
    of the first stage and differ by the least that the format needs (see `trec.ranked`). So it also
    serves as a teacher's scores. Of the corpus, only what is scored is held in memory.

    Args:
      model_folder: see `models.load_cross_encoder`.
      data_folder: see `data`.
      run_file: the first stage's TREC run.
      out: the run to write.
      split: the judgments whose queries the run has; None: it may have any query of the folder.
      depth: passages of the run, per query, to score. Those below are not in the new run.
      batch_size: pairs per forward pass.
      with_positives: score each query's relevant passages too, though the run may not have them.
      precision: of the matrix products but the head's, see `models.uses_bfloat16`.

    Returns:
      How many queries and pairs there are, and the time that scoring took.

    Raises:
      UserError: for files that cannot be read or do not fit together, a folder that is no
        cross-encoder, or a score that is not a number.
    """
    for name, value in (("depth", depth), ("batch_size", batch_size)):
        if value < 1:
            raise UserError(f"{name}={value}: expected at least 1")
    if with_positives and split is None:
        raise UserError("with_positives needs a split, whose judgments say what is relevant")
    model = load_cross_encoder(model_folder)
    best = _best_passages(run_file, depth)
    if split is None:
        queries, positives = data.read_queries(data_folder), {}
    else:
        queries, qrels = data.read_split(data_folder, split)
        positives = _relevant_passages(qrels) if with_positives else {}
    data.require_known_queries(best, queries, run_file)
    wanted = {
        query: list(dict.fromkeys([*best.get(query, []), *positives.get(query, [])]))
        for query in best | positives
    }
    named = {passage for passages in wanted.values() for passage in passages}
    texts = {p.id: data.passage_text(p) for p in data.read_corpus(data_folder) if p.id in named}
    data.require_known_passages(best, texts, run_file)
    if positives and split is not None:
        data.require_known_passages(positives, texts, data.judgments_file(data_folder, split))
    pairs = [(queries[q], texts[passage]) for q, passages in wanted.items() for passage in passages]
    start = time.perf_counter()
    scores = iter(score_pairs(model, pairs, batch_size, precision).tolist())
    seconds = time.perf_counter() - start
    # The dictionaries keep the first stage's order, and so do equal scores.
    run = {
        query: dict(zip(passages, islice(scores, len(passages)), strict=True))
        for query, passages in wanted.items()
    }
    trec.write_run(out, run)
    return {
        "queries": len(run),
        "pairs": len(pairs),
        "reranking_seconds": seconds,
        "reranking_ms_per_query": 1000 * seconds / len(run),
    }


def score_pairs(
    model: CrossEncoder,
    pairs: Sequence[tuple[str, str]],
    batch_size: int = 64,
    precision: Literal["auto", "float32", "bfloat16"] = "auto",
) -> np.ndarray:
    """Returns the logit of each pair (query, passage), float32: `scores_N`.

    Pairs are scored in order of length, to waste no padding.

    Args:
      model: of `models.load_cross_encoder`.
      pairs: texts of N pairs.
      batch_size: pairs per forward pass.
      precision: as in `rerank`.

    Raises:
      UserError: if a score is not a finite number.
    """
    order = np.argsort([-len(query) - len(passage) for query, passage in pairs], kind="stable")
    scores_N = np.empty(len(pairs), np.float32)
    with (
        torch.autocast(model.device.type, torch.bfloat16, enabled=uses_bfloat16(precision)),
        tqdm(total=len(pairs), desc="rerank", unit=" pairs") as progress,
    ):
        for start in range(0, len(pairs), batch_size):
            rows = order[start : start + batch_size]
            scores_N[rows] = model.predict(
                [pairs[row] for row in rows], batch_size=batch_size, show_progress_bar=False
            )
            if not np.isfinite(scores_N[rows]).all():
                raise UserError(
                    "the model scores a pair with NaN or infinity: its weights are damaged, or its "
                    "training failed"
                )
            progress.update(len(rows))
    return scores_N


def _best_passages(run_file: Path, depth: int) -> dict[str, list[str]]:
    run = trec.read_run(run_file)
    if not run:
        raise UserError(f"{run_file} is empty: expected a TREC run")
    return {
        query: [passage for passage, _ in trec.ranked(results)[:depth]]
        for query, results in run.items()
    }


def _relevant_passages(qrels: trec.Qrels) -> dict[str, list[str]]:
    """Returns the passages judged relevant to each query that has some."""
    relevant = {
        query: [passage for passage, grade in grades.items() if grade > 0]
        for query, grades in qrels.items()
    }
    return {query: passages for query, passages in relevant.items() if passages}
