r"""Plot a measure of several models by the number of rows they were trained on.

python -m papers.figures.sizes --measure=MRR@10 --point=BERT,1000,a.json --point=BERT,10000,b.json \
      --out=sizes.svg

Each file is what `cocondenser evaluate --json_out` wrote.
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from cocondenser_jax.cli.output import print_table
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import read_json, write_json
from papers.figures.output import add_outputs, at_least, run_script
from papers.figures.plot import Axis, write_plot

Point = tuple[str, int, Path]  # the line, the number of rows, the file of results


def read_points(points: Iterable[Point], measure: str) -> dict[str, dict[float, float]]:
    """Reads a measure from files of results.

    Returns:
      {name of the line: {number of rows: the measure}}, from few rows to many.

    Raises:
      UserError: if a file lacks the measure.
    """
    lines: dict[str, dict[float, float]] = {}
    for name, size, path in sorted(points, key=lambda point: point[1]):
        result = read_json(path)
        figures = result.get("mean", result)
        if measure not in figures:
            raise UserError(f"{path} has no {measure}: expected one of {', '.join(figures)}")
        lines.setdefault(name, {})[size] = float(figures[measure])
    return lines


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the script."""
    run_script(make_parser(), _draw, argv)


def make_parser() -> argparse.ArgumentParser:
    """Declares the flags."""
    parser = argparse.ArgumentParser(prog="sizes", allow_abbrev=False)
    measure = "what is drawn, as the files name it"
    parser.add_argument("--measure", required=True, help=measure)
    point = "NAME,ROWS,FILE: the line, the number of rows, the results; may be repeated"
    parser.add_argument("--point", type=_point, required=True, action="append", help=point)
    add_outputs(parser)
    return parser


def _point(text: str) -> Point:
    fields = text.split(",", 2)
    if len(fields) != 3:
        raise argparse.ArgumentTypeError(f"expected NAME,ROWS,FILE, not {text!r}")
    name, size, path = fields
    return name, at_least(1)(size), Path(path)


def _draw(arguments: argparse.Namespace) -> None:
    lines = read_points(arguments.point, arguments.measure)
    sizes = sorted({size for points in lines.values() for size in points})
    rows = [[name, *(_cell(points, size) for size in sizes)] for name, points in lines.items()]
    print_table(["", *map(str, sizes)], rows)
    if arguments.json_out:
        write_json(arguments.json_out, {"measure": arguments.measure, "lines": lines})
    write_plot(arguments.out, arguments.measure, lines, Axis("training rows", is_log=True))


def _cell(points: dict[float, float], size: float) -> str:
    return f"{points[size]:.4f}" if size in points else ""


if __name__ == "__main__":
    main()
