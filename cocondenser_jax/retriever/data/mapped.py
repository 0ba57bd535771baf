"""Passages and pools of negatives that are mapped from disk: memory holds what is looked up.

A collection of 21 million passages takes 15 GiB as a dict, in each process. Here its texts lie in
an Arrow file that all processes map, beside a table from the digests of ids to rows.
"""

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow  # type: ignore[import-untyped]
import pyarrow.ipc  # type: ignore[import-untyped]

from cocondenser_jax.retriever.data.layouts import Passage

_PASSAGES = pyarrow.schema([("id", pyarrow.large_string()), ("text", pyarrow.large_string())])
_POOL = pyarrow.schema([("query", pyarrow.string()), ("rows", pyarrow.list_(pyarrow.uint32()))])
_ROWS_AT_ONCE = 10_000  # that are written together


class Names(Protocol):
    """Ids of passages, by their place: a list, or what reads them one by one."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> str: ...

    def __iter__(self) -> Iterator[str]: ...


def write_passages(
    folder: Path, passages: Iterable[Passage], to_text: Callable[[Passage], str]
) -> None:
    """Writes passages into a folder, for `MappedPassages`; `to_text` makes the texts."""
    digests = array("Q")

    def rows() -> Iterator[tuple[str, str]]:
        for passage in passages:
            digests.append(_digest(passage.id))
            yield passage.id, to_text(passage)

    _write(folder / "passages.arrow", _PASSAGES, rows())
    digests_N = np.frombuffer(digests, np.uint64)
    order_N = np.argsort(digests_N, kind="stable")
    np.save(folder / "digests.npy", digests_N[order_N])
    np.save(folder / "rows.npy", order_N.astype(np.uint32))


class MappedPassages(Mapping[str, str]):
    """Id → text, of a folder that `write_passages` wrote."""

    def __init__(self, folder: Path) -> None:
        table = _map(folder / "passages.arrow")
        self.folder = folder
        self._ids = table["id"]
        self._texts = table["text"]
        self._digests_N = _map_array(folder / "digests.npy")  # ascending
        self._rows_N = _map_array(folder / "rows.npy")

    def __reduce__(self) -> tuple[type["MappedPassages"], tuple[Path]]:
        return type(self), (self.folder,)  # another process maps the same files

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[str]:
        for chunk in self._ids.chunks:
            yield from chunk.to_pylist()

    def __getitem__(self, name: str) -> str:
        row = self.rows([name])[0]
        if row < 0:
            raise KeyError(name)
        text: str = self._texts[int(row)].as_py()
        return text

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and bool(self.rows([name])[0] >= 0)

    def rows(self, names: Sequence[str]) -> np.ndarray:
        """Returns the row of each id, int64; -1 where there is none."""
        digests_K = np.fromiter(map(_digest, names), np.uint64, len(names))
        places_K = np.searchsorted(self._digests_N, digests_K)
        rows_K = np.full(len(names), -1)
        for i, (name, place) in enumerate(zip(names, places_K.tolist(), strict=True)):
            # Two ids may have one digest, though hardly ever do.
            while place < len(self) and self._digests_N[place] == digests_K[i]:
                row = int(self._rows_N[place])
                if self._ids[row].as_py() == name:
                    rows_K[i] = row
                    break
                place += 1
        return rows_K

    def names(self, rows: Sequence[int] | np.ndarray) -> Names:
        """Returns the ids of rows."""
        return _Names(self._ids, rows)


class _Names:
    def __init__(self, ids: pyarrow.ChunkedArray, rows: Sequence[int] | np.ndarray) -> None:
        self._ids = ids
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: int) -> str:
        name: str = self._ids[int(self._rows[place])].as_py()
        return name

    def __iter__(self) -> Iterator[str]:
        return (self[place] for place in range(len(self)))


def write_pool(folder: Path, rows_of: Iterable[tuple[str, np.ndarray]]) -> None:
    """Writes the rows of each query's negatives into a folder, for `MappedPool`."""
    _write(folder / "pool.arrow", _POOL, rows_of)


class MappedPool(Mapping[str, Names]):
    """Query id → ids of the passages to draw its negatives from, of a folder of `write_pool`.

    A query without any has all passages.
    """

    def __init__(self, folder: Path, passages: MappedPassages) -> None:
        table = _map(folder / "pool.arrow")
        self._folder = folder
        self._passages = passages
        self._rows = table["rows"]
        self._places = {query: i for i, query in enumerate(table["query"].to_pylist())}

    def __reduce__(self) -> tuple[type["MappedPool"], tuple[Path, MappedPassages]]:
        return type(self), (self._folder, self._passages)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __getitem__(self, query: str) -> Names:
        rows: Sequence[int] | np.ndarray = self._rows[self._places[query]].values.to_numpy()
        return self._passages.names(rows if len(rows) else range(len(self._passages)))


def _digest(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def _write(path: Path, schema: pyarrow.Schema, rows: Iterable[tuple[object, ...]]) -> None:
    """Writes an Arrow file, some rows at a time."""
    rows = iter(rows)
    with path.open("wb") as file, pyarrow.ipc.new_file(file, schema) as writer:
        while block := list(islice(rows, _ROWS_AT_ONCE)):
            columns = [
                pyarrow.array(column, kind)
                for column, kind in zip(zip(*block, strict=True), schema.types, strict=True)
            ]
            writer.write_batch(pyarrow.record_batch(columns, schema=schema))


def _map(path: Path) -> pyarrow.Table:
    with pyarrow.memory_map(str(path)) as file:  # closed at once: the map stays
        return pyarrow.ipc.open_file(file).read_all()


def _map_array(path: Path) -> np.ndarray:
    array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    return array
