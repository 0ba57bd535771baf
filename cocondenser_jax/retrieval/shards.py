"""A folder of embeddings: what a shard looks like, whether it is whole, and searching them all.

Shard i is `embeddings-<i>.npy`, of shape (passages, hidden), beside `passages-<i>.jsonl` with id,
title and text of the same rows. Vectors are memory-mapped: a folder may be larger than memory.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
import pyarrow  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
from tqdm import tqdm

from cocondenser_jax import files
from cocondenser_jax.collection.layouts import parse_passage
from cocondenser_jax.errors import UserError

MANIFEST = "manifest.json"
# Vectors held as float32 while shards are searched or indexed: 200 MB at 768 numbers each.
BLOCK_ROWS = 65_536
_DAMAGED = "is missing or damaged: encode again with the same flags, which renews such shards only"
# What both kinds of manifest say that is read again.
_KINDS = {
    "model": str,
    "model_sha256": str,
    "dimension": int,
    "dtype": str,
    "passages": int,
    "shards": int,
    "shard_size": int,
}


class Lines(NamedTuple):
    """A jsonl file of passages and where each of its lines begins."""

    path: Path
    offsets: np.ndarray


def vectors_file(folder: Path, shard: int) -> Path:
    """Returns where the vectors of a shard lie."""
    return folder / f"embeddings-{shard:05d}.npy"


def passages_file(folder: Path, shard: int) -> Path:
    """Returns where the passages of a shard lie."""
    return folder / f"passages-{shard:05d}.jsonl"


def map_array(path: Path) -> np.ndarray | None:
    """Maps an .npy file; None if it is missing, cut short or no such file."""
    try:
        # Not `np.load`, which also opens archives.
        array = np.lib.format.open_memmap(path, mode="r")
        return array if array.offset + array.nbytes == path.stat().st_size else None
    except Exception:  # NumPy reads the header as Python, and raises whatever that raises
        return None


def map_vectors(path: Path, shape: tuple[int, int], dtype: str) -> np.ndarray | None:
    """Maps the vectors of a shard; None if the file is damaged or holds anything else."""
    array = map_array(path)
    return array if array is not None and (array.shape, array.dtype) == (shape, dtype) else None


def read_manifest(folder: Path, advice: str) -> dict[str, Any]:
    """Reads the manifest of a folder of embeddings or of an index.

    Raises:
      UserError: if there is none, with the advice, or it lacks what a manifest says.
    """
    if not (folder / MANIFEST).is_file():
        raise UserError(f"{folder} holds no {MANIFEST}: {advice}")
    manifest = files.read_object(folder / MANIFEST)
    for key, kind in _KINDS.items():
        if type(manifest.get(key)) is not kind:
            raise UserError(
                f"{folder / MANIFEST}: {key} is {manifest.get(key)!r}, expected {kind.__name__}"
            )
    if manifest.get("pooling") not in (None, "cls", "mean"):
        raise UserError(f"{folder / MANIFEST}: pooling is neither cls nor mean")
    if manifest["dtype"] not in ("float32", "float16"):
        raise UserError(f"{folder / MANIFEST}: dtype is neither float32 nor float16")
    n_shards = -(-manifest["passages"] // max(1, manifest["shard_size"]))
    if min(manifest["dimension"], n_shards) < 1 or manifest["shards"] != n_shards:
        raise UserError(f"{folder / MANIFEST}: its numbers contradict each other")
    return manifest


def open_shards(folder: Path, manifest: Mapping[str, Any]) -> tuple[list[np.ndarray], list[Lines]]:
    """Maps the vectors of all shards and finds the lines of their passages.

    Args:
      folder: of `encode.encode_corpus`.
      manifest: its manifest.

    Returns:
      For each shard, vectors (passages, hidden) and the lines of the same rows.

    Raises:
      UserError: for a shard that is missing, cut short or damaged.
    """
    vectors, lines = [], []
    for shard in range(manifest["shards"]):
        n_rows = min(manifest["shard_size"], manifest["passages"] - shard * manifest["shard_size"])
        path = vectors_file(folder, shard)
        vectors_NxD = map_vectors(path, (n_rows, manifest["dimension"]), manifest["dtype"])
        if vectors_NxD is None:
            raise UserError(f"{path} {_DAMAGED}")
        vectors.append(vectors_NxD)
        lines.append(_find_lines(passages_file(folder, shard), n_rows))
    return vectors, lines


def nearest(
    shards: Sequence[np.ndarray], queries_QxD: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the vectors with the largest inner products, exactly, one block after another.

    Args:
      shards: vectors (passages, hidden) each.
      queries_QxD: float32.
      k: neighbours per query, at most as many as there are passages.

    Returns:
      Scores (queries, k), decreasing, and rows (queries, k), counted through all shards. Of
      several that tie for the last place, any may be there.
    """
    best = faiss.ResultHeap(len(queries_QxD), k, keep_max=True)
    first_row = 0
    for shard in tqdm(shards, desc="search", unit=" shards", disable=len(queries_QxD) == 1):
        for start in range(0, len(shard), BLOCK_ROWS):
            block_NxD = np.asarray(shard[start : start + BLOCK_ROWS], np.float32)
            scores_QxK, rows_QxK = faiss.knn(
                queries_QxD, block_NxD, min(k, len(block_NxD)), faiss.METRIC_INNER_PRODUCT
            )
            best.add_result(scores_QxK, rows_QxK + first_row)
            first_row += len(block_NxD)
    best.finalize()
    return best.D, best.I


def write_parquet(folder: Path, out: Path) -> None:
    """Writes ids and vectors as one parquet file, for vector databases.

    Columns `id` (string) and `vector` (a list of float32, all of one length), a row group per
    shard: one shard is held in memory.

    Args:
      folder: of `encode.encode_corpus`.
      out: the file, written whole or not at all.

    Raises:
      UserError: if the folder is not complete, a shard is damaged, or `out` cannot be written.
    """
    manifest = read_manifest(folder, "encode the corpus first, or again until it ends")
    vectors, lines = open_shards(folder, manifest)
    vector = pyarrow.list_(pyarrow.float32(), manifest["dimension"])
    schema = pyarrow.schema([("id", pyarrow.string()), ("vector", vector)])
    with files.new_file(out) as partial, pyarrow.parquet.ParquetWriter(partial, schema) as writer:
        for vectors_NxD, (path, _) in zip(vectors, lines, strict=True):
            ids = _read_ids(path)
            numbers = pyarrow.array(np.asarray(vectors_NxD, np.float32).ravel())
            column = pyarrow.FixedSizeListArray.from_arrays(numbers, type=vector)
            writer.write_table(pyarrow.table([ids, column], schema=schema))


def _read_ids(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            return [parse_passage(line, str(path)).id for line in file]
    except (OSError, UserError) as error:
        raise UserError(f"{path} {_DAMAGED}") from error


def _find_lines(path: Path, n_rows: int) -> Lines:
    ends, line = [0], b""
    try:
        with path.open("rb") as file:
            for line in file:
                ends.append(ends[-1] + len(line))
    except OSError as error:
        raise UserError(f"{path} {_DAMAGED}") from error
    if len(ends) != n_rows + 1 or not line.endswith(b"\n"):
        raise UserError(f"{path} {_DAMAGED}")
    return Lines(path, np.array(ends[:-1], np.int64))
