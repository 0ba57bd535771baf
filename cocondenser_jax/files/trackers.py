"""Sends a run's metrics to a tracker, in addition to `metrics.jsonl`.

A resumed run continues the tracker's run, by the id in the run folder's `tracker.json`. The
trackers' packages are optional.
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
    """An open tracker of one run."""

    log: Log
    next_step: int  # the first step that it lacks


class _Run(NamedTuple):
    """The description of a run for a tracker."""

    workdir: Path
    id: str
    settings: Mapping[str, Any]


def require_tracker(name: str) -> None:
    """Raises an ImportError if the package of a tracker is missing."""
    if name in _TRACKERS:
        importlib.import_module(name)


@contextlib.contextmanager
def open_tracker(name: str, workdir: Path, settings: Mapping[str, Any]) -> Iterator[Tracker]:
    """Opens the tracker's run that belongs to a run folder.

    Args:
      name: one of `TRACKERS`; "none" yields a tracker that ignores everything.
      workdir: the run folder.
      settings: the run's settings, for display.

    Raises:
      UserError: if the tracker does not start, for example without an account.
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
    """Ignores a step."""


@contextlib.contextmanager
def _tensorboard(run: _Run) -> Iterator[Tracker]:
    """Writes a new file of events, which makes TensorBoard drop later steps of earlier files.

    TensorBoard's own writer runs in a thread, and hangs once the disk is full.
    """
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    folder = run.workdir / "tensorboard"
    folder.mkdir(exist_ok=True)
    # TensorBoard reads the files in the order of their names.
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
        write(step=0, session_log=SessionLog(status=SessionLog.START))  # drops earlier events
        yield Tracker(log, 0)


@contextlib.contextmanager
def _service(package: str, run: _Run) -> Iterator[Tracker]:
    """Starts a run of wandb, or of trackio, whose similar API lacks ids and exit codes."""
    library = importlib.import_module(package)
    is_wandb = package == "wandb"
    # Some settings, such as the chunk size, may change when a run resumes.
    own = {"id": run.id, "dir": run.workdir, "allow_val_change": True} if is_wandb else {}
    # Their messages are not results of the command.
    with _start_errors(package), contextlib.redirect_stdout(sys.stderr):
        opened = library.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            name=f"{run.workdir.resolve().name}-{run.id[:8]}",
            resume="allow",
            config=dict(run.settings),
            **own,
        )
    # trackio (0.43) has no public attribute for the step.
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
    """Turns any error of a tracker into a UserError."""
    try:
        yield
    except Exception as error:
        raise UserError(f"{name} does not start: {whole_message(error)}") from error


# Trackers by package name.
_TRACKERS: dict[str, Callable[[_Run], AbstractContextManager[Tracker]]] = {
    "tensorboard": _tensorboard,
    "wandb": functools.partial(_service, "wandb"),
    "trackio": functools.partial(_service, "trackio"),
}
TRACKERS = ("none", *_TRACKERS)
