"""Makes the parts of a result in many processes or on many machines, by datatrove's executors.

A part is a file or folder that is whole or absent, made by `function(**arguments, shard=(i, n))`.
Parts that are there are not made again. A part that fails is tried once more, and then ends all;
one whose worker was killed is made once more when all others are there.
"""

import contextlib
import os
import pkgutil
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import multiprocess  # type: ignore[import-untyped]
import multiprocess.forkserver  # type: ignore[import-untyped]
from datatrove import executor as executors
from loguru import logger as datatrove_logger
from tqdm import tqdm

from cocondenser_jax import __version__
from cocondenser_jax.errors import UserError, first_line
from cocondenser_jax.storage.files import read_object, write_text

datatrove_logger.disable("datatrove")  # here and in workers, which import this module first

_POLL = 0.5  # seconds between two looks at what is done
_PATIENCE = 120  # looks without a worker at work on this machine, until all are started again


class Engine(NamedTuple):
    """What makes parts: `tasks` of them, at most `workers` at a time."""

    tasks: int
    workers: int | None = None  # None: one per CPU core of this machine; elsewhere all at once
    executor: str = "local"
    options: Mapping[str, Any] = {}  # arguments of datatrove's executor


class Work(NamedTuple):
    """What a worker is to do: call a function, MODULE:FUNCTION, in a folder."""

    function: str
    arguments: Mapping[str, Any]
    logs: str  # the folder of claims, which name the worker of a part, and of failures
    folder: str
    version: str


class _Local(executors.LocalPipelineExecutor):
    def _launch_run_for_rank(self, rank: int, *args: Any, **options: Any) -> Any:
        # Without the queue of ranks, of which a killed worker would keep one.
        return self._run_for_rank(rank)


_EXECUTORS = {
    "local": _Local,
    "slurm": executors.SlurmPipelineExecutor,
    "ray": executors.RayPipelineExecutor,
}


def read_options(path: Path | None) -> dict[str, Any]:
    """Reads the arguments of an executor from a JSON file, if there is one."""
    return {} if path is None else read_object(path)


def make_parts(
    title: str,
    function: str,
    arguments: Mapping[str, Any],
    is_done: Callable[[int], bool],
    engine: Engine,
    work_folder: Path,
) -> None:
    """Makes the parts that are missing; returns once all are there.

    Args:
      title: what the progress bar is called.
      function: MODULE:FUNCTION; workers import it, and this process does not.
      arguments: of the function, without `shard`.
      is_done: tells whether a part, from 0, is there.
      engine: what runs the workers.
      work_folder: for logs; all workers must see it.
    """
    logs = work_folder / "logs" / title
    work = Work(function, arguments, str(logs.absolute()), str(Path.cwd()), __version__)
    for _ in range(2):
        missing = [part for part in range(engine.tasks) if not is_done(part)]
        if not missing:
            return
        shutil.rmtree(logs, ignore_errors=True)  # also datatrove's marks: the parts tell
        (logs / "failures").mkdir(parents=True)
        (logs / "claims").mkdir()
        with _progress(title, is_done, engine, logs) as stopped:
            try:
                _run(work, missing, engine, logs)
            except KeyboardInterrupt:
                if not stopped.is_set():
                    raise
            except Exception:  # also where Ray cannot add up the times of earlier runs
                has_failed = any((logs / "failures").iterdir())
                if not has_failed and not all(map(is_done, range(engine.tasks))):
                    raise
        for failure in sorted((logs / "failures").iterdir()):
            raise UserError(failure.read_text(encoding="utf-8"))
    if lost := [part for part in range(engine.tasks) if not is_done(part)]:
        raise UserError(
            f"{title}: the worker of part {lost[0]} of {engine.tasks} ended twice without a message"
            f" (killed, or out of memory); the others are kept (logs: {logs})"
        )


def _run(work: Work, missing: list[int], engine: Engine, logs: Path) -> None:
    kind = engine.executor
    options = dict(engine.options)
    workers = engine.workers or -1
    if kind == "local":
        workers = engine.workers or os.cpu_count() or 1
        if workers > 1:  # one alone would be this process, which the last part may not kill
            workers = max(2, min(workers, len(missing)))
    if kind == "slurm":
        options.setdefault("venv_path", f"{sys.prefix}/bin/activate")
    try:
        executor = _EXECUTORS[kind](
            pipeline=[partial(_do_part, work)],
            tasks=engine.tasks,
            workers=workers,
            logging_dir=str(logs),
            **options,
        )
    except TypeError as error:
        raise UserError(f"--executor_options of {kind}: {first_line(error)}") from error
    for part in set(range(engine.tasks)).difference(missing):
        executor.mark_rank_as_completed(part)
    # Workers share the cores of this machine.
    threads = str(max(1, (os.cpu_count() or 1) // workers)) if kind == "local" else None
    with _environment(OMP_NUM_THREADS=threads, RAYON_NUM_THREADS=threads):
        if kind == "local":
            _start_without_interrupts()
        elif kind == "ray":
            _start_ray()
        try:
            executor.run()
        except (OSError, subprocess.CalledProcessError) as error:
            raise UserError(f"--executor={kind}: {first_line(error)}") from error
        if kind == "slurm":
            _wait_for_slurm(str(executor.job_id))


def _do_part(work: Work, data: object, part: int, n_parts: int) -> None:
    """Makes a part, in a worker; what datatrove calls."""
    logs = Path(work.logs)
    (logs / "claims" / f"{part:05d}").write_text(f"{socket.gethostname()} {os.getpid()}")
    reason = ""
    with _ending_with_parent(), (logs / f"part-{part:05d}.log").open("w") as log:
        for _ in range(2):
            try:
                with contextlib.redirect_stderr(log), contextlib.chdir(work.folder):
                    _call(work, (part, n_parts))
                return
            except Exception as error:
                traceback.print_exc(file=log)
                reason = f"part {part} of {n_parts} failed twice: {first_line(error)}"
    write_text(logs / "failures" / f"{part:05d}", reason)
    raise UserError(reason)


def _call(work: Work, shard: tuple[int, int]) -> None:
    if work.version != __version__:
        raise UserError(
            f"{socket.gethostname()} has version {__version__} of cocondenser-jax,"
            f" expected {work.version}"
        )
    pkgutil.resolve_name(work.function)(**work.arguments, shard=shard)


@contextlib.contextmanager
def _ending_with_parent() -> Iterator[None]:
    """Ends a worker by an exception, so that nothing half-made stays, if it is to end."""
    parent = multiprocess.parent_process()
    if parent is None:
        yield
        return

    def end(*_: object) -> None:
        signal.alarm(10)  # should the exception be caught
        raise SystemExit(128 + signal.SIGTERM)

    def watch() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
    handler = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


def _start_without_interrupts() -> None:
    """Starts the server that forks workers so that they ignore Ctrl-C, which stops this process."""
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        multiprocess.forkserver.set_forkserver_preload([__name__])
        multiprocess.forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, handler)


def _start_ray() -> None:
    try:  # joins the cluster of RAY_ADDRESS, or starts one on this machine
        pkgutil.resolve_name("ray:init")(ignore_reinit_error=True, log_to_driver=False)
    except ModuleNotFoundError as error:
        raise UserError("ray is missing: pip install ray") from error


def _wait_for_slurm(job: str) -> None:
    try:
        command = ["squeue", "--noheader", f"--jobs={job}"]
        while subprocess.run(command, capture_output=True, check=False).stdout.strip():
            time.sleep(_POLL)
    except BaseException:
        subprocess.run(["scancel", job], check=False)
        raise


@contextlib.contextmanager
def _progress(
    title: str, is_done: Callable[[int], bool], engine: Engine, logs: Path
) -> Iterator[threading.Event]:
    """Shows a bar over all parts; interrupts this process where no part can follow."""
    ended = threading.Event()
    stopped = threading.Event()

    def watch() -> None:
        n_idle = 0
        while not ended.wait(_POLL):
            missing = [part for part in range(engine.tasks) if not is_done(part)]
            bar.update(engine.tasks - len(missing) - bar.n)
            alive = [_is_claimed(logs / "claims" / f"{part:05d}") for part in missing]
            n_idle = 0 if True in alive else n_idle + 1
            is_local = engine.executor == "local"
            has_failed = not is_local and any((logs / "failures").iterdir())
            if missing and (set(alive) == {False} or (is_local and n_idle > _PATIENCE)):
                has_failed = True
            if has_failed:
                stopped.set()
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                return

    with tqdm(total=engine.tasks, desc=title, unit=" parts") as bar:
        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield stopped
        finally:
            ended.set()
            thread.join()
            bar.update(sum(map(is_done, range(engine.tasks))) - bar.n)


def _is_claimed(claim: Path) -> bool | None:
    """Tells whether the worker of a part is alive, as far as known; None if it has none."""
    try:
        host, pid = claim.read_text().split()
        if host == socket.gethostname():
            os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (OSError, ValueError):
        return None
    return True


@contextlib.contextmanager
def _environment(**variables: str | None) -> Iterator[None]:
    """Sets environment variables that are not set, for processes started in the block."""
    new = {name: value for name, value in variables.items() if value and name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            del os.environ[name]
