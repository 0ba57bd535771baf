"""Cuts a source into shares for several workers, and finds copies of documents across all shares.

The shares, one after the other, are the source. Two stages find copies, neither with more in
memory than one share's digests: `hash_share` writes the digests of a share, in order; `find_copies`
reads one range of digests from the files of all shares. Of several copies the first in the source
stays, as on one machine.
"""

import hashlib
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

import numpy as np

from cocondenser_jax.corpus.sources import Document, open_source
from cocondenser_jax.storage.files import new_file

_DIGEST_RANGE = 1 << 64  # of the first half of a digest


def text_digest(text: str) -> bytes:
    """Returns 16 bytes that stand for a text."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def read_share(source: str, n_documents: int | None, task: tuple[int, int]) -> Iterator[Document]:
    """Streams share i of n of a source.

    Args:
      source: see `sources.open_source`.
      n_documents: how many documents the source has, of which a share takes a range and skips
        those before; None: a share takes a range of the source's parts, and reads nothing else.
      task: (i, n), from 0.
    """
    index, n_shares = task
    parts = open_source(source)
    n_items = len(parts) if n_documents is None else n_documents
    begin = index * n_items // n_shares
    end = (index + 1) * n_items // n_shares
    if n_documents is None:
        return chain.from_iterable(part() for part in parts[begin:end])
    return islice(chain.from_iterable(part() for part in parts), begin, end)


def part_file(work: Path, stage: str, index: int) -> Path:
    """Returns the file of a stage: the "digests" of a share, or the "copies" in a range of them."""
    return work / stage / f"{index:05d}.npy"


def hash_share(source: str, n_documents: int | None, work: Path, task: tuple[int, int]) -> None:
    """Writes the digests of a share, in ascending order: halves, and number in the share."""
    documents = read_share(source, n_documents, task)
    digests = b"".join(
        text_digest(document.text) + number.to_bytes(8, "big")
        for number, document in enumerate(documents)
        if document.text.strip()
    )
    rows_Dx3 = np.frombuffer(digests, ">u8").reshape(-1, 3).astype(np.uint64)
    _save(part_file(work, "digests", task[0]), rows_Dx3[np.lexsort(rows_Dx3.T[1::-1])])


def find_copies(work: Path, task: tuple[int, int]) -> None:
    """Writes which documents repeat one before: share and number, in ascending order.

    Reads range i of n of the digests of all n shares.
    """
    index, n_ranges = task
    own = [
        np.insert(
            _rows_of_range(part_file(work, "digests", share), index, n_ranges), 2, share, axis=1
        )
        for share in range(n_ranges)
    ]
    rows_Dx4 = np.concatenate(own)
    rows_Dx4 = rows_Dx4[np.lexsort(rows_Dx4.T[1::-1])]  # stable: copies stay in the source's order
    is_copy_D = np.zeros(len(rows_Dx4), bool)
    is_copy_D[1:] = (rows_Dx4[1:, :2] == rows_Dx4[:-1, :2]).all(axis=1)
    copies_Cx2 = rows_Dx4[is_copy_D, 2:]
    _save(part_file(work, "copies", index), copies_Cx2[np.lexsort(copies_Cx2.T[::-1])])


def copies_in_share(work: Path, task: tuple[int, int]) -> set[int]:
    """Returns the numbers of a share's documents that repeat one before."""
    index, n_ranges = task
    numbers: set[int] = set()
    for each in range(n_ranges):
        copies_Cx2 = np.load(part_file(work, "copies", each), mmap_mode="r", allow_pickle=False)
        begin, end = np.searchsorted(copies_Cx2[:, 0], np.array([index, index + 1], np.uint64))
        numbers.update(copies_Cx2[begin:end, 1].tolist())
    return numbers


def _rows_of_range(path: Path, index: int, n_ranges: int) -> np.ndarray:
    """Reads the rows of a share whose digests lie in range i of n."""
    rows_Dx3 = np.load(path, mmap_mode="r", allow_pickle=False)
    borders = [k * _DIGEST_RANGE // n_ranges for k in (index, index + 1)]
    begin, end = (
        np.searchsorted(rows_Dx3[:, 0], np.uint64(border)) if border < _DIGEST_RANGE else None
        for border in borders
    )
    return rows_Dx3[begin:end]


def _save(path: Path, rows: np.ndarray) -> None:
    with new_file(path) as partial, partial.open("wb") as file:
        np.save(file, rows)
