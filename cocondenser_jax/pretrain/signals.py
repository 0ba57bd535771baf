"""Signals that ask a run to stop: heard between two steps, so that it can save first."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

HEARD = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def postponed() -> Iterator[Callable[[], int | None]]:
    """Yields a function that returns the signal that was sent since, None where there was none.

    Whatever signal comes second ends the process at once. Only the main thread can hear signals; in
    others nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    heard: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        for each in HEARD:
            signal.signal(each, signal.SIG_DFL)

    before = {each: signal.signal(each, hear) for each in HEARD}
    try:
        yield lambda: heard[0] if heard else None
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def obey(number: int) -> None:
    """Ends the program as the signal asks: SIGTERM with status 0, Ctrl-C as an interruption.

    Raises:
      SystemExit: for SIGTERM.
      KeyboardInterrupt: for Ctrl-C.
    """
    if number == signal.SIGTERM:
        raise SystemExit(0)
    raise KeyboardInterrupt
