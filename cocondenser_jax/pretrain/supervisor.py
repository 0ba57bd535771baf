"""A training on several hosts, watched by a process that can still speak when it is aborted."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

from cocondenser_jax.errors import UserError
from cocondenser_jax.pretrain.signals import HEARD, PATIENCE

LOST_HOST = 3  # exit status
_LOST_HOST = (
    "another host of this run has stopped or does not answer (what JAX said stands above):"
    " start all hosts again, and the run goes on from its last checkpoint"
)


def watched(run: Callable[[], None]) -> int:
    """Calls `run` in a child process, and tells when it was ended because a host was lost.

    JAX ends it by abort(), from a thread that is not Python's, after which nothing of that process
    can say a word. The child ends with its parent, whatever ends that. A SIGTERM or Ctrl-C reaches
    it as the SIGTERM that JAX knows, the third as SIGKILL. Must be called before JAX is loaded: its
    threads do not survive a fork.

    Returns:
      The exit status.
    """
    alive, held = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(held)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal tells both
        threading.Thread(target=_end_with_parent, args=(alive,), daemon=True).start()
        _run(run)
        return 0
    heard: list[int] = []

    def tell(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        os.kill(child, signal.SIGTERM if len(heard) <= PATIENCE else signal.SIGKILL)

    for number in HEARD:
        signal.signal(number, tell)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == -signal.SIGABRT:
        print(f"cocondenser: {_LOST_HOST}", file=sys.stderr)
        return LOST_HOST
    return status if status >= 0 else 128 - status


def _run(run: Callable[[], None]) -> None:
    """Ends the process at once after a mistake.

    Else JAX would wait at its end for the other hosts, who wait for this one.
    """
    try:
        run()
    except UserError as error:
        print(f"cocondenser: {error}", file=sys.stderr, flush=True)
        os._exit(2)


def _end_with_parent(alive: int) -> None:
    os.read(alive, 1)  # nothing is ever written: it returns when the parent is gone
    os._exit(1)
