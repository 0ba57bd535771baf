"""Sends the metrics of a run to a tracker, beside `metrics.jsonl`.

A run that resumes continues the same run of the tracker: its id is in `tracker.json` of the run
folder. The packages are optional.
"""

import contextlib
import functools
import importlib
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from cocondenser_jax.errors import UserError, whole_message
from cocondenser_jax.files.whole import read_object, write_json

# Logs the metrics of one step; steps count from 1.
Log = Callable[[int, Mapping[str, float]], None]

_PROJECT = "cocondenser_jax"


class Tracker(NamedTuple):
    """A tracker that is open for a run."""

    log: Log
    next_step: int  # the first that it has not


class _Run(NamedTuple):
    """What a tracker is told of a run."""

    workdir: Path
    id: str
    settings: Mapping[str, Any]


def require_tracker(name: str) -> None:
    """Raises an ImportError if the package of a tracker is missing."""
    if name in _TRACKERS:
        importlib.import_module(name)


@contextlib.contextmanager
def open_tracker(name: str, workdir: Path, settings: Mapping[str, Any]) -> Iterator[Tracker]:
    """Yields the tracker `name`, with the run that belongs to a run folder; "none": ignores all.

    Args:
      name: one of `TRACKERS`.
      workdir: the run folder.
      settings: those of the run, which the tracker shows.

    Raises:
      UserError: if the tracker does not start, for example because it knows no account.
    """
    if name not in _TRACKERS:
        yield Tracker(_ignore, sys.maxsize)
        return
    path = workdir / "tracker.json"
    if not path.exists():
        write_json(path, {"id": uuid.uuid4().hex})
    run = _Run(workdir, str(read_object(path).get("id")), settings)
    with _TRACKERS[name](run) as tracker:
        yield tracker


def _ignore(step: int, values: Mapping[str, float]) -> None:
    """Logs nothing."""


@contextlib.contextmanager
def _tensorboard(run: _Run) -> Iterator[Tracker]:
    """Writes a new file of events, which replaces the earlier ones when TensorBoard reads them.

    TensorBoard's own writer works in a thread, and waits forever once the disk is full.
    """
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    folder = run.workdir / "tensorboard"
    folder.mkdir(exist_ok=True)
    # In the order of their names, TensorBoard reads the files.
    name = f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}"
    with (folder / name).open("wb") as file:
        writer = RecordWriter(file)

        def write(**fields: Any) -> None:
            writer.write(Event(wall_time=time.time(), **fields).SerializeToString())
            writer.flush()

        def log(step: int, values: Mapping[str, float]) -> None:
            scalars = [Summary.Value(tag=key, simple_value=x) for key, x in values.items()]
            write(step=step, summary=Summary(value=scalars))

        write(file_version="brain.Event:2")
        write(step=0, session_log=SessionLog(status=SessionLog.START))  # forget what was before
        yield Tracker(log, 0)


@contextlib.contextmanager
def _service(package: str, run: _Run) -> Iterator[Tracker]:
    """Starts a run of wandb, or of trackio, which has its calls, but neither ids nor exit codes."""
    library = importlib.import_module(package)
    is_wandb = package == "wandb"
    # Chunks and the like may change when a run resumes.
    own = {"id": run.id, "dir": run.workdir, "allow_val_change": True} if is_wandb else {}
    # What they print is not a result of a command.
    with _start_errors(package), contextlib.redirect_stdout(sys.stderr):
        opened = library.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            name=f"{run.workdir.resolve().name}-{run.id[:8]}",
            resume="allow",
            config=dict(run.settings),
            **own,
        )
    # trackio (0.43) says nowhere else which step it has.
    next_step = opened.step if is_wandb else opened._next_step
    exit_code = {"exit_code": 1} if is_wandb else {}
    try:
        yield Tracker(lambda step, values: opened.log(dict(values), step=step), next_step)
        exit_code = {}
    finally:
        with contextlib.redirect_stdout(sys.stderr):
            opened.finish(**exit_code)


@contextlib.contextmanager
def _start_errors(name: str) -> Iterator[None]:
    """Turns what a tracker raises, which may be anything, into a UserError."""
    try:
        yield
    except Exception as error:
        raise UserError(f"{name} does not start: {whole_message(error)}") from error


# By the name of their package.
_TRACKERS: dict[str, Callable[[_Run], AbstractContextManager[Tracker]]] = {
    "tensorboard": _tensorboard,
    "wandb": functools.partial(_service, "wandb"),
    "trackio": functools.partial(_service, "trackio"),
}
TRACKERS = ("none", *_TRACKERS)
