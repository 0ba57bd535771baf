"""Vectors to a faiss index, queries to results.

An index folder holds everything that search needs beside the model: `index.faiss`,
`passages.jsonl` (id, title, text, one line per row of the index), `offsets.npy` (where in that
file each line begins) and `manifest.json` (of the embeddings, with the factory and the checksum of
`index.faiss`). The shards of `encode.encode_corpus` can also be searched as they are: exactly, and
in little memory.
"""

import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import faiss
import numpy as np
from sentence_transformers import SentenceTransformer
from tqdm import tqdm

from cocondenser_jax import files
from cocondenser_jax.collection.layouts import Passage, parse_passage
from cocondenser_jax.collection.trec import Run
from cocondenser_jax.errors import UserError
from cocondenser_jax.retrieval.models import load_retriever, model_sha256
from cocondenser_jax.retrieval.shards import (
    BLOCK_ROWS,
    MANIFEST,
    Lines,
    map_array,
    nearest,
    open_shards,
    read_manifest,
)

# Vectors to train a compressed index on; faiss takes at most 256 of them per centroid.
_TRAINING_ROWS = 1_000_000
_QUERIES_AT_ONCE = 256


class Result(NamedTuple):
    """One passage found."""

    score: float
    passage: Passage


class Searcher(NamedTuple):
    """Opened vectors of passages, the passages, and the model that encoded them."""

    model: SentenceTransformer
    # (queries, hidden) and k to scores (queries, k), decreasing, and rows (queries, k)
    nearest: Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]
    n_passages: int
    lines: list[Lines]


class Seconds(NamedTuple):
    """How long the two parts of a search took."""

    encoding: float
    search: float


def build_index(embeddings: Path, out: Path, factory: str = "Flat") -> dict[str, Any]:
    """Builds an inner-product index from the shards of `encode.encode_corpus`.

    Args:
      embeddings: the folder of shards.
      out: the index folder, which must not exist yet.
      factory: faiss' index string: "Flat" is exact; "IVF1024,Flat", "HNSW32" or "IVF1024,PQ32"
        trade exactness for speed or memory.

    Returns:
      The manifest.

    Raises:
      UserError: if shards are missing or damaged, the string is not known or needs more passages,
        or `out` is not free.
    """
    manifest = read_manifest(embeddings, "encode the corpus first, or again until it ends")
    shards, lines = open_shards(embeddings, manifest)
    dimension = manifest["dimension"]
    try:
        index = faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise UserError(
            f"faiss does not know the index string {factory!r} for vectors of {dimension} numbers"
        ) from error
    with files.new_folder(out) as folder:
        if not index.is_trained:
            _train(index, shards, factory)
        for shard in tqdm(shards, desc="index", unit=" shards"):
            for start in range(0, len(shard), BLOCK_ROWS):
                index.add(np.asarray(shard[start : start + BLOCK_ROWS], np.float32))
        faiss.write_index(index, str(folder / "index.faiss"))
        _join_passages(lines, folder)
        checksum = files.file_sha256(folder / "index.faiss")
        manifest = manifest | {"factory": factory, "index_sha256": checksum}
        files.write_json(folder / MANIFEST, manifest)
    return manifest


def open_index(
    index_folder: Path,
    model_folder: Path,
    *,
    parameters: str = "",
    query_length: int | None = None,
    device: str | None = None,
) -> Searcher:
    """Opens an index with the model that encoded it.

    Args:
      index_folder: of `build_index`.
      model_folder: the model, wherever it lies now.
      parameters: of the search in faiss's notation, such as "nprobe=16" for IVF, "efSearch=64" for
        HNSW: slower and more exact.
      query_length: tokens kept of a query; None: as the model folder says.
      device: see `models.load_retriever`.

    Raises:
      UserError: if one is missing, the model is not the one that encoded the passages, or the index
        has no such parameters.
    """
    manifest = read_manifest(index_folder, "build the index first")
    model = _load_model_of(index_folder, manifest, model_folder, query_length, device)
    index = _read_index(index_folder / "index.faiss", manifest)
    if (index.d, index.ntotal) != (manifest["dimension"], manifest["passages"]):
        raise UserError(f"{index_folder}/index.faiss holds other vectors than its manifest says")
    _set_parameters(index, parameters, manifest.get("factory"))
    offsets = map_array(index_folder / "offsets.npy")
    if offsets is None or (offsets.shape, offsets.dtype) != ((index.ntotal,), np.int64):
        raise UserError(f"{index_folder}/offsets.npy is missing or damaged")
    lines = [Lines(index_folder / "passages.jsonl", offsets)]
    return Searcher(model, partial(_nearest_in_index, index), index.ntotal, lines)


def open_embeddings(
    embeddings: Path,
    model_folder: Path,
    *,
    query_length: int | None = None,
    device: str | None = None,
) -> Searcher:
    """Opens the shards of `encode.encode_corpus`, to be searched without an index.

    Every search reads all of them, a block at a time, and is exact, as a "Flat" index is.

    Args:
      embeddings: the folder of shards.
      model_folder: the model, wherever it lies now.
      query_length: tokens kept of a query; None: as the model folder says.
      device: see `models.load_retriever`.

    Raises:
      UserError: for shards that are missing or damaged, or another model than the one that encoded
        the passages.
    """
    manifest = read_manifest(embeddings, "encode the corpus first, or again until it ends")
    model = _load_model_of(embeddings, manifest, model_folder, query_length, device)
    shards, lines = open_shards(embeddings, manifest)
    return Searcher(model, partial(nearest, shards), manifest["passages"], lines)


def search_run(
    searcher: Searcher, queries: Mapping[str, str], depth: int = 100, batch_size: int = 64
) -> Run:
    """Finds the passages with the largest inner product for each query.

    Args:
      searcher: of `open_index` or `open_embeddings`.
      queries: id → text.
      depth: passages per query at most.
      batch_size: queries per forward pass.

    Returns:
      The run, best first; of equal scores, the passage that the corpus has first. An approximate
      index may find fewer than `depth`.

    Raises:
      UserError: for a depth below 1.
    """
    return timed_run(searcher, queries, depth, batch_size)[0]


def timed_run(
    searcher: Searcher, queries: Mapping[str, str], depth: int = 100, batch_size: int = 64
) -> tuple[Run, Seconds]:
    """Does what `search_run` does, and says how long all queries together took."""
    if depth < 1:
        raise UserError(f"depth={depth}: expected at least 1")
    if not queries:
        return {}, Seconds(0.0, 0.0)
    scores_QxK, rows_QxK, seconds = _find(searcher, list(queries.values()), depth, batch_size)
    ids = {row: passage.id for row, passage in _read_passages(searcher, rows_QxK)}
    run: Run = {
        query: {
            ids[row]: score
            for row, score in zip(rows_K, scores_K, strict=True)
            if row >= 0  # faiss fills up with -1
        }
        for query, scores_K, rows_K in zip(
            queries, scores_QxK.tolist(), rows_QxK.tolist(), strict=True
        )
    }
    return run, seconds


def search_text(searcher: Searcher, query: str, k: int = 10) -> list[Result]:
    """Finds the best passages for one query, with their texts.

    Args:
      searcher: of `open_index` or `open_embeddings`.
      query: the text.
      k: results at most.

    Raises:
      UserError: for a query without a word, or a k below 1.
    """
    return timed_text(searcher, query, k)[0]


def timed_text(searcher: Searcher, query: str, k: int = 10) -> tuple[list[Result], Seconds]:
    """Does what `search_text` does, and says how long it took."""
    if not query.strip():
        raise UserError("the query is empty: expected some words")
    if k < 1:
        raise UserError(f"{k} passages to find: expected at least 1")
    scores_1xK, rows_1xK, seconds = _find(searcher, [query], k, batch_size=1)
    passages = dict(_read_passages(searcher, rows_1xK))
    found = zip(scores_1xK[0].tolist(), rows_1xK[0].tolist(), strict=True)
    return [Result(score, passages[row]) for score, row in found if row >= 0], seconds


def _find(
    searcher: Searcher, texts: list[str], k: int, batch_size: int
) -> tuple[np.ndarray, np.ndarray, Seconds]:
    """Returns scores (queries, k), decreasing, the rows they belong to, and the time it took."""
    start = time.perf_counter()
    vectors_QxD = searcher.model.encode_query(
        texts, batch_size=batch_size, show_progress_bar=False
    ).astype(np.float32)
    encoded = time.perf_counter()
    scores_QxK, rows_QxK = searcher.nearest(vectors_QxD, min(k, searcher.n_passages))
    seconds = Seconds(encoded - start, time.perf_counter() - encoded)
    # faiss gives equal scores in any order, which would change with the shards.
    order_QxK = np.lexsort((rows_QxK, -scores_QxK))
    return (
        np.take_along_axis(scores_QxK, order_QxK, 1),
        np.take_along_axis(rows_QxK, order_QxK, 1),
        seconds,
    )


def _read_index(path: Path, manifest: Mapping[str, Any]) -> faiss.Index:
    """Reads an index that is as `build_index` wrote it.

    faiss believes what it reads: of a damaged file it may allocate any amount of memory, search
    without end, or give wrong results.
    """
    try:
        if files.file_sha256(path) == manifest.get("index_sha256"):
            return faiss.read_index(str(path))
    except (OSError, RuntimeError, MemoryError) as error:
        raise UserError(f"{path} is missing or damaged: build the index again") from error
    raise UserError(f"{path} is damaged, or its manifest is another's: build the index again")


def _set_parameters(index: faiss.Index, parameters: str, factory: Any) -> None:
    try:
        if not re.fullmatch(r"(\w+=[1-9]\d*(,(?=.)|$))*", parameters):
            raise ValueError(parameters)
        faiss.ParameterSpace().set_index_parameters(index, parameters)  # type: ignore[arg-type]
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"an index {factory} cannot be searched with {parameters!r}: expected faiss's "
            "notation, such as nprobe=16 (IVF) or efSearch=64 (HNSW)"
        ) from error


def _nearest_in_index(
    index: faiss.Index, queries_QxD: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Searches for some queries at a time, so that the bar moves."""
    n_queries = len(queries_QxD)
    found = []
    with tqdm(total=n_queries, desc="search", unit=" queries", disable=n_queries == 1) as progress:
        for start in range(0, n_queries, _QUERIES_AT_ONCE):
            block_QxD = queries_QxD[start : start + _QUERIES_AT_ONCE]
            found.append(index.search(block_QxD, k))
            progress.update(len(block_QxD))
    scores, rows = zip(*found, strict=True)
    return np.concatenate(scores), np.concatenate(rows)


def _read_passages(searcher: Searcher, rows_QxK: np.ndarray) -> Iterator[tuple[int, Passage]]:
    """Yields each row that was found, once, and its passage."""
    rows = np.unique(rows_QxK)
    first_row = 0
    for path, offsets in searcher.lines:
        begin, end = np.searchsorted(rows, (first_row, first_row + len(offsets)))
        if begin < end:
            try:
                with path.open("rb") as file:
                    for row in rows[begin:end].tolist():
                        yield row, _read_passage(file, int(offsets[row - first_row]))
            except OSError as error:
                raise UserError(f"cannot read {path}: {error.strerror}") from error
        first_row += len(offsets)


def _read_passage(file: BinaryIO, offset: int) -> Passage:
    try:
        file.seek(offset)
        return parse_passage(file.readline(), file.name)
    except (OSError, UserError) as error:
        raise UserError(f"{file.name} is damaged: expected a passage at byte {offset}") from error


def _load_model_of(
    folder: Path,
    manifest: Mapping[str, Any],
    model_folder: Path,
    query_length: int | None,
    device: str | None,
) -> SentenceTransformer:
    """Loads the model and makes sure that it encoded what `folder` holds."""
    model = load_retriever(
        model_folder, query_length=query_length, pooling=manifest.get("pooling"), device=device
    )
    dimension = model.get_embedding_dimension()
    if dimension != manifest["dimension"]:
        raise UserError(
            f"{model_folder} gives vectors of {dimension} numbers, "
            f"{folder} holds vectors of {manifest['dimension']}"
        )
    if model_sha256(model_folder) != manifest["model_sha256"]:
        raise UserError(
            f"{folder} was built with another model ({manifest['model']}) than {model_folder}"
        )
    return model


def _train(index: faiss.Index, shards: list[np.ndarray], factory: str) -> None:
    n_rows = sum(len(shard) for shard in shards)
    share = min(1.0, _TRAINING_ROWS / n_rows)
    rng = np.random.default_rng(0)
    sample = [
        shard[np.sort(rng.choice(len(shard), int(np.ceil(share * len(shard))), replace=False))]
        for shard in shards
    ]
    try:
        index.train(np.concatenate(sample).astype(np.float32))
    except RuntimeError as error:
        raise UserError(f"{n_rows} passages are too few to train the index {factory!r}") from error


def _join_passages(lines: list[Lines], folder: Path) -> None:
    """Writes one `passages.jsonl` from those of the shards, and `offsets.npy`."""
    offsets = []
    with (folder / "passages.jsonl").open("wb") as joined:
        for path, begins in lines:
            offsets.append(begins + joined.tell())
            with path.open("rb") as part:
                shutil.copyfileobj(part, joined)
    np.save(folder / "offsets.npy", np.concatenate(offsets))
