"""Searches an index or embeddings by inner products of vectors, and by BM25."""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pyarrow  # type: ignore[import-untyped]
import pyarrow.compute  # type: ignore[import-untyped]
import torch
from sentence_transformers import SentenceTransformer
from tqdm import tqdm

from cocondenser_jax.collection.folder import passage_text
from cocondenser_jax.collection.layouts import Passage
from cocondenser_jax.collection.own_passages import is_same_text, watch_own_results
from cocondenser_jax.collection.trec import Results, Run, require_any, write_results
from cocondenser_jax.errors import UserError
from cocondenser_jax.representation import Given, Representation, with_given
from cocondenser_jax.representation import query_prompt as query_prompt_of
from cocondenser_jax.retrieval.bm25 import Bm25Index, open_bm25_index, rank_by_bm25
from cocondenser_jax.retrieval.cut import cut_vectors
from cocondenser_jax.retrieval.embeddings import (
    Manifest,
    open_shards,
    passage_at,
    passage_table,
    read_manifest,
    require_finite_rows,
    shard_vectors,
)
from cocondenser_jax.retrieval.exact import Nearest, float_blocks, nearest, nearest_checked
from cocondenser_jax.retrieval.finite import require_finite
from cocondenser_jax.retrieval.fuse import METHODS, Method, fuse_scores
from cocondenser_jax.retrieval.gpus import require_gpu
from cocondenser_jax.retrieval.index import nearest_in_index, read_index
from cocondenser_jax.retrieval.models import load_as, model_sha256
from cocondenser_jax.retrieval.quantized import BINARY, BitVectors, nearest_by_bits
from cocondenser_jax.retrieval.terms import require_language
from cocondenser_jax.storage.files import without_surrogates
from cocondenser_jax.storage.remote import local_copy

logger = logging.getLogger(__name__)

# Of many queries: libraries take memory for several copies of the vectors.
_ENCODED_AT_ONCE = 65_536
# How many passages of each side are fused, or more where more are asked for.
_FUSED_DEPTH = 100
_OVERSAMPLING = 4
_OVERFLOW = "the model's weights are damaged, or too large for what it computes"


# Of a query: row → score of its passages, best first.
Ranking = dict[int, float]
# That the steps of a search took: `encoding` the queries, `search`, and `bm25` in a hybrid search.
Seconds = dict[str, float]


class VectorSearch(NamedTuple):
    """How vectors are compared."""

    # Of an index, in faiss's notation, such as "nprobe=16" for IVF, "efSearch=64" for HNSW: slower
    # and more exact.
    parameters: str = ""
    # What multiplies embeddings; for the same ranks as on the CPU, in float32.
    device: Literal["cpu", "cuda"] = "cpu"
    # Of embeddings of bits: candidates for each passage that is asked for; None: 4.
    oversampling: int | None = None


_DEFAULTS = VectorSearch()


class Hit(NamedTuple):
    """A passage and its score for a query."""

    score: float
    passage: Passage


class OpenIndex(NamedTuple):
    """The vectors of passages, opened for search; the passages; the model that encoded them."""

    model: SentenceTransformer
    nearest: Nearest
    passages: pyarrow.Table  # `id`, `title` and `text` of the rows


class HybridIndex(NamedTuple):
    """An index whose results are fused with those of BM25 over the same passages."""

    dense: OpenIndex
    bm25: Bm25Index
    method: Method

    @property
    def passages(self) -> pyarrow.Table:
        """The passages of both."""
        return self.dense.passages


Index = OpenIndex | HybridIndex


def open_index(
    folder: Path,
    model_folder: Path,
    *,
    vectors: VectorSearch = _DEFAULTS,
    hybrid: Method | None = None,
    query_prompt: str | None = None,
    language: str | None = None,
) -> Index:
    """Opens an index, or embeddings as they are, with the model that encoded them.

    A search of embeddings reads all of them, block by block, and is exact, as with "Flat".

    Args:
      folder: of `index.build_index` or `encode.encode_corpus`, or its URL on an object store.
      model_folder: the folder of that model, which may have moved.
      vectors: how vectors are compared; embeddings have no parameters, an index no device.
      hybrid: the method of `fuse.fuse_runs` for fusing the best 100 passages of BM25 and of the
        model, or more if more are asked for. The first call writes `bm25` to the folder.
      query_prompt: is put before queries, where the passages were encoded for none; None: what
        they were encoded for.
      language: of BM25's terms, see `terms.languages`; None: that of `bm25`, at first English.

    Raises:
      UserError: also if the model or the prompt is not the one that the passages were encoded for.
    """
    if hybrid not in (None, *METHODS):
        raise UserError(f"hybrid={hybrid!r}: expected {' or '.join(METHODS)}")
    if language is not None:
        require_language(language)
    require_gpu(vectors.device)
    folder = local_copy(folder)
    manifest = read_manifest(folder)
    if vectors.parameters and not manifest.is_index:
        raise UserError(f"{folder} holds embeddings: only an index has parameters")
    if vectors.device != "cpu" and manifest.is_index:
        raise UserError(f"{folder} is an index, for the CPU: {vectors.device} searches embeddings")
    is_bits = manifest.dtype == BINARY and not manifest.is_index
    if vectors.oversampling is not None and not is_bits:
        raise UserError(f"{folder} holds no embeddings of bits: only these have oversampling")
    if vectors.device != "cpu" and is_bits:
        raise UserError(f"{folder} holds embeddings of bits, which are searched on the CPU")
    _require_model(folder, manifest, model_folder)
    representation = _with_query_prompt(folder, manifest.representation, query_prompt)
    model = load_as(model_folder, representation)
    if manifest.is_index:
        index, passages = read_index(folder, manifest, vectors.parameters)
        dense = OpenIndex(model, partial(nearest_in_index, index), passages)
    else:
        passages = open_shards(folder, manifest)
        dense = OpenIndex(model, _nearest_in_shards(passages, vectors), passages)
    if hybrid is None:
        return dense
    return HybridIndex(dense, open_bm25_index(folder, passages, language), hybrid)


def _nearest_in_shards(passages: pyarrow.Table, vectors: VectorSearch) -> Nearest:
    """Returns what searches the vectors of `open_shards`."""
    shards = shard_vectors(passages)
    if bits := [each for each in shards if isinstance(each, BitVectors)]:
        return partial(nearest_by_bits, bits, vectors.oversampling or _OVERSAMPLING)
    return nearest_checked(shards, partial(require_finite_rows, passages), vectors.device)


def open_cut(folder: Path, model_folder: Path, size: int) -> OpenIndex:
    """Opens embeddings with the first `size` numbers of each vector, of length 1 for a cosine.

    Args and errors are those of `open_index`. The cut vectors are held in memory.
    """
    manifest = read_manifest(folder)
    _require_model(folder, manifest, model_folder)
    cut = with_given(manifest.representation, Given(dimensions=size))
    passages = open_shards(folder, manifest)
    shards = [
        cut_vectors(
            torch.tensor(block_NxD[:, :size], dtype=torch.float32), size, cut.similarity
        ).numpy()
        for block_NxD in float_blocks(
            shard_vectors(passages), partial(require_finite_rows, passages)
        )
    ]
    return OpenIndex(load_as(model_folder, cut), partial(nearest, shards), passages)


def _require_model(folder: Path, manifest: Manifest, model_folder: Path) -> None:
    if model_sha256(model_folder) != manifest.model_sha256:
        raise UserError(
            f"{folder} was built with another model ({manifest.model}) than {model_folder}"
        )


def _with_query_prompt(folder: Path, encoded: Representation, prompt: str | None) -> Representation:
    expected = query_prompt_of(dict(encoded.prompts))
    if prompt is not None and expected and prompt != expected:
        raise UserError(
            f"{folder} was encoded for queries that begin with {expected!r}, not with {prompt!r}"
        )
    return with_given(encoded, Given(query_prompt=prompt))


def retrieve(
    index: Index,
    queries: Mapping[str, str],
    run_out: Path,
    depth: int = 100,
    *,
    ignore_identical_ids: bool = False,
) -> dict[str, float]:
    """Searches for queries (id → text) and writes a TREC run; see `search_run_timed`.

    Of the run, memory holds 12 bytes for each result. Returns the numbers of queries and passages,
    and the seconds that encoding the queries and searching took.
    """
    results, seconds = _search(index, queries, depth, ignore_identical_ids=ignore_identical_ids)
    none_found = f"{run_out} is not written: none of {len(queries)} queries has a result"
    results = require_any(results, none_found)
    write_results(run_out, watch_own_results(results, partial(_own_passages, index, queries)))
    metrics: dict[str, float] = {"queries": len(queries), "passages": len(index.passages)}
    for step, value in seconds.items():
        metrics[f"{step}_seconds"] = value
        metrics[f"{step}_ms_per_query"] = 1000 * value / len(queries)
    return metrics


def _own_passages(index: Index, queries: Mapping[str, str], names: Sequence[str]) -> set[str]:
    """Finds the queries that are passages, among those of some ids."""
    rows = _rows_of(index.passages["id"], names)
    return {
        query
        for query, row in zip(names, rows, strict=True)
        if row is not None
        and is_same_text(queries[query], passage_text(passage_at(index.passages, row)))
    }


def search_run(index: Index, queries: Mapping[str, str], depth: int = 100) -> Run:
    """Finds the `depth` best passages for each query (id → text)."""
    return search_run_timed(index, queries, depth)[0]


def search_run_timed(
    index: Index,
    queries: Mapping[str, str],
    depth: int = 100,
    *,
    ignore_identical_ids: bool = False,
) -> tuple[Run, Seconds]:
    """Searches as `search_run`, and also returns how long the steps of the search took.

    With `ignore_identical_ids`, passages with their query's id are left out before runs are fused
    (see `drop_identical_ids`).
    """
    results, seconds = _search(index, queries, depth, ignore_identical_ids=ignore_identical_ids)
    return dict(results), seconds


def _search(
    index: Index, queries: Mapping[str, str], depth: int, *, ignore_identical_ids: bool
) -> tuple[Results, Seconds]:
    if not queries:
        return iter(()), {}
    ids = index.passages["id"]
    own_Q = _rows_of(ids, list(queries)) if ignore_identical_ids else None
    ranking_Q, seconds = _rank(index, list(queries.values()), depth, own_Q)
    results = (
        (query, {ids[row].as_py(): score for row, score in ranking.items()})
        for query, ranking in zip(queries, ranking_Q, strict=True)
    )
    return results, seconds


def search_vectors(
    model: SentenceTransformer,
    vectors_NxD: np.ndarray,
    passages: Iterable[Passage],
    queries: Mapping[str, str],
    depth: int = 100,
) -> Run:
    """Finds the best passages for each query by vectors in memory, exactly.

    Args:
      model: encoded the passages, and encodes the queries.
      vectors_NxD: of the passages.
      passages: N of them.
      queries: id → text.
      depth: passages per query.
    """
    table = passage_table(passages)
    require_finite(vectors_NxD, "passage", table["id"], _OVERFLOW)
    index = OpenIndex(model, partial(nearest, [vectors_NxD]), table)
    return search_run(index, queries, depth)


def search_text(index: Index, query: str, k: int = 10) -> list[Hit]:
    """Finds the `k` best passages for one query."""
    return search_text_timed(index, query, k)[0]


def search_text_timed(index: Index, query: str, k: int = 10) -> tuple[list[Hit], Seconds]:
    """Searches as `search_text`, and also returns how long the steps of the search took."""
    if not query.strip() or without_surrogates(query) != query:
        raise UserError("the query is empty or not UTF-8: expected some words")
    (ranking,), seconds = _rank(index, [query], k)
    hits = [Hit(score, passage_at(index.passages, row)) for row, score in ranking.items()]
    return hits, seconds


def _rows_of(ids: pyarrow.ChunkedArray, names: Sequence[str]) -> list[int | None]:
    """Returns the row of each name; None where no row has it."""
    places_N = pyarrow.compute.index_in(ids, value_set=pyarrow.array(names, ids.type))
    rows = np.flatnonzero(places_N.is_valid().to_numpy())
    row_of = dict(zip(places_N.drop_null().to_pylist(), rows.tolist(), strict=True))
    return [row_of.get(i) for i in range(len(names))]


def _drop_rows(
    ranking_Q: Iterable[Ranking], own_Q: Sequence[int | None] | None, k: int
) -> Iterator[Ranking]:
    """Drops the row of each query, and keeps `k` others; all where no rows are given."""
    if own_Q is None:
        yield from ranking_Q
        return
    for ranking, own in zip(ranking_Q, own_Q, strict=True):
        yield dict(islice(((row, score) for row, score in ranking.items() if row != own), k))


def _rank(
    index: Index, texts: list[str], k: int, own_Q: Sequence[int | None] | None = None
) -> tuple[Iterator[Ranking], Seconds]:
    """Ranks the passages for each text, but for the row of each in `own_Q`."""
    if k < 1:
        raise UserError(f"{k} passages to find: expected at least 1")
    n_own = 0 if own_Q is None else 1
    if isinstance(index, OpenIndex):
        ranking_Q, seconds = _rank_by_vectors(index, texts, k + n_own)
        return _drop_rows(ranking_Q, own_Q, k), seconds
    depth = max(k, _FUSED_DEPTH)
    dense_Q, seconds = _rank_by_vectors(index.dense, texts, depth + n_own)
    dense_Q = _drop_rows(dense_Q, own_Q, depth)
    start = time.perf_counter()
    lexical_Q = list(_drop_rows(rank_by_bm25(index.bm25, texts, depth + n_own), own_Q, depth))
    seconds["bm25"] = time.perf_counter() - start
    if n_empty := lexical_Q.count({}):
        logger.warning(
            "BM25 finds nothing for %d of %d queries: they are ranked by vectors alone",
            n_empty,
            len(texts),
        )
    ranking_Q = (
        fuse_scores(both, index.method, weights=(1.0, 1.0), depth=k)
        for both in zip(lexical_Q, dense_Q, strict=True)
    )
    return ranking_Q, seconds


def _rank_by_vectors(
    index: OpenIndex, texts: list[str], k: int
) -> tuple[Iterator[Ranking], Seconds]:
    start = time.perf_counter()
    vectors_QxD = _encode_queries(index.model, texts)
    require_finite(vectors_QxD, "the query", texts, _OVERFLOW)
    encoded = time.perf_counter()
    scores_QxK, rows_QxK = index.nearest(vectors_QxD, min(k, len(index.passages)))
    seconds = {"encoding": encoded - start, "search": time.perf_counter() - encoded}
    return map(_to_ranking, scores_QxK, rows_QxK), seconds


def _encode_queries(model: SentenceTransformer, texts: list[str]) -> np.ndarray:
    """Returns vectors_QxD, float32."""
    vectors_QxD = np.empty((len(texts), model.get_embedding_dimension() or 0), np.float32)
    starts = range(0, len(texts), _ENCODED_AT_ONCE)
    for start in tqdm(starts, desc="queries", disable=len(starts) == 1):
        part = slice(start, start + _ENCODED_AT_ONCE)
        vectors_QxD[part] = model.encode_query(texts[part], batch_size=64, show_progress_bar=False)
    return vectors_QxD


def _to_ranking(scores_K: np.ndarray, rows_K: np.ndarray) -> Ranking:
    # faiss orders equal scores arbitrarily, depending on the shards, and fills up with row -1.
    order_K = np.lexsort((rows_K, -scores_K))
    order_K = order_K[rows_K[order_K] >= 0]
    return dict(zip(rows_K[order_K].tolist(), scores_K[order_K].tolist(), strict=True))
