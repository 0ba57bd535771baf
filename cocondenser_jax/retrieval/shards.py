"""A folder of embeddings: the files of a shard, whether they are whole, and searching them all.

Shard i is `embeddings-<i>.npy` (N x D) beside `passages-<i>.jsonl`, with id, title and text of the
same rows. Vectors are memory-mapped: a folder may be larger than memory. Of n machines that encode
together, machine m writes the shards i, n + i, 2n + i and so on to a folder of its own, see
`paths.shard_folder`; the folder of all of them is read as one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
import pyarrow  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
from tqdm import tqdm

from cocondenser_jax.collection.layouts import Passage, parse_passage
from cocondenser_jax.errors import UserError
from cocondenser_jax.storage.files import new_file, read_object
from cocondenser_jax.storage.paths import require_same, shard_folders

MANIFEST = "manifest.json"
# Settings that may differ, between machines and when a run resumes: checksums are compared.
MOVED = ("model", "corpus")
# Vectors held as float32 while shards are searched or indexed: 200 MB at 768 numbers each.
BLOCK_ROWS = 65_536
_DAMAGED = "is missing or damaged: encode again with the same flags, which renews such shards only"
# What the manifests of embeddings and of an index both hold.
_KINDS = {
    "model": str,
    "model_sha256": str,
    "dimension": int,
    "dtype": str,
    "passages": int,
    "shards": int,
    "shard_size": int,
}


class PassageLines(NamedTuple):
    """A jsonl file of passages, and the byte at which each line starts."""

    path: Path
    offsets: np.ndarray


def shard_files(folder: Path, shard: int) -> tuple[Path, Path]:
    """Returns the files of a shard's vectors and of its passages."""
    return folder / f"embeddings-{shard:05d}.npy", folder / f"passages-{shard:05d}.jsonl"


def save_array(path: Path, array_NxD: np.ndarray) -> None:
    """Writes an .npy file, or fails: `np.save` (NumPy 2.4) does not notice a lost last block."""
    array_NxD = np.ascontiguousarray(array_NxD)
    with path.open("wb") as file:
        header = np.lib.format.header_data_from_array_1_0(array_NxD)
        np.lib.format.write_array_header_1_0(file, header)
        file.write(array_NxD.data)


def map_array(path: Path, shape: tuple[int, ...], dtype: str) -> np.ndarray | None:
    """Maps an .npy file; None unless it is whole and of this shape and type."""
    try:
        # Not `np.load`, which also opens archives.
        array = np.lib.format.open_memmap(path, mode="r")
        whole = array.offset + array.nbytes == path.stat().st_size
        return array if whole and (array.shape, array.dtype) == (shape, dtype) else None
    except Exception:  # NumPy reads the header as Python, and raises whatever that raises
        return None


def read_manifest(folder: Path) -> dict[str, Any]:
    """Reads the manifest of an index, or of embeddings, whose parts on several machines agree."""
    parts = shard_folders(folder)
    manifests = [_read_manifest(part) for part in parts]
    require_same(parts, manifests, [name for name in manifests[0] if name not in MOVED])
    return manifests[0]


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        advice = "encode the corpus first, until it ends, then build the index"
        raise UserError(f"{folder} holds no {MANIFEST}: {advice}")
    manifest = read_object(path)
    for key, kind in _KINDS.items():
        if type(manifest.get(key)) is not kind:
            raise UserError(f"{path}: {key} is {manifest.get(key)!r}, expected {kind.__name__}")
    if replaced_pooling(manifest) not in (None, "cls", "mean"):
        raise UserError(f"{path}: pooling is neither cls nor mean")
    if manifest["dtype"] not in ("float32", "float16"):
        raise UserError(f"{path}: dtype is neither float32 nor float16")
    n_shards = -(-manifest["passages"] // max(1, manifest["shard_size"]))
    if min(manifest["dimension"], n_shards) < 1 or manifest["shards"] != n_shards:
        raise UserError(f"{path}: its numbers contradict each other")
    return manifest


def replaced_pooling(manifest: Mapping[str, Any]) -> str | None:
    """Returns the pooling that replaced the model folder's own; None where it was kept."""
    return None if manifest.get("pooling_from") == "model" else manifest.get("pooling")


def open_shards(
    folder: Path, manifest: Mapping[str, Any], numbers: Sequence[int] | None = None
) -> tuple[list[np.ndarray], list[PassageLines]]:
    """Maps the vectors of shards (N x D each), and finds the lines of the same rows.

    None stands for the numbers of all shards.
    """
    parts = shard_folders(folder)
    vectors, lines = [], []
    for shard in range(manifest["shards"]) if numbers is None else numbers:
        n_rows = min(manifest["shard_size"], manifest["passages"] - shard * manifest["shard_size"])
        vectors_file, passages_file = shard_files(parts[shard % len(parts)], shard)
        vectors_NxD = map_array(vectors_file, (n_rows, manifest["dimension"]), manifest["dtype"])
        if vectors_NxD is None:
            raise UserError(f"{vectors_file} {_DAMAGED}")
        vectors.append(vectors_NxD)
        lines.append(_find_lines(passages_file, n_rows))
    return vectors, lines


def read_rows(lines: Sequence[PassageLines], rows: Iterable[int]) -> Iterator[tuple[int, Passage]]:
    """Yields each row, counted through all files, once, in increasing order, with its passage."""
    wanted = np.unique(np.fromiter(rows, np.int64))
    first_row = 0
    for path, offsets in lines:
        begin, end = np.searchsorted(wanted, (first_row, first_row + len(offsets)))
        try:
            if begin < end:
                with path.open("rb") as file:
                    for row in wanted[begin:end].tolist():
                        file.seek(int(offsets[row - first_row]))
                        yield row, parse_passage(file.readline(), str(path))
        except (OSError, UserError) as error:
            raise UserError(f"{path} is missing or damaged: expected a passage a line") from error
        first_row += len(offsets)


def nearest(
    shards: Sequence[np.ndarray], queries_QxD: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the vectors with the largest inner products, exactly, one block after another.

    Args:
      shards: vectors, N x D each.
      queries_QxD: float32.
      k: neighbours per query, at most as many as there are passages.

    Returns:
      `scores_QxK`, decreasing, and `rows_QxK`, counted through all shards. Where several tie for
      the last place, any of them may be there.
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


def write_parquet(folder: Path, out: Path, numbers: Sequence[int] | None = None) -> None:
    """Writes ids and vectors as one parquet file, for vector databases, whole or not at all.

    The shards are those of `open_shards`, each a row group: one shard is held in memory. Columns
    `id` (string) and `vector` (a list of float32, all of one length).
    """
    manifest = read_manifest(folder)
    vector = pyarrow.list_(pyarrow.float32(), manifest["dimension"])
    schema = pyarrow.schema([("id", pyarrow.string()), ("vector", vector)])
    with (
        new_file(out) as partial,
        partial.open("wb") as file,
        pyarrow.parquet.ParquetWriter(file, schema) as writer,
    ):
        for vectors_NxD, lines in zip(*open_shards(folder, manifest, numbers), strict=True):
            ids = [passage.id for _, passage in read_rows([lines], range(len(vectors_NxD)))]
            numbers = pyarrow.array(np.asarray(vectors_NxD, np.float32).ravel())
            column = pyarrow.FixedSizeListArray.from_arrays(numbers, type=vector)
            writer.write_table(pyarrow.table([ids, column], schema=schema))


def _find_lines(path: Path, n_rows: int) -> PassageLines:
    try:
        content = np.fromfile(path, np.uint8)
    except OSError as error:
        raise UserError(f"{path} {_DAMAGED}") from error
    ends = np.flatnonzero(content == ord("\n")) + 1
    if len(ends) != n_rows or ends[-1] != len(content):
        raise UserError(f"{path} {_DAMAGED}")
    return PassageLines(path, np.append(0, ends[:-1]))
