"""Finds documents that are nearly the same as an earlier one, across all tasks.

A document is a near-duplicate if its similarity to an earlier document that is kept, estimated as
`minhash.py` says, is at least 0.8. Three stages follow those of `tasks.py`: `sign_task` signs a
task's documents, `find_candidates` reads one range of buckets from the files of all tasks, and
`find_near_duplicates`, a single task, compares the documents that share a bucket, in the order of
the source. So what happens to a document depends on itself and those before it, and on nothing
else, as with exact duplicates. A document that resembles only one that is dropped is kept: of a
chain of documents, each a little different from the one before, more than the first stays.
"""

import functools
import hashlib
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
from tqdm import tqdm

from cocondenser_jax.corpus.minhash import (
    N_BANDS,
    N_HASHES,
    bucket_keys,
    count_agreeing,
    short_signatures,
    sign,
)
from cocondenser_jax.corpus.records import batches
from cocondenser_jax.corpus.sources import hashed
from cocondenser_jax.corpus.tasks import (
    documents_of_task,
    duplicates_of_task,
    map_rows,
    map_task,
    read_task,
    require_unchanged,
    rows_of_range,
    save_rows,
    stage_file,
)
from cocondenser_jax.errors import escape_control
from cocondenser_jax.files.whole import write_text

MIN_SIMILARITY = 0.8
MOST_KEPT = 1_000  # documents of a bucket that a later one is compared with: bounds the time
_RANGES = 16  # in which a task reads its buckets, one after the other: bounds the memory


def sign_task(source: str, n_documents: int | None, work: Path, task: tuple[int, int]) -> None:
    """Writes the signatures, buckets and names of a task's documents.

    Args:
      source: see `tasks.read_task`.
      n_documents: see `tasks.read_task`.
      work: has what `tasks.find_duplicates` wrote; exact duplicates are in no bucket.
      task: see `tasks.read_task`.
    """
    index = task[0]
    duplicates = duplicates_of_task(work, task)
    read = hashlib.sha256()
    documents = hashed(read_task(source, n_documents, task), read)
    documents = tqdm(documents, "signatures", unit=" documents", leave=False, delay=1)
    names: list[bytes] = []
    signatures = [np.zeros((0, N_HASHES), np.uint8)]
    signed = [np.zeros(0, np.uint64)]
    keys = [np.zeros((0, N_BANDS), np.uint64)]
    for batch in batches(documents):
        numbers = range(len(names), len(names) + len(batch))
        texts = [
            "" if number in duplicates else document.text
            for number, document in zip(numbers, batch, strict=True)
        ]
        places_D, minima_DxH = sign(texts)
        signatures.append(np.zeros((len(batch), N_HASHES), np.uint8))
        signatures[-1][places_D] = short_signatures(minima_DxH)
        signed.append((len(names) + places_D).astype(np.uint64))
        keys.append(bucket_keys(minima_DxH))
        names += [document.id.encode() for document in batch]
    require_unchanged(source, read.hexdigest(), documents_of_task(work, index))
    save_rows(stage_file(work, "buckets", index), _sorted_buckets(keys, signed))
    save_rows(stage_file(work, "names", index), np.frombuffer(b"".join(names), np.uint8))
    save_rows(stage_file(work, "name_ends", index), np.cumsum([0, *map(len, names)]))
    save_rows(stage_file(work, "signatures", index), np.concatenate(signatures))


def _sorted_buckets(keys: Sequence[np.ndarray], signed: Sequence[np.ndarray]) -> np.ndarray:
    """Returns [R, 2]: the key of a bucket and the number of a document in it, by key.

    Args:
      keys: arrays [D, B].
      signed: arrays [D], the numbers of their documents.
    """
    keys_R = np.concatenate(keys).ravel()
    order_R = np.argsort(keys_R)
    return np.stack([keys_R[order_R], np.concatenate(signed)[order_R // N_BANDS]], axis=1)


def find_candidates(work: Path, task: tuple[int, int]) -> None:
    """Writes which documents share a bucket with another: its key, task and number.

    Reads range i of n of the buckets of all n tasks.
    """
    index, n_tasks = task
    buckets = map_rows(work, "buckets", n_tasks)
    shared = []
    for part in range(index * _RANGES, (index + 1) * _RANGES):
        rows_Rx3 = rows_of_range(buckets, (part, n_tasks * _RANGES))
        rows_Rx3 = rows_Rx3[np.argsort(rows_Rx3[:, 0])]
        is_as_next = rows_Rx3[1:, 0] == rows_Rx3[:-1, 0]
        is_shared_R = np.zeros(len(rows_Rx3), bool)
        is_shared_R[1:] |= is_as_next
        is_shared_R[:-1] |= is_as_next
        shared.append(rows_Rx3[is_shared_R])
    save_rows(stage_file(work, "candidates", index), np.concatenate(shared))


def find_near_duplicates(work: Path, n_tasks: int, task: tuple[int, int]) -> None:
    """Writes which documents of all tasks are near-duplicates, in ascending order.

    A row is the task and number of the document, of the most similar one that is kept (the first
    of those equally similar), and their similarity in hash functions of `N_HASHES`.

    Args:
      work: has what `find_candidates` wrote.
      n_tasks: of the other stages.
      task: (0, 1): this is the only task of its stage.
    """
    rows_Rx3 = np.concatenate(map_rows(work, "candidates", n_tasks))
    rows_Rx3 = rows_Rx3[np.lexsort(rows_Rx3.T[:0:-1])]
    is_first_R = np.ones(len(rows_Rx3), bool)
    is_first_R[1:] = (rows_Rx3[1:, 1:] != rows_Rx3[:-1, 1:]).any(axis=1)
    documents_Dx2 = rows_Rx3[is_first_R, 1:].astype(np.int64)
    signatures_DxH = _read_signatures(work, n_tasks, documents_Dx2)
    ends_D = [*np.flatnonzero(is_first_R)[1:], len(rows_Rx3)]

    kept_of_bucket: defaultdict[int, list[int]] = defaultdict(list)
    near = []
    begin = 0
    for document, end in enumerate(tqdm(ends_D, "near-duplicates", delay=1)):
        buckets = [kept_of_bucket[key] for key in rows_Rx3[begin:end, 0].tolist()]
        begin = end
        if others := sorted({*chain.from_iterable(buckets)}):
            agreeing = count_agreeing(signatures_DxH[others], signatures_DxH[document])
            best = int(np.argmax(agreeing))
            if agreeing[best] >= MIN_SIMILARITY * N_HASHES:
                near.append((document, others[best], agreeing[best]))
                continue
        for bucket in buckets:
            if len(bucket) < MOST_KEPT:
                bucket.append(document)
    near_Cx3 = np.array(near, np.int64).reshape(-1, 3)
    columns = (documents_Dx2[near_Cx3[:, 0]], documents_Dx2[near_Cx3[:, 1]], near_Cx3[:, 2:])
    save_rows(stage_file(work, "near_duplicates", 0), np.concatenate(columns, axis=1))


def _read_signatures(work: Path, n_tasks: int, documents_Dx2: np.ndarray) -> np.ndarray:
    """Reads the signatures of documents, in ascending order of their task and number."""
    borders = np.searchsorted(documents_Dx2[:, 0], np.arange(n_tasks + 1))
    signatures = [
        of_task_DxH[documents_Dx2[begin:end, 1]]
        for of_task_DxH, (begin, end) in zip(
            map_rows(work, "signatures", n_tasks), pairwise(borders), strict=True
        )
    ]
    return np.concatenate(signatures)


def near_duplicates_of_task(work: Path, task: tuple[int, int]) -> set[int]:
    """Returns the numbers of a task's documents that are near-duplicates."""
    return set(_rows_of_task(work, task[0])[:, 1].tolist())


def _rows_of_task(work: Path, index: int) -> np.ndarray:
    """Reads the rows of `find_near_duplicates` about a task's documents."""
    rows_Cx5 = map_task(work, "near_duplicates", 0)
    begin, end = np.searchsorted(rows_Cx5[:, 0], [index, index + 1])
    return rows_Cx5[begin:end]


def write_list(work: Path, task: tuple[int, int], path: Path) -> None:
    """Lists a task's near-duplicates: the document, what it resembles, estimated similarity."""

    @functools.cache
    def names_of_task(index: int) -> tuple[np.ndarray, np.ndarray]:
        return map_task(work, "names", index), map_task(work, "name_ends", index)

    def name(index: int, number: int) -> str:
        names, ends = names_of_task(index)
        begin, end = ends[number : number + 2]
        # A tab or line end in a name would be read as the table's.
        return escape_control(names[begin:end].tobytes().decode()).replace("\t", "\\t")

    lines = ["document\tresembles\tsimilarity"]
    for index, number, kept_index, kept_number, agreeing in _rows_of_task(work, task[0]).tolist():
        similarity = f"{agreeing / N_HASHES:.3f}"
        lines.append(f"{name(index, number)}\t{name(kept_index, kept_number)}\t{similarity}")
    write_text(path, "\n".join([*lines, ""]))
