"""Signals that ask a run to stop: it saves after the step that it is at."""

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def between_steps(run: Callable[[Callable[[int], bool]], None]) -> None:
    """Calls `run(should_stop)`; `run` calls `should_stop(step)` after each step, to ask whether to.

    Until its first call there is nothing to save, and a signal ends the process at once; so does
    the next after one that was answered. Under `nohup`, SIGHUP stays ignored. Only the main thread
    hears signals.
    """
    asked = threading.Event()
    is_main = threading.current_thread() is threading.main_thread()
    heard = [each for each in HEARD if is_main and signal.getsignal(each) != signal.SIG_IGN]

    def answer(*_: Any) -> None:
        asked.set()
        handle(signal.SIG_DFL)
        # Not a log message: what the signal interrupts may be writing one.
        os.write(2, b"stops and saves after this step; the next signal ends it at once\n")

    def handle(handler: Any) -> dict[signal.Signals, Any]:
        return {each: signal.signal(each, handler) for each in heard}

    def is_to_stop(step: int) -> bool:
        if not asked.is_set():
            handle(answer)
        return asked.is_set()

    before = handle(signal.SIG_DFL)
    try:
        run(is_to_stop)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
