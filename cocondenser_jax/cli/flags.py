"""What the commands share: their type, common flags, how results are printed."""

import argparse
import logging
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from cocondenser_jax.errors import UserError, escape_control, first_words
from cocondenser_jax.storage.files import write_json

Arguments = argparse.Namespace
# A command: adds its flags, yields an example for its help, gets their values, and does its work.
Command = Generator[str, Arguments, None]
StatusCommand = Generator[str, Arguments, int]  # the same, with an exit status other than 0


class LogFormatter(logging.Formatter):
    """Escapes control characters: a message may quote a file."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the message, its lines as they are."""
        return "\n".join(map(escape_control, super().format(record).split("\n")))


class Parser(argparse.ArgumentParser):
    """Answers a wrong flag with one line instead of the usage."""

    def error(self, message: str) -> NoReturn:
        """Raises a UserError, which `main` prints."""
        raise UserError(f"{message} (see {self.prog} --help)")

    def flag(self, name: str, does: str, default: Any = None, **options: Any) -> None:
        """Adds a flag; its default, if it has one, is the type of its values and ends its help."""
        if default is not None:
            options = {"default": default, "type": type(default), **options}
            does += f" (default: {default})"
        self.add_argument(name, help=does, **options)

    def path(self, name: str, does: str, *, required: bool = True, **options: Any) -> None:
        """Adds a flag for a file or folder."""
        self.add_argument(name, help=does, type=Path, required=required, **options)

    def add_config(self) -> None:
        """Adds --config; what follows as --config.KEY=VALUE is left in `arguments.overrides`."""
        config = "the experiment, FILE.py[:ARGUMENT]; override a setting with --config.KEY=VALUE"
        self.flag("--config", config, required=True)

    def add_json_out(self) -> None:
        """Adds --json_out, for commands that print results."""
        self.path("--json_out", "also write the results to this JSON file", required=False)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Ends after --help, once it is written: a full device can still be reported."""
        sys.stdout.flush()
        super().exit(status, message)


def at_least(least: int) -> Callable[[str], int]:
    """Returns a flag's type: a whole number from `least`."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"expected a whole number from {least}, not {text!r}")
        return int(text)

    return read


def part(text: str) -> tuple[int, int]:
    """Reads which part of a work a machine has to do: i/n, from 0."""
    index, slash, count = text.partition("/")
    if not (slash and index.isdigit() and count.isdigit() and int(index) < int(count)):
        raise argparse.ArgumentTypeError(f"{text!r}: expected i/n with 0 <= i < n, such as 0/8")
    return int(index), int(count)


def whole_numbers(text: str) -> list[int]:
    """Reads a flag's whole numbers from 1, separated by commas."""
    return [at_least(1)(part) for part in text.split(",")]


def numbers(text: str) -> list[float]:
    """Reads a flag's numbers, separated by commas."""
    return [float(part) for part in text.split(",")]


def chosen(arguments: Arguments, names: str) -> dict[str, Any]:
    """Returns those of the flags, named with spaces between, that have a value: to be passed on."""
    flags = {name: getattr(arguments, name) for name in names.split()}
    return {name: value for name, value in flags.items() if value is not None}


def require_together(arguments: Arguments, **needed: str) -> None:
    """Raises a UserError for a flag that is given without the one it goes with: {flag: other}."""
    flags = vars(arguments).items()
    given = {flag for flag, value in flags if value is not None and value is not False}
    for flag, other in needed.items():
        if flag in given and other not in given:
            raise UserError(f"--{flag} goes with --{other}")


def print_search(query: str, hits: Sequence[tuple[float, str, str]]) -> None:
    """Prints a query and what was found for it: score, title and text of each passage."""
    print(f'"{escape_control(query)}"')
    for score, title, text in hits:
        print(f"  {score:8.2f}  {escape_control(title)}")
        print(f"{'':12}{escape_control(first_words(text, 300))}")


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints rows of cells under a header; all columns but the first are aligned to the right."""
    header, *rows = [[escape_control(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for first, *others in (header, *rows):
        cells = [f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True)]
        print("  ".join([f"{first:<{widths[0]}}", *cells]).rstrip())


def print_metrics(metrics: Mapping[str, Any], json_out: Path | None) -> None:
    """Prints one name and value per line, and writes them all where asked."""
    width = max(map(len, metrics))
    for name, value in metrics.items():
        shown = f"{value:,}" if isinstance(value, int) else value
        shown = f"{value:.4f}" if isinstance(value, float) else escape_control(str(shown))
        print(f"{name:<{width}}  {shown}")
    if json_out:
        write_json(json_out, metrics)
