"""Divides a source among tasks, and finds documents that repeat a text of any task.

The tasks' parts, in order, are the source. Two stages find duplicates, with at most one task's
digests in memory: `hash_task` writes the sorted digests of a task's documents; `find_duplicates`
reads one range of digests from the files of all tasks. Of several documents with the same text the
first in the source is kept, as on one machine, so the output of a task depends on its documents and
those of earlier tasks.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from cocondenser_jax.corpus.records import Document
from cocondenser_jax.corpus.sources import hashed, open_source
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import new_file, write_text

# Takes the number and text of a document; returns whether it repeats an earlier one.
IsRepeated = Callable[[int, str], bool]

_RANGE = 1 << 64  # of the first column, if rows are read by range


def text_digest(text: str) -> bytes:
    """Returns a 16-byte digest of a text."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def remember_texts() -> IsRepeated:
    """Finds texts that repeat an earlier one, by digest."""
    digests: set[bytes] = set()

    def is_repeated(_: int, text: str) -> bool:
        n_before = len(digests)
        digests.add(text_digest(text))
        return len(digests) == n_before

    return is_repeated


def read_task(source: str, task: tuple[int, int]) -> Iterator[Document]:
    """Streams the part of task i of n, from 0: a range of the source's pieces."""
    index, n_tasks = task
    pieces = open_source(source)
    begin, end = (k * len(pieces) // n_tasks for k in (index, index + 1))
    return chain.from_iterable(piece() for piece in pieces[begin:end])


def stage_file(work: Path, stage: str, index: int) -> Path:
    """Returns the file that task `index` of a stage writes."""
    return work / stage / f"{index:05d}.npy"


def documents_of_task(work: Path, index: int) -> str:
    """Returns the SHA-256 of the documents that `hash_task` read."""
    return _hash_file(work, index).read_text()


def _hash_file(work: Path, index: int) -> Path:
    return stage_file(work, "digests", index).with_suffix(".sha256")


def require_unchanged(source: str, sha256: str, expected: str) -> None:
    """Raises a UserError unless documents have the SHA-256 of an earlier reading."""
    if sha256 != expected:
        raise UserError(f"{source} has changed while it was read: run the command again")


def hash_task(source: str, work: Path, task: tuple[int, int]) -> None:
    """Writes the digests of a task's documents, in ascending order: halves, and number."""
    read = hashlib.sha256()
    documents = hashed(read_task(source, task), read)
    digests = b"".join(
        text_digest(document.text) + number.to_bytes(8, "big")
        for number, document in enumerate(documents)
        if document.text.strip()
    )
    rows_Dx3 = np.frombuffer(digests, ">u8").reshape(-1, 3).astype(np.uint64)
    write_text(_hash_file(work, task[0]), read.hexdigest())
    save_rows(stage_file(work, "digests", task[0]), rows_Dx3[np.lexsort(rows_Dx3.T[1::-1])])


def find_duplicates(work: Path, task: tuple[int, int]) -> None:
    """Writes which documents repeat an earlier one: task and number, in ascending order.

    Reads range i of n of the digests of all n tasks.
    """
    index, n_tasks = task
    rows_Dx4 = rows_of_range(map_rows(work, "digests", n_tasks), (index, n_tasks))
    # Stable: documents with the same text stay in the source's order.
    rows_Dx4 = rows_Dx4[np.lexsort(rows_Dx4.T[1::-1])]
    is_duplicate_D = np.zeros(len(rows_Dx4), bool)
    is_duplicate_D[1:] = (rows_Dx4[1:, :2] == rows_Dx4[:-1, :2]).all(axis=1)
    duplicates_Cx2 = rows_Dx4[is_duplicate_D, 2:]
    save_rows(
        stage_file(work, "duplicates", index),
        duplicates_Cx2[np.lexsort(duplicates_Cx2.T[::-1])],
    )


def duplicates_of_task(work: Path, task: tuple[int, int]) -> set[int]:
    """Returns the numbers of a task's documents that repeat an earlier one."""
    index, n_tasks = task
    numbers: set[int] = set()
    for duplicates_Cx2 in map_rows(work, "duplicates", n_tasks):
        borders = np.array([index, index + 1], np.uint64)
        begin, end = np.searchsorted(duplicates_Cx2[:, 0], borders)
        numbers.update(duplicates_Cx2[begin:end, 1].tolist())
    return numbers


def map_rows(work: Path, stage: str, n_tasks: int) -> list[np.ndarray]:
    """Maps the files that all tasks of a stage wrote."""
    paths = [stage_file(work, stage, index) for index in range(n_tasks)]
    return [np.load(path, mmap_mode="r", allow_pickle=False) for path in paths]


def rows_of_range(rows_of_tasks: Sequence[np.ndarray], part: tuple[int, int]) -> np.ndarray:
    """Reads the rows whose first column lies in range i of n of all uint64 values.

    Returns the rows task by task, each with its task before its last column.
    """
    index, n_ranges = part
    borders = [k * _RANGE // n_ranges for k in (index, index + 1)]
    found = []
    for task, rows in enumerate(rows_of_tasks):
        begin, end = (
            np.searchsorted(rows[:, 0], np.uint64(border)) if border < _RANGE else None
            for border in borders
        )
        found.append(np.insert(rows[begin:end], -1, task, axis=1))
    return np.concatenate(found)


def save_rows(path: Path, rows: np.ndarray) -> None:
    """Writes the file of a task of a stage, whole or not at all."""
    with new_file(path) as partial, partial.open("wb") as file:
        np.save(file, rows)
