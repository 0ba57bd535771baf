"""Steps of a pipeline, each of which makes a file or folder once and is timed."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVarTuple

from cocondenser_jax.files.whole import read_object, write_json

SECONDS = "seconds.json"

Arguments = TypeVarTuple("Arguments")


def make_once(
    workdir: Path,
    result: Path,
    make: Callable[[*Arguments, Path], object],
    *arguments: *Arguments,
) -> Path:
    """Calls `make(*arguments, result)` if the result does not exist, so that a pipeline resumes.

    Args:
      workdir: the pipeline's folder; its `seconds.json` records the seconds for each result,
        interruptions included.
      result: the path of a file or folder in `workdir`.
      make: writes the result atomically.
      arguments: the arguments of `make` before the result.

    Returns:
      `result`.
    """
    with timed(workdir, result):
        if not result.exists():
            make(*arguments, result)
    return result


@contextmanager
def timed(workdir: Path, result: Path) -> Iterator[None]:
    """Adds the seconds of its block to those of a result in `seconds.json` of `workdir`."""
    start = time.perf_counter()
    try:
        yield
    finally:
        file = workdir / SECONDS
        seconds = read_object(file, {})
        name = result.relative_to(workdir).as_posix()
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start
        write_json(file, seconds)


def seconds_of(workdir: Path, results: Iterable[Path]) -> float:
    """Returns the total seconds of some results, as recorded by `make_once` and `timed`."""
    seconds = read_object(workdir / SECONDS)
    return sum(seconds[path.relative_to(workdir).as_posix()] for path in results)


def remove_results(workdir: Path, results: Sequence[Path]) -> None:
    """Removes results of `make_once` and their seconds, so that they are made again."""
    seconds = read_object(workdir / SECONDS, {})
    for result in results:
        seconds.pop(result.relative_to(workdir).as_posix(), None)
    write_json(workdir / SECONDS, seconds)  # first, so that the next call repeats a killed removal
    for result in results:
        result.unlink()
