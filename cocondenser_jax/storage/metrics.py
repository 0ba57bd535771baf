"""Logs the metrics of a run: one JSON line per logged step, also passed to loggers."""

import contextlib
import json
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from cocondenser_jax.errors import UserError
from cocondenser_jax.storage.files import write_text

# What reading anything else as an object of numbers may raise.
_NO_OBJECT = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
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
    with _log_errors(workdir):
        forget_steps_after(path, first_step)
        file = path.open("a", encoding="utf-8")

    def log(step: int, values: Mapping[str, float]) -> None:
        with _log_errors(workdir):
            file.write(json.dumps({"step": step, **values}) + "\n")
            file.flush()
        for logger in loggers:
            logger(step, values)

    try:
        yield log
    finally:
        with _log_errors(workdir):
            file.close()


def forget_steps_after(path: Path, step: int) -> None:
    """Drops later steps and an unfinished last line; a missing file becomes an empty one."""
    logged = logged_lines(path) if path.exists() else []
    write_text(path, "".join(f"{line}\n" for line, values in logged if values["step"] <= step))


def logged_lines(path: Path) -> list[tuple[str, dict[str, float]]]:
    """Returns the lines of a `metrics.jsonl` and their values, without an unfinished last line."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    logged = []
    for number, line in enumerate(lines, start=1):
        try:
            values = {key: float(value) for key, value in json.loads(line).items()}
            logged.append((line, {"step": values["step"], **values}))
        except _NO_OBJECT as error:
            message = 'expected a JSON object of numbers with a "step"'
            raise UserError(f"{path}, line {number}: {message}") from error
    return logged


@contextlib.contextmanager
def _log_errors(workdir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot log to {workdir}: {error.strerror}") from error
