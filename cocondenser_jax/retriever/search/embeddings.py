"""Writes and memory-maps the shards of a folder of embeddings.

Shard k is `embeddings-<k>.arrow`, an Arrow file with the columns `id`, `title`, `text` and
`vector`. Quantized vectors (see `quantized.py`) have a column `code` instead, so that no database
multiplies codes. Folders may be larger than memory. Task i of n writes the shards i, n + i, 2n + i
and so on to its own `runs.task_folder`; all are read as one folder.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pyarrow  # type: ignore[import-untyped]
import pyarrow.compute  # type: ignore[import-untyped]
import pyarrow.ipc  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.runs import require_same, task_folders
from cocondenser_jax.files.whole import new_file, read_object
from cocondenser_jax.representation import Representation, from_json, to_json
from cocondenser_jax.retriever.data.folder import passage_text
from cocondenser_jax.retriever.data.layouts import Passage
from cocondenser_jax.retriever.search.quantized import (
    BINARY,
    INT8,
    QUANTIZED,
    BitVectors,
    Int8Vectors,
    Vectors,
)

MANIFEST = "manifest.json"
Dtype = Literal["float32", "float16", "int8", "binary"]
Products = Literal["float32", "bfloat16"]  # the number format of matrix multiplications
# Fields that may differ between machines and when a run resumes. The first two have checksums.
FREE_FIELDS = ("model", "corpus", "batch_size")
_VECTOR = "vector"
_CODE = "code"
_RANGES = b"ranges"  # metadata of an int8 shard
# 64-bit offsets, since a shard's texts may exceed 2 GB.
PASSAGES = pyarrow.schema([(name, pyarrow.large_string()) for name in Passage._fields])


class Manifest(NamedTuple):
    """The contents of `manifest.json` of embeddings or of an index."""

    model: str  # the folder or name on the Hub, as given
    model_sha256: str
    representation: Representation  # of passages and queries
    max_length: int | None  # maximum tokens of a passage; None: no limit
    precision: Products
    backend: Literal["torch", "jax"]
    batch_size: int
    dimension: int
    dtype: Dtype  # of the vectors on disk
    corpus: str
    corpus_sha256: str
    passages: int
    shard_size: int  # passages in a shard
    factory: str | None = None  # faiss's string for an index; None for embeddings
    index_sha256: str | None = None  # of an index's file

    @property
    def n_shards(self) -> int:
        """The number of shards of all tasks."""
        return math.ceil(self.passages / self.shard_size)

    @property
    def is_index(self) -> bool:
        """Whether the folder contains an index, not embeddings."""
        return self.index_sha256 is not None

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values by name; those of an index only for an index."""
        fields = self._asdict() | {"representation": to_json(self.representation)}
        if not self.is_index:
            del fields["factory"], fields["index_sha256"]
        return fields


def shard_file(folder: Path, number: int) -> Path:
    """Returns the path of a shard."""
    return folder / f"embeddings-{number:05d}.arrow"


def shard_rows(manifest: Manifest, number: int) -> int:
    """Returns the number of rows of a shard; all shards except the last have the same."""
    return min(manifest.shard_size, manifest.passages - number * manifest.shard_size)


def passage_table(passages: Iterable[Passage]) -> pyarrow.Table:
    """Returns a table of passages with the columns `id`, `title` and `text`."""
    return pyarrow.table(list(zip(*passages, strict=True)), schema=PASSAGES)


def passage_at(table: pyarrow.Table, row: int) -> Passage:
    """Reads the passage of a row."""
    return Passage(*(table[name][row].as_py() for name in PASSAGES.names))


def rows_of(ids: pyarrow.ChunkedArray, names: Sequence[str]) -> list[int | None]:
    """Returns the row of each id in `names`; None for an unknown id."""
    places_N = pyarrow.compute.index_in(ids, value_set=pyarrow.array(names, ids.type))
    rows = np.flatnonzero(places_N.is_valid().to_numpy())
    row_of = dict(zip(places_N.drop_null().to_pylist(), rows.tolist(), strict=True))
    return [row_of.get(i) for i in range(len(names))]


def texts_of(table: pyarrow.Table, names: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yields the id and text (see `passage_text`) of each named passage in a table."""
    for row in rows_of(table["id"], [*names]):
        if row is not None:
            passage = passage_at(table, row)
            yield passage.id, passage_text(passage)


def write_table(path: Path, table: pyarrow.Table) -> None:
    """Writes an Arrow file."""
    with path.open("wb") as file, pyarrow.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def write_shard(
    path: Path,
    passages: pyarrow.Table,
    vectors_NxD: np.ndarray,
    ranges_2xD: np.ndarray | None,
) -> None:
    """Writes a shard's passages and vectors atomically.

    Ranges of int8 vectors (see `quantized.quantize`) become metadata of the file.
    """
    numbers = pyarrow.array(vectors_NxD.ravel())
    vectors = pyarrow.FixedSizeListArray.from_arrays(numbers, vectors_NxD.shape[1])
    table = passages.append_column(_VECTOR if vectors_NxD.dtype.kind == "f" else _CODE, vectors)
    if ranges_2xD is not None:
        table = table.replace_schema_metadata({_RANGES: ranges_2xD.astype("<f4").tobytes()})
    with new_file(path) as partial:
        write_table(partial, table)


def map_shard(folder: Path, manifest: Manifest, number: int) -> pyarrow.Table | None:
    """Maps a shard; None unless its file is complete and matches the manifest."""
    is_bits = manifest.dtype == BINARY
    stored = "uint8" if is_bits else manifest.dtype
    size = manifest.dimension // 8 if is_bits else manifest.dimension
    vector = pyarrow.list_(pyarrow.from_numpy_dtype(stored), size)
    name = _CODE if manifest.dtype in QUANTIZED else _VECTOR
    schema = PASSAGES.append(pyarrow.field(name, vector))
    table = map_table(shard_file(folder, number), schema, shard_rows(manifest, number))
    if table is not None and manifest.dtype == INT8 and len(_ranges(table)) != 2 * 4 * size:
        return None
    return table


def _ranges(table: pyarrow.Table) -> bytes:
    """Returns the ranges of all shards of a table, concatenated, as float32."""
    return (table.schema.metadata or {}).get(_RANGES, b"")


def map_table(path: Path, schema: pyarrow.Schema, n_rows: int) -> pyarrow.Table | None:
    """Maps an Arrow file; None unless it is complete, with these columns and rows."""
    try:
        # Closed immediately, to save file descriptors in large folders; the mapping stays.
        with pyarrow.memory_map(str(path)) as file:
            table = pyarrow.ipc.open_file(file).read_all()
        table.validate(full=True)  # checks the offsets and UTF-8 of all strings
    except (OSError, pyarrow.ArrowException):
        return None
    has_nulls = any(column.null_count for column in table.columns)
    whole = table.schema.equals(schema) and len(table) == n_rows and not has_nulls
    return table if whole else None


def open_shards(folder: Path, manifest: Manifest) -> pyarrow.Table:
    """Maps all shards in the folders of all tasks as one table."""
    folders = task_folders(folder)
    tables = []
    for number in range(manifest.n_shards):
        own = folders[number % len(folders)]
        table = map_shard(own, manifest, number)
        if table is None:
            raise UserError(
                f"{shard_file(own, number)} is missing or damaged: encode again with the same "
                "flags, which renews such shards only"
            )
        tables.append(table)
    joined = pyarrow.concat_tables(tables)
    return joined.replace_schema_metadata({_RANGES: b"".join(map(_ranges, tables))})


def write_parquet(folder: Path, out: Path) -> None:
    """Writes all shards to one Parquet file atomically, with a row group for each."""
    table = open_shards(folder, read_manifest(folder)).replace_schema_metadata()
    with (
        new_file(out) as partial,
        pyarrow.parquet.ParquetWriter(partial, table.schema) as writer,
    ):
        for batch in table.to_batches():
            writer.write_batch(batch)


def shard_vectors(table: pyarrow.Table) -> list[Vectors]:
    """Returns the vectors of each shard, N x D, as mapped or as decoders of their codes."""
    column = table[_CODE if _CODE in table.column_names else _VECTOR]
    size = column.type.list_size
    stored = [chunk.flatten().to_numpy().reshape(-1, size) for chunk in column.chunks]
    kind = column.type.value_type
    if kind == pyarrow.uint8():
        return [BitVectors(bits_NxB) for bits_NxB in stored]
    if kind == pyarrow.int8():
        ranges = np.frombuffer(_ranges(table), "<f4").reshape(len(stored), 2, size)
        return [Int8Vectors(*each) for each in zip(stored, ranges, strict=True)]
    return list(stored)


def read_manifest(folder: Path) -> Manifest:
    """Reads the manifest of an index or of embeddings; manifests of several tasks must agree."""
    folders = task_folders(folder)
    manifests = [_read_manifest(each) for each in folders]
    names = [name for name in Manifest._fields if name not in FREE_FIELDS]
    require_same(folders, [manifest.to_json() for manifest in manifests], names)
    return manifests[0]


def _read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    if not path.is_file():
        advice = "encode the corpus first, until it ends, then build the index"
        raise UserError(f"{folder} holds no {MANIFEST}: {advice}")
    wrong = UserError(f"{path} is not what cocondenser encode writes: encode the corpus again")
    try:
        fields = read_object(path)
        manifest = Manifest(**fields)
        manifest = manifest._replace(representation=from_json(fields["representation"]))
    except (TypeError, ValueError):  # a field is missing, or unknown
        raise wrong from None
    sizes = (manifest.dimension, manifest.passages, manifest.shard_size)
    if not (
        all(type(size) is int and 0 < size < 1 << 31 for size in sizes)
        and manifest.dtype in get_args(Dtype)
    ):
        raise wrong
    return manifest
