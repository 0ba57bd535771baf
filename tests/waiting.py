"""Waiting for what another process does."""

import time
from collections.abc import Callable


def wait_for(condition: Callable[[], object], what: str, seconds: float = 30) -> None:
    """Returns as soon as a condition holds; fails with `what` if it does not in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)
