"""Orbax, opened on any path; a checkpoint of it counts once all of its arrays are found again."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
import tensorstore

from cocondenser_jax.errors import first_three
from cocondenser_jax.files import read_object, write_checksums
from cocondenser_jax.paths import plain_path

ITEMS = ("params", "optimizer")
# What Orbax and TensorStore raise when a disk is full or a file is broken.
UNSAVED = (OSError, ValueError)
# What Orbax calls the nodes of a tree that hold nothing.
_EMPTY = {"None", "Dict", "List", "Tuple", "NamedTuple"}


@contextlib.contextmanager
def open_manager(checkpoints: Path, **options: Any) -> Iterator[ocp.CheckpointManager]:
    """Opens the folder of a run's checkpoints on one host, which waits for no other.

    The options are those of Orbax. A checkpoint whose arrays are not all found again raises an
    OSError, as one that cannot be written does, and keeps its temporary name.
    """
    checkpoints.mkdir(exist_ok=True)
    alone = ocp.options.MultiprocessingOptions(
        primary_host=jax.process_index(),
        active_processes={jax.process_index()},
        barrier_sync_key_prefix=f"host{jax.process_index()}",
    )
    with plain_path(checkpoints.absolute()) as folder:
        chosen = ocp.CheckpointManagerOptions(
            **options,
            create=False,
            cleanup_tmp_directories=True,
            multiprocessing_options=alone,
            async_options=ocp.options.AsyncOptions(
                post_finalization_callback=lambda: _seal(folder)
            ),
        )
        manager = ocp.CheckpointManager(folder, options=chosen)
        try:
            yield manager
        except BaseException:
            with contextlib.suppress(*UNSAVED):  # or the same would be raised twice
                manager.close()
            raise
        manager.close()


def _seal(folder: Path) -> None:
    """Adds checksums to the items of a checkpoint that is complete but for its final name.

    Orbax notices much damage, but no flipped bit of an array, and has no checksums of its own (seen
    with orbax-checkpoint 0.12.8, as is the temporary folder's name). Its remaining files are
    written last and not needed to read the items.
    """
    (partial,) = folder.glob("*.orbax-checkpoint-tmp*")
    for item in ITEMS:
        if (partial / item).is_dir():
            if lost := _lost_arrays(partial / item):
                raise OSError(f"Orbax did not write {item}: {first_three(lost)}")
            write_checksums(partial / item)


def _lost_arrays(item: Path) -> list[str]:
    """Returns the names of the arrays of an item's tree that are not there, shape and values."""
    names = {
        ".".join(key["key"] for key in leaf["key_metadata"])
        for leaf in read_object(item / "_METADATA")["tree_metadata"].values()
        if leaf["value_metadata"]["value_type"] not in _EMPTY
    }
    spec = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{item}/"}}
    keys = [key.decode() for key in tensorstore.KvStore.open(spec).result().list().result()]
    shapes = {key.removesuffix("/.zarray") for key in keys if key.endswith("/.zarray")}
    values = {key.rpartition("/")[0] for key in keys if not key.endswith("/.zarray")}
    return sorted(names - (shapes & values))


@contextlib.contextmanager
def without_closed_loops() -> Iterator[None]:
    """Keeps Python from printing what is raised for each other file after one was not written.

    Seen with orbax-checkpoint 0.12.8: `asyncio.run` ends with the first error, and the writes still
    in progress then raise "Event loop is closed" in their destructors.
    """
    before = sys.unraisablehook

    def print_others(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            before(unraisable)

    sys.unraisablehook = print_others
    try:
        yield
    finally:
        sys.unraisablehook = before


def in_daemon(save: Callable[[], object]) -> None:
    """Calls `save` in a daemon thread, so that all threads that it starts are daemons too.

    Where Orbax (0.12.8) cannot create a checkpoint's folder, threads of the save wait for each
    other for ever, and Python would wait for them before it ends.
    """
    raised: list[BaseException] = []

    def run() -> None:
        try:
            save()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
