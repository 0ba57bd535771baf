"""The one exception for what a user can cause and fix, and how messages are worded."""

from collections.abc import Mapping, Sequence
from typing import Any

# From U+DC80 on, Python has the bytes of a path that are not UTF-8.
_ESCAPED = set(range(32)) - {ord("\t")} | {*range(127, 160)} | {*range(0xDC80, 0xDD00)}
_ESCAPES = {i: f"\\x{i & 255:02x}" for i in _ESCAPED}


class UserError(Exception):
    """Bad input. The message is one line: what was wrong and what was expected.

    The command line prints it without a traceback and exits with status 2.
    """

    def __init__(self, message: str):
        """Joins the lines of the message, which may quote a file or another library."""
        super().__init__(visible(" ".join(message.splitlines())))


def visible(text: str) -> str:
    r"""Escapes control characters but the tab: in a terminal, they could do more than print.

    ESC becomes `\x1b`; so do the bytes of a path that are not UTF-8.
    """
    return text.translate(_ESCAPES)


def first_line(error: BaseException) -> str:
    """Returns the first line of an exception's message, or the name of its type if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def first_three(names: Sequence[str]) -> str:
    """Returns "a, b, c, ...": up to three names, and dots for any others."""
    return ", ".join([*names[:3], *(["..."] if len(names) > 3 else [])])


def first_words(text: str, n: int) -> str:
    """Returns the start of a text, of at most about `n` characters, on one line."""
    # textwrap.shorten leaves nothing of a text without spaces, and reads all of a long one.
    text = " ".join(text[: 10 * n].split())
    return text if len(text) <= n else text[:n].rsplit(" ", 1)[0] + " …"


def require_same(started: str, earlier: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises a UserError naming the values of `now` with which `started` was not started."""
    differences = [
        f"{key}={earlier.get(key)!r}, now it is {value!r}"
        for key, value in now.items()
        if earlier.get(key) != value
    ]
    if differences:
        raise UserError(
            f"{started} was started with {'; '.join(differences)}: choose a new folder, or remove"
            " it first"
        )
