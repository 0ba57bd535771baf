"""Prints results; escapes control characters, which may come from files."""

import contextlib
import logging
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from cocondenser_jax.errors import escape_control, shortened
from cocondenser_jax.files.runs import flatten
from cocondenser_jax.files.whole import write_json

if TYPE_CHECKING:  # --help loads no NumPy
    from cocondenser_jax.retriever.data.layouts import Passage

_SECONDS_BETWEEN_LINES = 30  # of a progress bar
_INDENT = 5  # characters before a passage's text


class LogFormatter(logging.Formatter):
    """Escapes control characters in messages, which may quote files."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the message with its line breaks."""
        return "\n".join(map(escape_control, super().format(record).split("\n")))


@contextlib.contextmanager
def progress_as_lines() -> Iterator[None]:
    """Makes progress bars print occasional lines if stderr is not a terminal.

    Otherwise, redrawn bars would fill a log file.
    """
    if sys.stderr.isatty():
        yield
        return
    redraw = tqdm.display
    tqdm.display = _print_bar
    try:
        yield
    finally:
        tqdm.display = redraw


def _print_bar(bar: Any, msg: str | None = None, pos: int | None = None) -> bool:
    """Replaces `tqdm.display`: prints a bar rarely, and at its end if it is to remain."""
    has_ended = bar.disable  # then tqdm ends the line
    now = time.time()
    if has_ended and msg is None:
        bar.fp.write(str(bar))
    elif not has_ended and now - getattr(bar, "printed_at", now) >= _SECONDS_BETWEEN_LINES:
        bar.fp.write(f"{bar}\n")
        bar.fp.flush()
        bar.printed_at = now
    if not hasattr(bar, "printed_at"):
        bar.printed_at = now
    return True


def print_text(text: Any) -> None:
    """Prints a line."""
    print(escape_control(str(text)))


def print_command(*words: str) -> None:
    """Prints the next command, ready to copy."""
    print_text(f"next: cocondenser {shlex.join(words)}")


def print_search(query: str, hits: Sequence[tuple[float, "Passage"]], nothing: str) -> None:
    """Prints a query and its hits: rank, id, title, score and the start of each passage.

    `nothing` is printed if there are no hits.
    """
    print_text(f'"{query}"')
    width = shutil.get_terminal_size().columns - _INDENT
    for rank, (score, passage) in enumerate(hits, start=1):
        name = f"{passage.id}  {passage.title}".rstrip()
        print_text(f"{rank:3}  {name}  ({score:.2f})")
        for line in textwrap.wrap(shortened(passage.text, 300), max(width, 20)):
            print_text(f"{'':{_INDENT}}{line}")
    if not hits:
        print_text(f"  {nothing}")


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table; all columns except the first are right-aligned."""
    header, *rows = [[escape_control(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for first, *others in (header, *rows):
        cells = [f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True)]
        print("  ".join([f"{first:<{widths[0]}}", *cells]).rstrip())


def print_metrics(metrics: Mapping[str, Any], json_out: Path | None) -> None:
    """Prints one name and value per line; also writes them to `json_out`, if given.

    Nested names are joined by dots; None and empty values are not printed.
    """
    flat = {name: value for name, value in flatten(metrics).items() if value not in (None, "", [])}
    width = max(map(len, flat))
    for name, value in flat.items():
        shown = value
        if isinstance(value, bool):
            shown = "yes" if value else "no"
        elif isinstance(value, float):
            shown = f"{value:.4f}"
        elif isinstance(value, int):
            shown = f"{value:,}"
        print_text(f"{name:<{width}}  {shown}")
    if json_out:
        write_json(json_out, metrics)
