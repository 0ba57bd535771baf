"""The steps of a pipeline: each makes a file or folder, once, and is timed."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from ml_collections import ConfigDict

from cocondenser_jax.pretrain.export import export_run
from cocondenser_jax.pretrain.loop import train
from cocondenser_jax.storage.files import read_object, write_json

SECONDS = "seconds.json"


def make_once(workdir: Path, result: Path, make: Callable[[Path], object]) -> Path:
    """Calls `make(result)` if the result does not exist, so that an interrupted pipeline resumes.

    Args:
      workdir: the pipeline's folder. Its `seconds.json` gets how long each result took,
        interruptions included.
      result: a file or folder in `workdir`.
      make: writes the result whole or not at all.

    Returns:
      The result.
    """
    start = time.perf_counter()
    try:
        if not result.exists():
            make(result)
    finally:
        file = workdir / SECONDS
        seconds = read_object(file, {})
        name = result.relative_to(workdir).as_posix()
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start
        write_json(file, seconds)
    return result


def seconds_of(workdir: Path, results: Iterable[Path]) -> float:
    """Returns how many seconds `make_once` took for some results, in all."""
    seconds = read_object(workdir / SECONDS)
    return sum(seconds[path.relative_to(workdir).as_posix()] for path in results)


def pretrain_model(config: ConfigDict, run: Path, model: Path) -> None:
    """Pre-trains in the run folder `run`, and exports the result to the folder `model`."""
    train(config, run)
    export_run(run, model)
