"""The exception for what a user can cause and fix, and how messages are worded."""

import difflib
import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

# Characters that a terminal may act on. From U+DC80 on, Python has the bytes of a path that are not
# UTF-8.
_CONTROL = [*range(9), *range(10, 32), *range(127, 160), *range(0xDC80, 0xDD00)]
_ESCAPES = {number: f"\\x{number & 255:02x}" for number in _CONTROL}

# The extra of setup.py that a package comes with; what is not here comes with every installation.
EXTRAS = {
    "pretrain": ("flax", "grain", "jax", "jaxtyping", "optax"),
    "retrieval": (
        "Stemmer",
        "accelerate",
        "bm25s",
        "faiss",
        "numba",
        "sentence_transformers",
        "torch",
    ),
    "report": ("jinja2", "markupsafe", "matplotlib"),
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
    "trackio": ("trackio",),
    "tfds": ("tensorflow_datasets",),
    "cluster": ("datatrove",),
    "ray": ("ray",),
    "ir": ("ir_datasets",),
}
_LONGEST_MESSAGE = 300  # characters of another library's message


class UserError(Exception):
    """Bad input. The message is one line: what was wrong and what was expected.

    The command line prints it without a traceback and exits with status 2.
    """

    def __init__(self, message: str):
        """Joins the lines of the message, which may quote a file or another library."""
        super().__init__(escape_control(" ".join(message.splitlines())))


class UnsupportedError(UserError):
    """A model that is as it should be, but that the Flax network does not compute."""

    def __init__(self, place: object, reason: str, hint: str = "") -> None:
        """Names the file or folder, what it holds that is not computed, and what to do instead."""
        super().__init__(f"{place} {reason} ({hint})" if hint else f"{place} {reason}")
        self.reason = reason


@functools.cache
def log_once(logger: logging.Logger, line: str, level: int = logging.WARNING) -> None:
    """Logs a line that would come again each time a file is read."""
    logger.log(level, "%s", line)


def escape_control(text: str) -> str:
    r"""Escapes control characters but the tab: in a terminal, they could do more than print.

    ESC becomes `\x1b`; so do the bytes of a path that are not UTF-8.
    """
    return text.translate(_ESCAPES)


def first_line(error: BaseException) -> str:
    """Returns the first line of an exception's message, or the name of its type if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def whole_message(error: BaseException) -> str:
    """Returns an exception's message, of about 300 characters, or its type where it has none.

    Some libraries say in the first line that something failed, and only in the last one what: of a
    longer message the middle is left out.
    """
    words = " ".join(str(error).split()) or type(error).__name__
    if len(words) <= _LONGEST_MESSAGE:
        return words
    half = _LONGEST_MESSAGE // 2
    return f"{words[:half].rstrip()} ... {words[-half:].lstrip()}"


def first_three(names: Sequence[str]) -> str:
    """Returns "a, b, c, ...": up to three names, and dots for any others."""
    return ", ".join([*names[:3], *(["..."] if len(names) > 3 else [])])


def shortened(text: str, n: int) -> str:
    """Returns the start of a text, of at most about `n` characters, on one line."""
    # textwrap.shorten leaves nothing of a text without spaces, and reads all of a long one.
    text = " ".join(text[: 10 * n].split())
    return text if len(text) <= n else text[:n].rsplit(" ", 1)[0] + " …"


def lookup(known: Mapping[str, Any], name: str, kind: str) -> Any:
    """Returns what is known by a name; raises a UserError with similar names for any other."""
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.3) or list(known)[:3]
        raise UserError(f"no {kind} {name!r}: did you mean {' or '.join(near)}?")
    return known[name]


def name_extra(error: ImportError) -> UserError | None:
    """Words an import that failed as the extra to install; None if it is of no extra."""
    package = (error.name or "").partition(".")[0]
    for extra, packages in EXTRAS.items():
        if package in packages:
            wanted = f"cocondenser-jax[{extra}]"
            return UserError(f"{package} is missing; it comes with: pip install '{wanted}'")
    return None
