"""Queries to passages, by the inner products of their vectors: in an index, or in embeddings."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import faiss
import numpy as np
import pyarrow  # type: ignore[import-untyped]
from sentence_transformers import SentenceTransformer
from tqdm import trange

from cocondenser_jax.collection.folder import read_queries
from cocondenser_jax.collection.layouts import Passage
from cocondenser_jax.collection.trec import Run, write_run
from cocondenser_jax.errors import UserError
from cocondenser_jax.retrieval.embeddings import (
    nearest,
    open_shards,
    passage_at,
    read_manifest,
    shard_vectors,
)
from cocondenser_jax.retrieval.index import read_index
from cocondenser_jax.retrieval.models import load_retriever, model_sha256
from cocondenser_jax.storage.files import without_surrogates

_QUERIES_AT_ONCE = 256


class FoundPassage(NamedTuple):
    """A passage and its score for a query."""

    score: float
    passage: Passage


class DenseIndex(NamedTuple):
    """The vectors of passages, opened for search; the passages; the model that encoded them."""

    model: SentenceTransformer
    # vectors_QxD and k to scores_QxK, decreasing, and rows_QxK
    nearest: Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]
    passages: pyarrow.Table  # `id`, `title` and `text` of the rows
    seconds: dict[str, float]  # of `encoding` and `search` in the last call, for all its queries


def open_index(folder: Path, model_folder: Path, *, parameters: str = "") -> DenseIndex:
    """Opens an index, or embeddings as they are, with the model that encoded them.

    Every search of embeddings reads all of them, a block at a time, and is exact, as in a "Flat"
    index.

    Args:
      folder: of `index.build_index` or `encode.encode_corpus`.
      model_folder: the model, wherever it lies now.
      parameters: of the search in faiss's notation, such as "nprobe=16" for IVF, "efSearch=64" for
        HNSW: slower and more exact. Embeddings have none.

    Raises:
      UserError: also if the model is not the one that encoded the passages.
    """
    manifest = read_manifest(folder)
    is_index = "index_sha256" in manifest
    if parameters and not is_index:
        raise UserError(f"{folder} holds embeddings: only an index has parameters")
    if model_sha256(model_folder) != manifest.get("model_sha256"):
        raise UserError(
            f"{folder} was built with another model ({manifest.get('model')}) than {model_folder}"
        )
    model = load_retriever(model_folder, pooling=manifest.get("given_pooling"))
    if is_index:
        index, passages = read_index(folder, manifest, parameters)
        search = partial(_nearest_in_index, index)
    else:
        passages = open_shards(folder, manifest)
        search = partial(nearest, shard_vectors(passages))
    return DenseIndex(model, search, passages, {})


def retrieve(
    folder: Path,
    model_folder: Path,
    data_folder: Path,
    run_out: Path,
    *,
    split: str | None = None,
    depth: int = 100,
    parameters: str = "",
) -> dict[str, float]:
    """Searches for the queries of a data folder, or of a split of it, and writes a TREC run.

    `open_index` describes what is searched.

    Returns:
      How many queries and passages there are, and how long encoding the queries and searching took.
    """
    queries = read_queries(data_folder, split)
    index = open_index(folder, model_folder, parameters=parameters)
    write_run(run_out, search_run(index, queries, depth))
    metrics: dict[str, float] = {"queries": len(queries), "passages": len(index.passages)}
    for part, value in index.seconds.items():
        metrics[f"{part}_seconds"] = value
        metrics[f"{part}_ms_per_query"] = 1000 * value / len(queries)
    return metrics


def search_run(index: DenseIndex, queries: Mapping[str, str], depth: int = 100) -> Run:
    """Finds the `depth` passages with the largest inner product for each query (id → text)."""
    if depth < 1:
        raise UserError(f"depth={depth}: expected at least 1")
    if not queries:
        return {}
    found_Q = _find(index, list(queries.values()), depth)
    ids = index.passages["id"]
    return {
        query: {ids[row].as_py(): score for score, row in found}
        for query, found in zip(queries, found_Q, strict=True)
    }


def search_text(index: DenseIndex, query: str, k: int = 10) -> list[FoundPassage]:
    """Finds the `k` best passages for one query."""
    if not query.strip() or without_surrogates(query) != query:
        raise UserError("the query is empty or not UTF-8: expected some words")
    if k < 1:
        raise UserError(f"{k} passages to find: expected at least 1")
    (found,) = _find(index, [query], k)
    return [FoundPassage(score, passage_at(index.passages, row)) for score, row in found]


def _find(index: DenseIndex, texts: list[str], k: int) -> list[list[tuple[float, int]]]:
    """Returns score and row of what was found for each text, best first."""
    start = time.perf_counter()
    vectors_QxD = index.model.encode_query(texts, batch_size=64, show_progress_bar=False)
    vectors_QxD = vectors_QxD.astype(np.float32)
    encoded = time.perf_counter()
    scores_QxK, rows_QxK = index.nearest(vectors_QxD, min(k, len(index.passages)))
    index.seconds.update(encoding=encoded - start, search=time.perf_counter() - encoded)
    # faiss orders equal scores arbitrarily, depending on the shards, and fills up with row -1.
    order_QxK = np.lexsort((rows_QxK, -scores_QxK))
    return [
        [(scores_K[i], rows_K[i]) for i in order_K if rows_K[i] >= 0]
        for scores_K, rows_K, order_K in zip(
            scores_QxK.tolist(), rows_QxK.tolist(), order_QxK.tolist(), strict=True
        )
    ]


def _nearest_in_index(
    index: faiss.Index, queries_QxD: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Searches for some queries at a time, so that the bar moves."""
    n_queries = len(queries_QxD)
    starts = trange(0, n_queries, _QUERIES_AT_ONCE, desc="search", disable=n_queries == 1)
    found = [index.search(queries_QxD[i : i + _QUERIES_AT_ONCE], k) for i in starts]
    scores, rows = zip(*found, strict=True)
    return np.concatenate(scores), np.concatenate(rows)
