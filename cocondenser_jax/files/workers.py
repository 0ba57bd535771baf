"""Runs tasks in several local processes, or on many machines by Slurm or Ray.

Task (i, n) makes part i of n of a result, a file or folder that is written atomically. Finished
tasks do not run again. A failed task is retried once; a second failure ends the whole run. A task
whose worker was killed is retried once after all others.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import chdir, redirect_stderr, suppress
from functools import partial
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, NamedTuple

from tqdm import tqdm

from cocondenser_jax import __version__
from cocondenser_jax.errors import UserError, whole_message
from cocondenser_jax.files.whole import write_text

_POLL = 0.5  # seconds between queries of a Slurm job


Executor = Literal["local", "slurm", "ray"]


class Engine(NamedTuple):
    """How to run tasks."""

    tasks: int
    # Tasks at a time; None: one per local GPU, or per CPU core; on Slurm and Ray, all at once.
    workers: int | None = None
    executor: Executor = "local"
    options: Mapping[str, Any] = {}  # for datatrove's Slurm executor, or Ray's tasks
    # This machine's GPUs, named as in CUDA_VISIBLE_DEVICES; local worker i sees only the i-th.
    gpus: Sequence[str] = ()


class Work(NamedTuple):
    """The work of each worker: to call a function with `task` in a folder."""

    function: Callable[..., object]
    n_tasks: int
    logs: Path
    folder: Path
    version: str


def run_tasks(
    title: str,
    function: Callable[..., object],
    is_done: Callable[[int], bool],
    engine: Engine,
    work_folder: Path,
) -> None:
    """Runs the tasks with missing results; returns when all results exist.

    Args:
      title: the progress bar's title.
      function: runs one task, `task`=(i, n); workers import it by name.
      is_done: returns whether the result of task i, from 0, exists.
      engine: how to run the tasks.
      work_folder: the folder for logs, visible to all workers.

    Raises:
      UserError: if a task failed twice, or its worker was killed twice.
    """
    logs = (work_folder / "logs" / title).absolute()
    work = Work(function, engine.tasks, logs, Path.cwd(), __version__)
    missing = [index for index in range(engine.tasks) if not is_done(index)]
    for _ in range(2):
        if not missing:
            return
        shutil.rmtree(logs, ignore_errors=True)
        logs.mkdir(parents=True)
        n_done = engine.tasks - len(missing)
        with tqdm(total=engine.tasks, initial=n_done, desc=title, unit=" tasks") as bar:
            _EXECUTORS[engine.executor](work, missing, engine, bar)
        missing = [index for index in missing if not is_done(index)]
    if missing:
        raise UserError(
            f"{title}: the worker of task {missing[0]} of {engine.tasks} ended twice without a"
            f" message (killed, or out of memory); the others are kept (logs: {logs})"
        )


def _run_task(work: Work, index: int) -> None:
    """Runs a task in a worker, with one retry."""
    if work.version != __version__:
        raise UserError(
            f"a worker has version {__version__} of cocondenser-jax, expected {work.version}"
        )
    reason = ""
    path = work.logs / f"task-{index:05d}.log"
    for _ in range(2):
        try:
            with path.open("a") as log, redirect_stderr(log), chdir(work.folder):
                work.function(task=(index, work.n_tasks))
            return
        except Exception as error:
            reason = whole_message(error)
            with suppress(OSError), path.open("a") as log:  # the disk may be full
                traceback.print_exc(file=log)
    raise UserError(f"task {index} of {work.n_tasks} failed twice: {reason}")


def _run_here(work: Work, tasks: Sequence[int], engine: Engine, bar: "tqdm[Any]") -> None:
    """Runs tasks in processes of this machine.

    Each worker is a pool of one process, so that a killed worker loses only its own task.
    """
    n_cores = os.cpu_count() or 1
    n_workers = engine.workers or len(engine.gpus) or n_cores
    workers_end, end = Pipe(duplex=False)
    n_threads = max(1, n_cores // n_workers)

    def new_worker(gpu: str | None) -> ProcessPoolExecutor:
        # Not by fork, which would copy locks held by this process's threads.
        settings = (workers_end, n_threads, gpu)
        return ProcessPoolExecutor(1, get_context("spawn"), _start_worker, settings)

    idle: SimpleQueue[tuple[ProcessPoolExecutor, str | None]] = SimpleQueue()
    for number in range(min(n_workers, len(tasks))):
        gpu = engine.gpus[number] if engine.gpus else None
        idle.put((new_worker(gpu), gpu))  # its process starts with its first task

    def run(index: int) -> bool:
        worker, gpu = idle.get()
        try:
            worker.submit(_run_task_here, work, index).result()
        except BrokenProcessPool:
            worker = new_worker(gpu)
            return False
        finally:
            idle.put((worker, gpu))
        return True

    # Workers inherit the mask, so Ctrl-C reaches only this process, which then ends them.
    mask = (signal.SIG_BLOCK, [signal.SIGINT, signal.SIGHUP])
    with ThreadPoolExecutor(n_workers, "tasks", signal.pthread_sigmask, mask) as threads:
        try:
            for future in as_completed([threads.submit(run, index) for index in tasks]):
                if future.result():
                    bar.update()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            end.close()


def _start_worker(parents_end: Connection, n_threads: int, gpu: str | None) -> None:
    """Prepares a worker, which ends when its parent closes the pipe or is killed.

    `gpu` is the only one that PyTorch and JAX, loaded later, will see.
    """

    def watch() -> None:
        parents_end.poll(None)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
    for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS"):  # since workers share the cores
        os.environ.setdefault(name, f"{n_threads}")
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu


def _run_task_here(work: Work, index: int) -> None:
    """Runs a task; SIGTERM raises an exception, so that partial outputs are removed."""

    def end(*_: object) -> None:
        signal.alarm(10)  # in case a library catches the exception
        raise SystemExit

    signal.signal(signal.SIGTERM, end)
    try:
        _run_task(work, index)
    except SystemExit:  # which the pool would catch
        os._exit(128 + signal.SIGTERM)


def _run_on_ray(work: Work, tasks: Sequence[int], engine: Engine, bar: "tqdm[Any]") -> None:
    """Runs tasks on the Ray cluster at RAY_ADDRESS, or on a local one."""
    import ray

    handler = signal.getsignal(signal.SIGTERM)
    ray.init(ignore_reinit_error=True, log_to_driver=False)
    signal.signal(signal.SIGTERM, handler)  # Ray's own handler aborts
    try:
        remote = ray.remote(_run_task).options(max_retries=0, **engine.options)
    except (TypeError, ValueError) as error:
        raise UserError(f"--executor_options of ray: {whole_message(error)}") from error
    waiting = list(reversed(tasks))
    running: list[Any] = []
    try:
        while waiting or running:
            while waiting and len(running) < (engine.workers or len(tasks)):
                running.append(remote.remote(work, waiting.pop()))
            done, running = ray.wait(running)
            try:
                ray.get(done)
                bar.update()
            except ray.exceptions.RayTaskError as error:
                raise error.cause from error
            except ray.exceptions.RayError:  # its worker was killed
                continue
    finally:
        for reference in running:
            ray.cancel(reference, force=True)


def _run_on_slurm(work: Work, tasks: Sequence[int], engine: Engine, bar: "tqdm[Any]") -> None:
    """Runs tasks in a Slurm job array, which datatrove writes and submits."""
    from datatrove.executor import SlurmPipelineExecutor
    from datatrove.utils.logging import logger

    logger.disable("datatrove")
    options = {"venv_path": f"{sys.prefix}/bin/activate", **engine.options}
    try:
        executor = SlurmPipelineExecutor(
            pipeline=[partial(_run_task_on_slurm, work)],
            tasks=engine.tasks,
            workers=engine.workers or -1,
            logging_dir=str(work.logs),
            **options,
        )
        for index in set(range(engine.tasks)).difference(tasks):
            executor.mark_rank_as_completed(index)
        executor.run()
        _wait_for_slurm(str(executor.job_id), work, bar)
    except TypeError as error:
        raise UserError(f"--executor_options of slurm: {whole_message(error)}") from error
    except (OSError, subprocess.CalledProcessError) as error:
        raise UserError(f"--executor=slurm: {whole_message(error)}") from error


def _run_task_on_slurm(work: Work, data: object, index: int, n_tasks: int) -> None:
    """Runs a task for datatrove, and records the reason of a failure."""
    try:
        _run_task(work, index)
    except UserError as error:
        write_text(work.logs / "failures" / f"{index:05d}", str(error))
        raise


def _wait_for_slurm(job: str, work: Work, bar: "tqdm[Any]") -> None:
    queue = ["squeue", "--noheader", f"--jobs={job}"]
    is_queued = True
    try:
        while is_queued:
            time.sleep(_POLL)
            answer = subprocess.run(queue, capture_output=True, check=False)
            # A queue that does not answer, for a busy controller, says nothing of the job.
            answers = answer.returncode == 0 or b"Invalid job id" in answer.stderr
            is_queued = bool(answer.stdout.strip()) or not answers
            bar.update(len(list(work.logs.glob("completions/*"))) - bar.n)
            if failures := sorted(work.logs.glob("failures/*")):
                raise UserError(failures[0].read_text(encoding="utf-8"))
    except BaseException:
        subprocess.run(["scancel", job], check=False)
        raise


_EXECUTORS = {"local": _run_here, "slurm": _run_on_slurm, "ray": _run_on_ray}
