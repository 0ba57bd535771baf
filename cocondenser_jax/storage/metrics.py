"""Logs the metrics of a run: one JSON line per logged step, also passed to loggers."""

import contextlib
import json
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from cocondenser_jax.errors import UserError
from cocondenser_jax.storage.files import (
    full_disk_errors,
    parse_object,
    read_lines,
    write_text,
)

# Logs the metrics of one step; steps count from 1.
Log = Callable[[int, Mapping[str, float]], None]


def load_loggers(names: str) -> list[Log]:
    """Loads the functions that `config.loggers` names: MODULE:FUNCTION, separated by commas."""
    loggers = []
    for name in filter(None, names.split(",")):
        try:
            logger = pkgutil.resolve_name(name)
        except Exception as error:  # it is a program: it may raise anything
            raise UserError(f"config.loggers: {name} cannot be loaded: {error}") from error
        if not callable(logger):
            raise UserError(f"config.loggers: {name} is not a function; expected MODULE:FUNCTION")
        loggers.append(logger)
    return loggers


@contextlib.contextmanager
def metrics_log(workdir: Path, first_step: int, loggers: Iterable[Log] = ()) -> Iterator[Log]:
    """Yields a function that appends a step's metrics to `metrics.jsonl` and calls the loggers.

    Lines after `first_step`, from which the run resumes, are dropped first.
    """
    path = workdir / "metrics.jsonl"
    forget_steps_after(path, first_step)
    with full_disk_errors(path), path.open("a", encoding="utf-8") as file:

        def log(step: int, values: Mapping[str, float]) -> None:
            file.write(json.dumps({"step": step, **values}) + "\n")
            file.flush()
            for logger in loggers:
                logger(step, values)

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
