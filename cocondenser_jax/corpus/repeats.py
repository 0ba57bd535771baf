"""Finds the documents of a source that repeat an earlier one, exactly or nearly.

One process that looks for exact repetitions keeps the digests of all texts in memory. Otherwise
stages of tasks find them (`tasks.py`, `near_duplicates.py`), in files of a work folder.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cocondenser_jax.corpus.near_duplicates import (
    find_candidates,
    find_near_duplicates,
    near_duplicates_of_task,
    sign_task,
    write_list,
)
from cocondenser_jax.corpus.tasks import (
    duplicates_of_task,
    find_duplicates,
    hash_task,
    text_digest,
)

# Takes the number and the text of a document; returns why it is dropped, None if it is not.
Reason = Callable[[int, str], str | None]


class Stage(NamedTuple):
    """What tasks do before any writes its folder of the store."""

    name: str  # of the files that it makes, see `tasks.stage_file`
    function: Callable[..., object]  # takes `task`
    n_tasks: int


def first_of_each_text() -> Reason:
    """Drops exact duplicates by the digests of all texts that the function was called with."""
    digests: set[bytes] = set()

    def reason(_: int, text: str) -> str | None:
        n_before = len(digests)
        digests.add(text_digest(text))
        return "duplicate" if len(digests) == n_before else None

    return reason


def list_stages(
    source: str, n_documents: int | None, work: Path, n_tasks: int, *, near: bool
) -> list[Stage]:
    """Lists the stages that find what is dropped.

    Args:
      source: see `tasks.read_task`, as for `n_documents`.
      n_documents: of the source.
      work: a folder for their files.
      n_tasks: in which the source is read.
      near: whether near-duplicates are dropped, too.
    """
    stages = [
        Stage("digests", partial(hash_task, source, n_documents, work), n_tasks),
        Stage("duplicates", partial(find_duplicates, work), n_tasks),
    ]
    if near:
        stages += [
            Stage("signatures", partial(sign_task, source, n_documents, work), n_tasks),
            Stage("candidates", partial(find_candidates, work), n_tasks),
            Stage("near_duplicates", partial(find_near_duplicates, work, n_tasks), 1),
        ]
    return stages


def repeats_of_task(work: Path, task: tuple[int, int], folder: Path, *, near: bool) -> Reason:
    """Reads what the stages found about a task's documents; lists near-duplicates in `folder`."""
    duplicates = duplicates_of_task(work, task)
    near_duplicates: set[int] = set()
    if near:
        near_duplicates = near_duplicates_of_task(work, task)
        write_list(work, task, folder / "near_duplicates.tsv")

    def reason(number: int, _: str) -> str | None:
        if number in duplicates:
            return "duplicate"
        return "near_duplicate" if number in near_duplicates else None

    return reason
