"""Searches an index or embeddings by inner products of vectors, and by BM25."""

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from tqdm import tqdm

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.data.folder import Asked, require_query
from cocondenser_jax.retriever.data.identical_ids import warn_of_identical_ids, watch_identical_ids
from cocondenser_jax.retriever.data.layouts import Passage
from cocondenser_jax.retriever.data.same_text import note_firsts, warn_of_copies
from cocondenser_jax.retriever.data.trec import (
    Results,
    Run,
    require_any,
    write_results,
)
from cocondenser_jax.retriever.search.bm25 import rank_by_bm25
from cocondenser_jax.retriever.search.embeddings import passage_at, rows_of, texts_of
from cocondenser_jax.retriever.search.finite import require_finite
from cocondenser_jax.retriever.search.fuse import fuse_scores
from cocondenser_jax.retriever.search.opening import Index, OpenIndex

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

# Queries encoded at once, since libraries need memory for several copies of the vectors.
_ENCODED_AT_ONCE = 65_536
# Queries searched at once, with their results in memory; all vectors are read once for each part.
_SEARCHED_AT_ONCE = 65_536
# Passages of each side that are fused, unless more are requested.
_FUSED_DEPTH = 100
_OVERFLOW = "the model's weights are damaged, or too large for what it computes"

# Row → score of a query's passages, best first.
RowScores = dict[int, float]
# Seconds by step: `encoding` of queries, `search`, and `bm25` in a hybrid search. Complete once all
# rankings are consumed, since they are computed lazily.
Seconds = dict[str, float]


class Hit(NamedTuple):
    """A passage and its score for a query."""

    score: float
    passage: Passage


def retrieve(
    index: Index,
    asked: Asked,
    run_out: Path,
    depth: int = 100,
    *,
    ignore_identical_ids: bool = False,
    warns: bool = False,
) -> dict[str, float]:
    """Searches for queries and writes a TREC run; see `search_run`.

    With `warns`, it calls `warn_of_identical_ids` and `warn_of_copies`.
    Memory contains the vectors of all queries and the results of 65,536 of them, 12 bytes each.
    Returns the numbers of queries and passages, and the seconds for encoding and searching.
    """
    queries, qrels = asked
    results, seconds = _search(index, queries, depth, ignore_identical_ids=ignore_identical_ids)
    none_found = f"{run_out} is not written: none of {len(queries)} queries has a result"
    results = require_any(results, none_found)
    firsts: dict[str, Sequence[str]] = {}
    own: dict[str, bool] = {}
    write_results(run_out, watch_identical_ids(note_firsts(results, qrels, firsts), own))
    if warns:
        warn_of_identical_ids({str(run_out): own}, qrels)
    if warns and qrels:
        warn_of_copies({str(run_out): firsts}, qrels, partial(texts_of, index.passages))
    metrics: dict[str, float] = {"queries": len(queries), "passages": len(index.passages)}
    for step, value in seconds.items():
        metrics[f"{step}_seconds"] = value
        metrics[f"{step}_ms_per_query"] = 1000 * value / len(queries)
    return metrics


def count_passages(index: Index, names: Collection[str]) -> int:
    """Counts the ids in `names` that an index contains."""
    rows = rows_of(index.passages["id"], [*names])
    return len(rows) - rows.count(None)


def search_run(
    index: Index,
    queries: Mapping[str, str],
    depth: int = 100,
    *,
    ignore_identical_ids: bool = False,
) -> Run:
    """Returns the `depth` best passages for each query (id → text).

    With `ignore_identical_ids`, passages with their query's id are dropped before fusing (see
    `drop_identical_ids`).
    """
    results, _ = _search(index, queries, depth, ignore_identical_ids=ignore_identical_ids)
    return dict(results)


def _search(
    index: Index, queries: Mapping[str, str], depth: int, *, ignore_identical_ids: bool
) -> tuple[Results, Seconds]:
    if not queries:
        return iter(()), {}
    ids = index.passages["id"]
    own_Q = rows_of(ids, list(queries)) if ignore_identical_ids else None
    ranking_Q, seconds = _rank(index, list(queries.values()), depth, own_Q)
    results = (
        (query, {ids[row].as_py(): score for row, score in ranking.items()})
        for query, ranking in zip(queries, ranking_Q, strict=True)
    )
    return results, seconds


def search_text(index: Index, query: str, k: int = 10) -> list[Hit]:
    """Returns the `k` best passages for one query."""
    return search_text_timed(index, query, k)[0]


def search_text_timed(index: Index, query: str, k: int) -> tuple[list[Hit], Seconds]:
    """Searches as `search_text`, and also returns the seconds for each step."""
    require_query(query)
    (ranking,), seconds = _rank(index, [query], k)
    hits = [Hit(score, passage_at(index.passages, row)) for row, score in ranking.items()]
    return hits, seconds


def _drop_rows(
    ranking_Q: Iterable[RowScores], own_Q: Sequence[int | None] | None, k: int
) -> Iterator[RowScores]:
    """Drops each query's own row and keeps `k` others; without `own_Q`, keeps all."""
    if own_Q is None:
        yield from ranking_Q
        return
    for ranking, own in zip(ranking_Q, own_Q, strict=True):
        yield dict(islice(((row, score) for row, score in ranking.items() if row != own), k))


def _rank(
    index: Index, texts: list[str], k: int, own_Q: Sequence[int | None] | None = None
) -> tuple[Iterator[RowScores], Seconds]:
    """Ranks the passages for each text, except its row in `own_Q`."""
    if k < 1:
        raise UserError(f"{k} passages to find: expected at least 1")
    n_own = 0 if own_Q is None else 1
    if isinstance(index, OpenIndex):
        ranking_Q, seconds = _rank_by_vectors(index, texts, k + n_own)
        return _drop_rows(ranking_Q, own_Q, k), seconds
    depth = max(k, _FUSED_DEPTH)
    dense_Q, seconds = _rank_by_vectors(index.dense, texts, depth + n_own)
    dense_Q = _drop_rows(dense_Q, own_Q, depth)
    bm25_Q = _timed(rank_by_bm25(index.bm25, texts, depth + n_own), seconds, "bm25")
    lexical_Q = _count_empty(_drop_rows(bm25_Q, own_Q, depth))
    ranking_Q = (
        fuse_scores(both, index.method, weights=(1.0, 1.0), depth=k)
        for both in zip(lexical_Q, dense_Q, strict=True)
    )
    return ranking_Q, seconds


def _count_empty(lexical_Q: Iterable[RowScores]) -> Iterator[RowScores]:
    """Passes on rankings of BM25, and at the end warns of empty ones."""
    n_empty = n_queries = 0
    for ranking in lexical_Q:
        n_queries += 1
        n_empty += not ranking
        yield ranking
    if n_empty:
        logger.warning(
            "BM25 finds nothing for %d of %d queries: they are ranked by vectors alone",
            n_empty,
            n_queries,
        )


def _rank_by_vectors(
    index: OpenIndex, texts: list[str], k: int
) -> tuple[Iterator[RowScores], Seconds]:
    """Encodes all queries, then searches for some at a time, as their results are consumed."""
    start = time.perf_counter()
    vectors_QxD = _encode_queries(index.model, texts)
    require_finite(vectors_QxD, "the query", texts, _OVERFLOW)
    seconds = {"encoding": time.perf_counter() - start}

    def search() -> Iterator[RowScores]:
        for first in range(0, len(texts), _SEARCHED_AT_ONCE):
            some_QxD = vectors_QxD[first : first + _SEARCHED_AT_ONCE]
            scores_QxK, rows_QxK = index.nearest(some_QxD, min(k, len(index.passages)))
            yield from map(_to_ranking, scores_QxK, rows_QxK)

    return _timed(search(), seconds, "search"), seconds


def _timed(ranking_Q: Iterator[RowScores], seconds: Seconds, step: str) -> Iterator[RowScores]:
    """Passes on rankings, and adds up the seconds for making them."""
    seconds[step] = 0.0
    while True:
        start = time.perf_counter()
        ranking = next(ranking_Q, None)
        seconds[step] += time.perf_counter() - start
        if ranking is None:
            return
        yield ranking


def _encode_queries(model: "SentenceTransformer", texts: list[str]) -> np.ndarray:
    """Returns vectors_QxD, float32."""
    vectors_QxD = np.empty((len(texts), model.get_embedding_dimension() or 0), np.float32)
    starts = range(0, len(texts), _ENCODED_AT_ONCE)
    for start in tqdm(starts, desc="queries", disable=len(starts) == 1):
        part = slice(start, start + _ENCODED_AT_ONCE)
        vectors_QxD[part] = model.encode_query(texts[part], batch_size=64, show_progress_bar=False)
    return vectors_QxD


def _to_ranking(scores_K: np.ndarray, rows_K: np.ndarray) -> RowScores:
    # faiss orders ties arbitrarily, depending on the shards, and pads with row -1.
    order_K = np.lexsort((rows_K, -scores_K))
    order_K = order_K[rows_K[order_K] >= 0]
    return dict(zip(rows_K[order_K].tolist(), scores_K[order_K].tolist(), strict=True))
