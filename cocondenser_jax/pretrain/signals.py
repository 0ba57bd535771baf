"""Signals that ask a run to stop: it saves after the step that it is at."""

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def between_steps(run: Callable[[Callable[[int], bool]], None]) -> None:
    """Calls `run(should_stop)`; `run` calls `should_stop(step)` after each step, to ask whether to.

    Until its first call there is nothing to save, and a signal ends the process at once; so does
    the next after one that was answered. Under `nohup`, SIGHUP stays ignored. Only the main thread
    gets signals.
    """
    request = threading.Event()
    numbers = []
    if threading.current_thread() is threading.main_thread():
        numbers = [each for each in STOP_SIGNALS if signal.getsignal(each) != signal.SIG_IGN]

    def answer(*_: Any) -> None:
        request.set()
        handle(signal.SIG_DFL)
        # Not a log message: what the signal interrupts may be writing one.
        os.write(2, b"stops and saves after this step; the next signal ends it at once\n")

    def handle(handler: Any) -> dict[signal.Signals, Any]:
        return {each: signal.signal(each, handler) for each in numbers}

    def is_to_stop(step: int) -> bool:
        if not request.is_set():
            handle(answer)
        return request.is_set()

    before = handle(signal.SIG_DFL)
    try:
        run(is_to_stop)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
