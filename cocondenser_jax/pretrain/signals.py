"""Signals that ask a run to stop: heard between two steps, so that it can save first."""

import logging
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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

    def answer(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        if not stepped.is_set():
            logger.info("stopped before its first step: there was nothing to save")
            os._exit(0)
        if len(heard) > PATIENCE:
            os._exit(128 + number)
        left = PATIENCE + 1 - len(heard)
        more = "once more" if left == 1 else f"{left} more times"
        logger.info("stops and saves after this step; signal %s to stop now", more)

    handlers = {each: signal.signal(each, answer) for each in not_ignored()}
    try:
        # In a thread: the first step is compiled for minutes, and a later one may take as long.
        # Python calls handlers in the main thread only, and there only when it is not in C++.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(run, is_to_stop).result()
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)


def not_ignored() -> list[signal.Signals]:
    """Returns the signals to hear: SIGHUP is not among them under `nohup`."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [each for each in HEARD if not (ignored and each == signal.SIGHUP)]
