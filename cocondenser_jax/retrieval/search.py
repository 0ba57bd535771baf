"""Vectors to a faiss index, queries to results.

An index folder holds everything that search needs beside the model: `index.faiss`,
`passages.jsonl` (id, title, text, one line per row of the index), `offsets.npy` (where in that
file each line begins), `ids.json` and `manifest.json` (of the embeddings, with the factory).
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
from sentence_transformers import SentenceTransformer
from tqdm import tqdm

from cocondenser_jax import files
from cocondenser_jax.errors import UserError
from cocondenser_jax.evaluation.trec import Run
from cocondenser_jax.retrieval.data import Passage
from cocondenser_jax.retrieval.encode import MANIFEST
from cocondenser_jax.retrieval.models import load_retriever, model_sha256

# Vectors to train a compressed index on; faiss takes at most 256 of them per centroid.
_TRAINING_ROWS = 1_000_000
_QUERIES_AT_ONCE = 256


class Result(NamedTuple):
    """One passage found."""

    score: float
    passage: Passage


class Searcher(NamedTuple):
    """An opened index folder and the model that made its vectors."""

    folder: Path
    vectors: faiss.Index
    model: SentenceTransformer


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
      UserError: if the shards are incomplete, the string is not known, or `out` is not free.
    """
    manifest = _read_manifest(embeddings, "encode the corpus first, or again until it ends")
    shards = [
        np.load(embeddings / f"embeddings-{shard:05d}.npy", mmap_mode="r")
        for shard in range(manifest["shards"])
    ]
    try:
        index = faiss.index_factory(manifest["dimension"], factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise UserError(f"faiss does not know the index string {factory!r}") from error
    with files.new_folder(out) as folder:
        if not index.is_trained:
            _train(index, shards, factory)
        for shard in tqdm(shards, desc="index", unit=" shards"):
            index.add(np.asarray(shard, np.float32))
        faiss.write_index(index, str(folder / "index.faiss"))
        _join_passages(embeddings, manifest["shards"], folder)
        manifest = manifest | {"factory": factory}
        files.write_json(folder / MANIFEST, manifest)
    return manifest


def open_index(
    index_folder: Path,
    model_folder: Path,
    *,
    query_length: int | None = None,
    device: str | None = None,
) -> Searcher:
    """Opens an index with the model that encoded it.

    Args:
      index_folder: of `build_index`.
      model_folder: the model, wherever it lies now.
      query_length: tokens kept of a query; None: as the model folder says.
      device: see `models.load_retriever`.

    Raises:
      UserError: if one is missing, or the model is not the one that encoded the passages.
    """
    manifest = _read_manifest(index_folder, "build the index first")
    model = load_retriever(
        model_folder, query_length=query_length, pooling=manifest["pooling"], device=device
    )
    dimension = model.get_embedding_dimension()
    if dimension != manifest["dimension"]:
        raise UserError(
            f"{model_folder} gives vectors of {dimension} numbers, "
            f"the index {index_folder} holds vectors of {manifest['dimension']}"
        )
    if model_sha256(model_folder) != manifest["model_sha256"]:
        raise UserError(
            f"the index {index_folder} was built with another model ({manifest['model']}) "
            f"than {model_folder}"
        )
    try:
        index = faiss.read_index(str(index_folder / "index.faiss"))
    except RuntimeError as error:
        raise UserError(f"{index_folder}/index.faiss is missing or damaged") from error
    return Searcher(index_folder, index, model)


def search_run(
    searcher: Searcher, queries: Mapping[str, str], depth: int = 100, batch_size: int = 64
) -> Run:
    """Finds the passages with the largest inner product for each query.

    Args:
      searcher: of `open_index`.
      queries: id → text.
      depth: passages per query at most.
      batch_size: queries per forward pass.

    Returns:
      The run, best first. An approximate index may find fewer than `depth`.
    """
    if depth < 1:
        raise UserError(f"depth={depth}: expected at least 1")
    ids = files.read_json(searcher.folder / "ids.json")
    names, texts = list(queries), list(queries.values())
    run: Run = {}
    with tqdm(total=len(texts), desc="search", unit=" queries") as progress:
        for start in range(0, len(texts), _QUERIES_AT_ONCE):
            block = slice(start, start + _QUERIES_AT_ONCE)
            scores_QxK, rows_QxK = _nearest(searcher, texts[block], depth, batch_size)
            for name, scores_K, rows_K in zip(names[block], scores_QxK, rows_QxK, strict=True):
                run[name] = {
                    ids[row]: float(score)
                    for row, score in zip(rows_K, scores_K, strict=True)
                    if row >= 0  # faiss fills up with -1
                }
            progress.update(len(scores_QxK))
    return run


def search_text(searcher: Searcher, query: str, k: int = 10) -> list[Result]:
    """Finds the best passages for one query, with their texts.

    Args:
      searcher: of `open_index`.
      query: the text.
      k: results at most.
    """
    scores_1xK, rows_1xK = _nearest(searcher, [query], k, batch_size=1)
    offsets = np.load(searcher.folder / "offsets.npy", mmap_mode="r")
    results = []
    with (searcher.folder / "passages.jsonl").open("rb") as file:
        for score, row in zip(scores_1xK[0], rows_1xK[0], strict=True):
            if row >= 0:
                file.seek(offsets[row])
                record = json.loads(file.readline())
                passage = Passage(record["_id"], record["title"], record["text"])
                results.append(Result(float(score), passage))
    return results


def _nearest(
    searcher: Searcher, texts: list[str], k: int, batch_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns scores (queries, k), decreasing, and the rows of the index they belong to."""
    vectors_QxD = searcher.model.encode_query(
        texts, batch_size=batch_size, show_progress_bar=False
    ).astype(np.float32)
    scores_QxK, rows_QxK = searcher.vectors.search(vectors_QxD, min(k, searcher.vectors.ntotal))
    return scores_QxK, rows_QxK


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


def _join_passages(embeddings: Path, n_shards: int, folder: Path) -> None:
    """Writes one `passages.jsonl` from those of the shards, `offsets.npy` and `ids.json`."""
    with (folder / "passages.jsonl").open("wb") as joined:
        for shard in range(n_shards):
            with (embeddings / f"passages-{shard:05d}.jsonl").open("rb") as part:
                shutil.copyfileobj(part, joined)
    ids, lengths = [], [0]
    with (folder / "passages.jsonl").open("rb") as joined:
        for line in joined:
            ids.append(json.loads(line)["_id"])
            lengths.append(len(line))
    np.save(folder / "offsets.npy", np.cumsum(lengths)[:-1])
    files.write_json(folder / "ids.json", ids)


def _read_manifest(folder: Path, advice: str) -> dict[str, Any]:
    if not (folder / MANIFEST).is_file():
        raise UserError(f"{folder} holds no {MANIFEST}: {advice}")
    manifest: dict[str, Any] = files.read_json(folder / MANIFEST)
    return manifest
