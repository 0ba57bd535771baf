"""A training on several hosts, supervised by a process that can still speak when it is aborted.

JAX is imported by the child alone: its threads do not survive a fork.
"""

import os
import re
import signal
import sys
import threading
from collections.abc import Callable

from cocondenser_jax.errors import UserError
from cocondenser_jax.pretrain.signals import PATIENCE, listening

HEARTBEAT_SECONDS = 60  # of silence, after which another host counts as lost
LOST_HOST = 3  # exit status
_LOST_HOST = (
    "another host of this run has stopped or does not answer (what JAX said stands above):"
    " start all hosts again, and the run resumes from its last checkpoint"
)


def run_on_hosts(
    run: Callable[[], None], coordinator: str | None, n_hosts: int | None, host: int | None
) -> int:
    """Calls `run` after joining the other hosts as `hosts.connect` does; returns the exit status.

    Without a coordinator there are none, and it is called at once.
    """
    if coordinator in (None, "auto"):
        is_complete = n_hosts is None and host is None
    else:
        is_named = re.fullmatch(r"[!-~]+:\d+", coordinator) is not None
        is_complete = is_named and n_hosts is not None and host is not None and 0 <= host < n_hosts
    if not is_complete:
        raise UserError(
            "several hosts need --coordinator=auto, or --coordinator=HOST:PORT with --num_hosts=N"
            " and --host=I, 0 <= I < N"
        )
    if coordinator is None:
        run()
        return 0

    def connect_and_run() -> None:
        from cocondenser_jax.pretrain.hosts import connect

        connect(coordinator, n_hosts, host, heartbeat=HEARTBEAT_SECONDS)
        run()

    return supervise(connect_and_run)


def supervise(run: Callable[[], None]) -> int:
    """Calls `run` in a child process, and returns its exit status, explained if a host was lost.

    JAX (0.10.2; described in https://github.com/jax-ml/jax/pull/39095) ends it by abort(), from a
    thread that is not Python's, after which nothing in that process can print. The child ends with
    its parent, whatever ends that. A SIGTERM, SIGHUP or Ctrl-C reaches it as the SIGTERM that JAX
    catches, the third as SIGKILL.
    """
    alive, held = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(held)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # a terminal sends it to both
        threading.Thread(target=_end_with_parent, args=(alive,), daemon=True).start()
        try:
            run()
        except UserError as error:
            # At once: JAX would wait at its end for the other hosts, which wait for this one.
            print(f"cocondenser: {error}", file=sys.stderr, flush=True)
            os._exit(2)
        return 0

    def pass_on(n_heard: int, number: int) -> None:
        os.kill(child, signal.SIGTERM if n_heard <= PATIENCE else signal.SIGKILL)

    with listening(pass_on):
        _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGABRT:
        print(f"cocondenser: {_LOST_HOST}", file=sys.stderr)
        return LOST_HOST
    return code if code >= 0 else 128 - code


def _end_with_parent(alive: int) -> None:
    os.read(alive, 1)  # nothing is ever written: it returns when the parent is gone
    os._exit(1)
