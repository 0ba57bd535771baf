"""A run's figures: one JSON line a logged step, and the same in TensorBoard."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TextIO

from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog

from cocondenser_jax.errors import UserError
from cocondenser_jax.files import write_text

# Logs the figures of one step; steps count from 1.
Log = Callable[[int, Mapping[str, float]], None]


@contextlib.contextmanager
def metrics_log(workdir: Path, first_step: int) -> Iterator[Log]:
    """Yields what appends to `metrics.jsonl` and `tensorboard/` in a run folder.

    A run that goes on after `first_step` steps first forgets what was logged of later ones, so the
    files read as if the run had never stopped.

    Raises:
      UserError: if `metrics.jsonl` is damaged, or nothing can be written. Not so tensorboardX's
        usual writer: its thread ends when the disk is full, and then the run waits for it for ever.
    """
    path, board = workdir / "metrics.jsonl", workdir / "tensorboard"
    with contextlib.ExitStack() as stack:
        with _told_clearly(workdir):
            forget_steps_after(path, first_step)
            board.mkdir(exist_ok=True)
            lines = path.open("a", encoding="utf-8")
            stack.enter_context(_closing(lines, workdir))
            events = EventsWriter(str(board / "events"))
            stack.enter_context(_closing(events, workdir))
            start = SessionLog(status=SessionLog.START)
            events.write_event(Event(step=first_step + 1, wall_time=time.time(), session_log=start))

        def log(step: int, values: Mapping[str, float]) -> None:
            with _told_clearly(workdir):
                lines.write(json.dumps({"step": step, **values}) + "\n")
                lines.flush()
                for name, value in values.items():
                    scalar = summary.scalar(name, value)
                    events.write_event(Event(step=step, wall_time=time.time(), summary=scalar))
                events.flush()

        yield log


def forget_steps_after(path: Path, step: int) -> None:
    """Cuts a `metrics.jsonl` back to the steps up to `step`, for a run that goes on from there.

    What an interrupted run logged after its last checkpoint will be logged again; a last line that
    a kill cut short goes too. A file that is not there becomes an empty one.

    Raises:
      UserError: for a line without a step; the file stays as it is.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
        kept = [line for line in lines if json.loads(line)["step"] <= step]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise UserError(
            f'{path} is damaged: expected a JSON object with a "step" on each line'
        ) from error
    write_text(path, "".join(f"{line}\n" for line in kept))


@contextlib.contextmanager
def _closing(file: TextIO | EventsWriter, workdir: Path) -> Iterator[None]:
    try:
        yield
    finally:
        with _told_clearly(workdir):
            file.close()


@contextlib.contextmanager
def _told_clearly(workdir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot log to {workdir}: {error.strerror}") from error
