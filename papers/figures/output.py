"""Shared parts of the scripts in this folder and of `papers`: running, flags, printing."""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from cocondenser_jax.cli.output import print_table
from cocondenser_jax.errors import UserError


def run_script(
    parser: argparse.ArgumentParser,
    draw: Callable[[argparse.Namespace], None],
    argv: Sequence[str] | None,
) -> None:
    """Calls `draw` with the flags; a UserError becomes one line and exit status 2."""
    arguments = parser.parse_args(argv)
    try:
        draw(arguments)
    except UserError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """Adds --out, the plot, and --json_out."""
    plot = "the plot: a .png or .svg file"
    parser.add_argument("--out", type=_plot_file, required=True, help=plot)
    parser.add_argument("--json_out", type=Path, help="also write the results to this JSON file")


def _plot_file(text: str) -> Path:
    if Path(text).suffix not in (".png", ".svg"):
        raise argparse.ArgumentTypeError(f"expected a .png or .svg file, not {text!r}")
    return Path(text)


def at_least(least: int) -> Callable[[str], int]:
    """Returns a flag's type: a whole number from `least`."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"expected a whole number from {least}, not {text!r}")
        return int(text)

    return read


def whole_numbers(text: str) -> list[int]:
    """Reads a flag's whole numbers from 1, separated by commas."""
    return [at_least(1)(number) for number in text.split(",")]


def print_columns(
    head: str, columns: Mapping[str, Sequence[float]], numbers: Iterable[int]
) -> None:
    """Prints the values of each column at some positions, counted from 1."""
    rows = []
    for n in numbers:
        cells = [f"{values[n - 1]:.4f}" if n <= len(values) else "" for values in columns.values()]
        rows.append([f"{n}", *cells])
    print_table([head, *columns], rows)
