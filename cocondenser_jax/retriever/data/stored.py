"""Passages and pools of negatives in files of SQLite: memory holds what is looked up.

A collection of 21 million passages takes 15 GiB as a dict, in each process.
"""

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.data.layouts import Passage


class Names(Protocol):
    """Ids of passages, by their place: a list, or what reads them one by one."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> str: ...

    def __iter__(self) -> Iterator[str]: ...


class PooledRows(NamedTuple):
    """The passages that a query's negatives are drawn from, by their rows."""

    query: str
    rows_K: np.ndarray  # none: all but the next
    others_R: np.ndarray  # that are never drawn


def write_passages(
    path: Path, passages: Iterable[Passage], to_text: Callable[[Passage], str]
) -> None:
    """Writes passages into a file, for `StoredPassages`; `to_text` makes the texts."""
    rows = ((row, each.id, to_text(each)) for row, each in enumerate(passages))
    _write(path, "passages", ["text text"], rows)


def write_pool(path: Path, pools: Iterable[PooledRows]) -> None:
    """Writes the rows of each query's negatives into a file, for `StoredPool`."""
    rows = (
        (place, query, _to_blob(rows_K), _to_blob(others_R[: 0 if len(rows_K) else None]))
        for place, (query, rows_K, others_R) in enumerate(pools)
    )
    _write(path, "pools", ["rows blob", "others blob"], rows)


def _to_blob(rows_R: np.ndarray) -> bytes:
    return rows_R.astype("<u4").tobytes()


def _write(path: Path, table: str, further: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> None:
    """Writes a table and an index of its ids; what kills it leaves a file that is of no use.

    `rows` have a place, an id and `further` columns.
    """
    columns = ["place integer primary key", "id text", *further]
    marks = ", ".join("?" for _ in columns)
    try:
        with closing(sqlite3.connect(path)) as database:
            database.execute("pragma journal_mode = off")
            database.execute("pragma synchronous = off")
            database.execute(f"create table {table} ({', '.join(columns)})")
            database.executemany(f"insert into {table} values ({marks})", rows)
            database.execute(f"create unique index by_id on {table} (id)")
            database.commit()
    except sqlite3.Error as error:
        raise UserError(f"cannot write {path}: {error}") from error


class _Table:
    """A table that another process, or one that was forked, opens for itself."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        self._opened: tuple[int, sqlite3.Connection] | None = None
        (self.n_rows,) = self.row(f"select count(*) from {name}")

    def __reduce__(self) -> tuple[type["_Table"], tuple[Path, str]]:
        return type(self), (self.path, self.name)

    def rows(self, statement: str, *values: object) -> sqlite3.Cursor:
        """Runs a statement."""
        if self._opened is None or self._opened[0] != os.getpid():
            place = f"{self.path.absolute().as_uri()}?immutable=1"
            opened = sqlite3.connect(place, uri=True, check_same_thread=False)
            self._opened = os.getpid(), opened
        return self._opened[1].execute(statement, values)

    def row(self, statement: str, *values: object) -> Any:
        """Returns the first row that a statement finds; None if there is none."""
        return self.rows(statement, *values).fetchone()


class StoredPassages(Mapping[str, str]):
    """Id → text, of a file that `write_passages` wrote."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._table = _Table(path, "passages")

    def __len__(self) -> int:
        return int(self._table.n_rows)

    def __iter__(self) -> Iterator[str]:
        return (name for (name,) in self._table.rows("select id from passages order by place"))

    def __getitem__(self, name: str) -> str:
        found = self._table.row("select text from passages where id = ?", name)
        if found is None:
            raise KeyError(name)
        return str(found[0])

    def __contains__(self, name: object) -> bool:
        row = self._table.row("select 1 from passages where id = ?", name)
        return isinstance(name, str) and row is not None

    def texts(self) -> Iterator[tuple[str, str]]:
        """Yields all ids with their texts, in one reading of the file."""
        return iter(self._table.rows("select id, text from passages order by place"))

    def rows(self, names: Sequence[str]) -> np.ndarray:
        """Returns the row of each id, int64; -1 where there is none."""
        statement = "select id, place from passages where id in (select value from json_each(?))"
        places = dict(self._table.rows(statement, json.dumps(names)))
        return np.array([places.get(name, -1) for name in names], np.int64)

    def names(self, rows: Sequence[int] | np.ndarray) -> Names:
        """Returns the ids of rows."""
        return _Names(self._table, rows)


class _Names:
    def __init__(self, table: _Table, rows: Sequence[int] | np.ndarray) -> None:
        self._table = table
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: int) -> str:
        row = int(self._rows[place])
        return str(self._table.row("select id from passages where place = ?", row)[0])

    def __iter__(self) -> Iterator[str]:
        return (self[place] for place in range(len(self)))


class StoredPool(Mapping[str, Names]):
    """Query id → ids of the passages to draw its negatives from, of a file of `write_pool`.

    A query without any has all passages but those that are never drawn.
    """

    def __init__(self, path: Path, passages: StoredPassages) -> None:
        self._passages = passages
        self._table = _Table(path, "pools")

    def __len__(self) -> int:
        return int(self._table.n_rows)

    def __iter__(self) -> Iterator[str]:
        return (query for (query,) in self._table.rows("select id from pools order by place"))

    def __getitem__(self, query: str) -> Names:
        found = self._table.row("select rows, others from pools where id = ?", query)
        if found is None:
            raise KeyError(query)
        rows, others = (np.frombuffer(blob, "<u4") for blob in found)
        return self._passages.names(rows if len(rows) else _AllBut(len(self._passages), others))


class _AllBut(Sequence[int]):
    """The numbers below n without some of them."""

    def __init__(self, n: int, others: np.ndarray) -> None:
        self._others = np.unique(others).astype(np.int64)
        self._n = n - len(self._others)
        # How many numbers that are not left out come before each of the others.
        self._before = self._others - np.arange(len(self._others))

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, place: Any) -> Any:
        return place + int(np.searchsorted(self._before, place, side="right"))
