"""Logs the metrics of a run: one JSON line per logged step, and the same to a tracker."""

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

    Lines after `first_step`, from which the run resumes, are dropped first. The tracker gets the
    others too, where it lacks them.

    Args:
      workdir: the run folder.
      first_step: the step that the run resumes after; 0: it starts.
      tracker: see `trackers.open_tracker`, as for `settings`.
      settings: those of the run.
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
    """Drops later steps and an unfinished last line; a missing file becomes an empty one."""
    logged = logged_lines(path) if path.exists() else []
    write_text(path, "".join(f"{line}\n" for line, values in logged if values["step"] <= step))


def logged_lines(path: Path) -> list[tuple[str, dict[str, float]]]:
    """Returns the lines of a `metrics.jsonl` and their values, without an unfinished last line."""
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
