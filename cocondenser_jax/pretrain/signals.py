"""Signals that ask a run to stop: heard between two steps, so that it can save first."""

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator

HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE = 2  # signals that wait for the step to end: whoever presses Ctrl-C twice loses nothing
logger = logging.getLogger(__name__)


@contextlib.contextmanager
def postponed() -> Iterator[Callable[[], bool]]:
    """Yields a function, to be called after each step, that says whether the run is to stop.

    Before its first call there is nothing to save, and a signal ends the process at once, with
    status 0. Afterwards the third signal does. Only the main thread can handle signals; in others
    nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    heard: list[int] = []
    stepped = threading.Event()

    def is_to_stop() -> bool:
        stepped.set()
        return bool(heard)

    handlers = {each: signal.signal(each, lambda n, _: heard.append(n)) for each in not_ignored()}
    try:
        with _answers(stepped):
            yield is_to_stop
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)


def not_ignored() -> list[signal.Signals]:
    """Returns the signals to hear: SIGHUP is not among them under `nohup`."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [each for each in HEARD if not (ignored and each == signal.SIGHUP)]


@contextlib.contextmanager
def _answers(stepped: threading.Event) -> Iterator[None]:
    """Answers each signal at once: ends the process before the event, or says what comes.

    The first step is compiled for minutes, and a later one may take as long; meanwhile Python runs
    no handler. But it writes a byte to the wake-up descriptor at once, which a thread can read.
    """

    def listen() -> None:
        n_heard = 0
        while number := reader.recv(1):
            if number[0] not in HEARD:  # another signal that has a handler
                continue
            n_heard += 1
            if not stepped.is_set():
                logger.info("stopped before its first step: there was nothing to save")
                os._exit(0)
            if n_heard > PATIENCE:
                os._exit(128 + number[0])
            left = PATIENCE + 1 - n_heard
            more = "once more" if left == 1 else f"{left} more times"
            logger.info("stops and saves after this step; signal %s to stop now", more)

    reader, writer = socket.socketpair()
    writer.setblocking(False)
    outer = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(outer)
        writer.close()
        listener.join()
        reader.close()
