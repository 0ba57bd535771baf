"""Where the scripts write their figures, and how they print them."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cocondenser_jax.cli.flags import print_table


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """Adds --out, the plot, and --json_out."""
    plot = "the plot: a .png or .svg file"
    parser.add_argument("--out", type=_plot_file, required=True, help=plot)
    parser.add_argument("--json_out", type=Path, help="also write the results to this JSON file")


def _plot_file(text: str) -> Path:
    if Path(text).suffix not in (".png", ".svg"):
        raise argparse.ArgumentTypeError(f"expected a .png or .svg file, not {text!r}")
    return Path(text)


def print_columns(
    head: str, columns: Mapping[str, Sequence[float]], numbers: Iterable[int]
) -> None:
    """Prints the values of each column at some numbers, which count from 1."""
    rows = []
    for n in numbers:
        cells = [f"{values[n - 1]:.4f}" if n <= len(values) else "" for values in columns.values()]
        rows.append([f"{n}", *cells])
    print_table([head, *columns], rows)
