"""Texts by id in an SQLite file, so that only looked-up texts are in memory.

A collection of 21 million passages takes 15 GiB as a dict, in each process.
"""

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from cocondenser_jax.errors import UserError


def write_texts(path: Path, texts: Iterable[tuple[str, str]]) -> None:
    """Writes ids and texts for `StoredTexts`; if killed, it leaves an unusable file."""
    rows = ((place, name, text) for place, (name, text) in enumerate(texts))
    try:
        with closing(sqlite3.connect(path)) as database:
            database.execute("pragma journal_mode = off")
            database.execute("pragma synchronous = off")
            database.execute("create table texts (place integer primary key, id text, text text)")
            database.executemany("insert into texts values (?, ?, ?)", rows)
            database.execute("create unique index by_id on texts (id)")
            database.commit()
    except sqlite3.Error as error:
        raise UserError(f"cannot write {path}: {error}") from error


class StoredTexts(Mapping[str, str]):
    """Id → text, from a file of `write_texts`; each process opens its own connection."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened: tuple[int, sqlite3.Connection] | None = None
        (self._n_rows,) = self._row("select count(*) from texts")

    def __reduce__(self) -> tuple[type["StoredTexts"], tuple[Path]]:
        return type(self), (self.path,)

    def __len__(self) -> int:
        return int(self._n_rows)

    def __iter__(self) -> Iterator[str]:
        return (name for (name,) in self._rows("select id from texts order by place"))

    def __getitem__(self, name: str) -> str:
        found = self._row("select text from texts where id = ?", name)
        if found is None:
            raise KeyError(name)
        return str(found[0])

    def __contains__(self, name: object) -> bool:
        row = self._row("select 1 from texts where id = ?", name)
        return isinstance(name, str) and row is not None

    def texts(self) -> Iterator[tuple[str, str]]:
        """Yields all ids and texts in one pass over the file."""
        return iter(self._rows("select id, text from texts order by place"))

    def missing(self, names: Sequence[str]) -> list[str]:
        """Returns the ids that the file does not contain."""
        statement = "select id from texts where id in (select value from json_each(?))"
        known = {name for (name,) in self._rows(statement, json.dumps(names))}
        return [name for name in names if name not in known]

    def ids(self, places: Iterable[int]) -> list[str]:
        """Returns the ids at the given places, from 0, in the order of the file."""
        statement = "select id from texts where place in (select value from json_each(?))"
        return [name for (name,) in self._rows(statement, json.dumps([*places]))]

    def _rows(self, statement: str, *values: object) -> sqlite3.Cursor:
        if self._opened is None or self._opened[0] != os.getpid():
            place = f"{self.path.absolute().as_uri()}?immutable=1"
            opened = sqlite3.connect(place, uri=True, check_same_thread=False)
            self._opened = os.getpid(), opened
        return self._opened[1].execute(statement, values)

    def _row(self, statement: str, *values: object) -> Any:
        """Returns the first row of a statement's result; None if it is empty."""
        return self._rows(statement, *values).fetchone()
