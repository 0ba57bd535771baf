"""Signals that ask a run to stop: it finishes the current step, saves and ends."""

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def between_steps(run: Callable[[Callable[[int], int]], None]) -> None:
    """Calls `run(stop_after)`; `run` calls `stop_after(step)` after each step.

    `stop_after` returns the number of the signal that asked the run to stop, or 0.

    Until its first call there is nothing to save, and a signal ends the process immediately; so
    does a second signal. Under `nohup`, SIGHUP stays ignored. Only the main thread receives
    signals.
    """
    requests: list[int] = []
    numbers = []
    if threading.current_thread() is threading.main_thread():
        numbers = [each for each in STOP_SIGNALS if signal.getsignal(each) != signal.SIG_IGN]

    def answer(number: int, _: Any) -> None:
        requests.append(number)
        handle(signal.SIG_DFL)
        # Not logged: the signal may have interrupted the logger.
        os.write(2, b"stopping after this step to save; a second signal ends the run at once\n")

    def handle(handler: Any) -> dict[signal.Signals, Any]:
        return {each: signal.signal(each, handler) for each in numbers}

    def stop_after(step: int) -> int:
        if not requests:
            handle(answer)
        return requests[0] if requests else 0

    before = handle(signal.SIG_DFL)
    try:
        run(stop_after)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
