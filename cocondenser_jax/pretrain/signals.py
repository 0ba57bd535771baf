"""Signals that ask a run to stop: heard between two steps, so that it can save first."""

import logging
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from types import FrameType

HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE = 2  # signals that wait for the step to end: whoever presses Ctrl-C twice loses nothing
logger = logging.getLogger(__name__)


def between_steps(run: Callable[[Callable[[int], bool]], None]) -> None:
    """Calls `run` with a function, to be called with each step after it, that says whether to stop.

    Before its first call there is nothing to save, and a signal ends the process at once, with
    status 0. Afterwards the third signal does. Only the main thread can handle signals; called in
    others, nothing stops the run.
    """
    if threading.current_thread() is not threading.main_thread():
        run(lambda step: False)
        return
    heard: list[int] = []
    stepped = threading.Event()

    def is_to_stop(step: int) -> bool:
        stepped.set()
        return bool(heard)

    def hear(number: int, frame: FrameType | None) -> None:
        heard.append(number)  # and no more: another signal may come while a handler prints

    handlers = {each: signal.signal(each, hear) for each in not_ignored()}
    try:
        # In a thread: the first step is compiled for minutes, and a later one may take as long.
        # Python calls handlers in the main thread only, and there only when it is not in C++.
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(run, is_to_stop)
            n_answered = 0
            # A wait without end would hold up a signal that comes just before it.
            while not wait([running], timeout=0.1).done:
                if len(heard) > n_answered:
                    n_answered += 1
                    _answer(heard[:n_answered], stepped.is_set())
            running.result()
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)


def _answer(heard: list[int], stepped: bool) -> None:
    """Says what the last of the signals `heard` does, or ends the process."""
    if not stepped:
        logger.info("stopped before its first step: there was nothing to save")
        os._exit(0)
    if len(heard) > PATIENCE:
        os._exit(128 + heard[-1])
    left = PATIENCE + 1 - len(heard)
    more = "once more" if left == 1 else f"{left} more times"
    logger.info("stops and saves after this step; signal %s to stop now", more)


def not_ignored() -> list[signal.Signals]:
    """Returns the signals to hear: SIGHUP is not among them under `nohup`."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [each for each in HEARD if not (ignored and each == signal.SIGHUP)]
