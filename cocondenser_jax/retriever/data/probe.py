"""Evaluates a model during pre-training by searching a small collection."""

import hashlib
import heapq
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.data import folder as collection
from cocondenser_jax.retriever.data.identical_ids import own_answers
from cocondenser_jax.retriever.data.ranking import evaluate_run

# Maps queries, and passages as (title, text), to `queries_QxD` and `passages_PxD`.
Encode = Callable[[Sequence[str], Sequence[tuple[str, str]]], tuple[np.ndarray, np.ndarray]]

# Metrics of a search, and their names in the log.
SEARCH_METRICS = {"nDCG@10": "ndcg_at_10", "Recall@100": "recall_at_100"}
_DEPTH = 100  # passages per query


def open_search(folder: Path, split: str, n_passages: int) -> Callable[[Encode], dict[str, float]]:
    """Returns a function that searches a sample of a folder's passages with a model's `encode`.

    Scores are inner products. A passage with its query's id counts only if it is judged relevant
    (see `identical_ids`).

    Args:
      folder: a data folder.
      split: the split of its queries and judgments.
      n_passages: size of the sample, which contains all relevant passages; 0: all passages.

    Returns:
      A function from `encode` to the values of SEARCH_METRICS.

    Raises:
      UserError: if the folder cannot be read, or no passage is judged relevant.
    """
    queries, qrels = collection.read_split(folder, split)
    relevant = collection.relevant_passages(qrels)
    judgments = collection.judgments_file(folder, split)
    if not relevant:
        raise UserError(f"{judgments} judges no passage relevant")
    # Sampled by a hash of their ids. Relevant passages come last, so that they lose ties.
    passages = heapq.nsmallest(
        max(n_passages, len(relevant)) if n_passages else sys.maxsize,
        collection.read_corpus(folder),
        key=lambda p: (p.id not in relevant, hashlib.sha256(p.id.encode()).digest()),
    )[::-1]
    ids = [passage.id for passage in passages]
    collection.require_known(relevant, set(ids), "passages", judgments)
    answers = {*own_answers(qrels)}
    texts = [(passage.title, passage.text) for passage in passages]

    def search(encode: Encode) -> dict[str, float]:
        queries_QxD, passages_PxD = encode([*queries.values()], texts)
        run = {}
        for name, query_D in zip(queries, queries_QxD, strict=True):
            scores_P = passages_PxD @ query_D
            best = np.argsort(-scores_P, kind="stable")[: _DEPTH + 1]
            found = [i for i in best if ids[i] != name or name in answers][:_DEPTH]
            run[name] = {ids[i]: float(scores_P[i]) for i in found}
        mean = evaluate_run(qrels, run, [*SEARCH_METRICS])["mean"]
        return {SEARCH_METRICS[metric]: value for metric, value in mean.items()}

    return search
