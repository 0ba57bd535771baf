"""Signals that ask a run to stop: answered at once, obeyed between two steps."""

import logging
import os
import signal
import threading
from collections.abc import Callable

HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE = 2  # signals that wait for the step to end: whoever presses Ctrl-C twice loses nothing
logger = logging.getLogger(__name__)


def between_steps(run: Callable[[Callable[[int], bool]], None]) -> None:
    """Calls `run` with a function, to be called with each step after it, that says whether to stop.

    Before its first call there is nothing to save, and a signal ends the process at once, with
    status 0. Afterwards the third signal does. Under `nohup`, SIGHUP stays ignored. Only the main
    thread can set handlers; in others, no signal is heard.
    """
    stepped = threading.Event()
    asked = threading.Event()

    def is_to_stop(step: int) -> bool:
        stepped.set()
        return asked.is_set()

    if threading.current_thread() is not threading.main_thread():
        run(is_to_stop)
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    # In a thread of its own: Python calls handlers in the main thread alone, and not while that
    # compiles or waits for a device.
    def listen() -> None:
        n_heard = 0
        while received := os.read(reader, 1):
            if received[0] not in HEARD:
                continue
            n_heard += 1
            if not stepped.is_set():
                logger.info("stopped before its first step: there was nothing to save")
                os._exit(0)
            if n_heard > PATIENCE:
                os._exit(128 + received[0])
            asked.set()
            logger.info("stops and saves after this step; the third signal ends it at once")

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(writer)
    numbers = [each for each in HEARD if signal.getsignal(each) != signal.SIG_IGN]
    # The handlers do nothing: the number of a signal that has one is written to the pipe.
    handlers = {each: signal.signal(each, lambda number, frame: None) for each in numbers}
    try:
        run(is_to_stop)
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
        signal.set_wakeup_fd(before)
        os.close(writer)
        thread.join()
        os.close(reader)
