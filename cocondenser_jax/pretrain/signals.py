"""Signals that ask a run to stop: heard between two steps, so that it can save first."""

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType

HEARD = (signal.SIGINT, signal.SIGTERM)
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

    def hear(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        if len(heard) == PATIENCE:
            for each in HEARD:
                signal.signal(each, signal.SIG_DFL)

    def is_to_stop() -> bool:
        stepped.set()
        return bool(heard)

    before = {each: signal.signal(each, hear) for each in HEARD}
    try:
        with _exit_before(stepped):
            yield is_to_stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextlib.contextmanager
def _exit_before(stepped: threading.Event) -> Iterator[None]:
    """Ends the process at once if a signal comes before the event.

    The first step is compiled for minutes, in which Python runs no handler. But it writes a byte to
    the wake-up descriptor at once, which a thread can read.
    """

    def listen() -> None:
        if reader.recv(1) and not stepped.is_set():
            logger.info("stopped before its first step: there was nothing to save")
            os._exit(0)

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
