"""Logs a run's metrics: one JSON line per logged step, also sent to a tracker."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.trackers import Log, open_tracker
from cocondenser_jax.files.whole import (
    full_disk_errors,
    parse_object,
    read_lines,
    write_text,
)


@contextlib.contextmanager
def metrics_log(
    workdir: Path, first_step: int, tracker: str, settings: Mapping[str, Any]
) -> Iterator[Log]:
    """Yields a function that appends a step's metrics to `metrics.jsonl` and sends it to a tracker.

    Drops lines of steps after `first_step`, and sends the tracker any earlier lines that it lacks.

    Args:
      workdir: the run folder.
      first_step: the step after which the run resumes; 0 for a new run.
      tracker: see `trackers.open_tracker`.
      settings: the run's settings, for the tracker.
    """
    path = workdir / "metrics.jsonl"
    forget_steps_after(path, first_step)
    with (
        full_disk_errors(path),
        path.open("a", encoding="utf-8") as file,
        open_tracker(tracker, workdir, settings) as opened,
    ):

        def send(step: int, values: Mapping[str, float]) -> None:
            if step >= opened.next_step:
                opened.log(step, values)

        def log(step: int, values: Mapping[str, float]) -> None:
            file.write(json.dumps({"step": step, **values}) + "\n")
            file.flush()
            send(step, values)

        for _, values in logged_lines(path):
            send(int(values.pop("step")), values)
        yield log


def forget_steps_after(path: Path, step: int) -> None:
    """Drops later steps and an unfinished last line; creates a missing file."""
    logged = logged_lines(path) if path.exists() else []
    write_text(path, "".join(f"{line}\n" for line, values in logged if values["step"] <= step))


def logged_lines(path: Path) -> list[tuple[str, dict[str, float]]]:
    """Returns each line of a `metrics.jsonl` with its values, except an unfinished last line."""
    lines = list(read_lines(path))
    logged = []
    for number, line in lines:
        where = f"{path}, line {number}"
        try:
            values = {key: float(value) for key, value in parse_object(line, where).items()}
            logged.append((line, {"step": values["step"], **values}))
        except (UserError, ValueError, TypeError, KeyError, OverflowError) as error:
            if number < len(lines):
                message = 'expected a JSON object of numbers with a "step"'
                raise UserError(f"{where}: {message}") from error
    return logged
