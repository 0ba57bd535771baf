"""Processes that begin with their imports done: forks of a server that imports once.

To import sentence-transformers takes five seconds, and some tests start ten processes.
"""

import atexit
import contextlib
import os
import socket
import sys
from multiprocessing.context import ForkServerContext, ForkServerProcess

from tests.waiting import wait_for


class _Process(ForkServerProcess):
    """A fork with the environment of who started it; the server has that of its own start."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.environment = dict(os.environ)

    def run(self):
        os.environ.clear()
        os.environ.update(self.environment)
        super().run()


class _Context(ForkServerContext):
    Process = _Process


_CONTEXT = _Context()
_CONTEXT.set_forkserver_preload(
    ["cocondenser_jax.retriever.train.tasks", "cocondenser_jax.retriever.search.opening"]
)


def fork_workers(monkeypatch):
    """Makes the workers of `files.workers` forks, too."""
    from cocondenser_jax.files import workers

    monkeypatch.setattr(workers, "get_context", lambda method: _CONTEXT)


def start(function, *arguments):
    """Calls a function in another process, which is returned."""
    process = _Process(target=function, args=arguments)
    process.start()
    return process


def run_under_torchrun(program, words, folder, n=2):
    """Calls program(words) in processes with the environment that torchrun (2.13) gives.

    Like torchrun, it ends the others once one has failed. Returns the exit status and what was
    printed of each; a signal counts as its negative number.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    outs = [folder / f"printed-{rank}" for rank in range(n)]
    processes = [_Process(target=_main, args=(program, words, out)) for out in outs]
    for rank, process in enumerate(processes):
        process.environment |= {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(n),
            "LOCAL_WORLD_SIZE": str(n),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "TORCHELASTIC_RUN_ID": "tests",
        }
        process.start()
    try:
        wait_for(lambda: _have_ended(processes), "no process ends", 240)
        for process in processes:
            process.terminate()  # one that has ended gets nothing
        wait_for(lambda: all(x.exitcode is not None for x in processes), "a process goes on", 60)
    finally:
        for process in processes:
            process.kill()
            process.join()
    return [(each.exitcode, out.read_text()) for each, out in zip(processes, outs, strict=True)]


def _have_ended(processes):
    codes = [process.exitcode for process in processes]
    return any(codes) or None not in codes


def _main(program, words, out):
    """Calls a program, as a process of its own would be."""
    with contextlib.suppress(OSError):
        os.unlink(out)
    printed = os.open(out, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    try:
        sys.exit(program(words))
    finally:
        atexit._run_exitfuncs()  # multiprocessing ends without them
