r"""Plot logged values of several training runs by step.

python -m papers.figures.curves --run=BERT,runs/bert --run=Condenser,runs/condenser --key=loss \
      --until=4600 --log_y --out=loss.svg
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from cocondenser_jax.cli.output import print_table
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.metrics import logged_lines
from cocondenser_jax.files.whole import write_json
from papers.figures.output import add_outputs, at_least, run_script
from papers.figures.plot import Axis, write_plot


def read_curve(folder: Path, key: str, until: int) -> dict[float, float]:
    """Reads a run's logged values of `key` by step, up to step `until` (0: to the end).

    Raises:
      UserError: if the run has no such values.
    """
    path = folder / "metrics.jsonl"
    logged = [values for _, values in logged_lines(path) if key in values]
    if not logged:
        raise UserError(f"{path} has no {key}")
    curve = {values["step"]: values[key] for values in logged}
    first = min(curve)
    if not until:
        return curve
    if until < first:
        raise UserError(f"{path} has no {key} before step {first:g}, and --until is {until}")
    return {step: value for step, value in curve.items() if step <= until}


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the script."""
    run_script(make_parser(), _draw, argv)


def make_parser() -> argparse.ArgumentParser:
    """Declares the flags."""
    parser = argparse.ArgumentParser(prog="curves", allow_abbrev=False)
    run = "NAME,FOLDER: the line, and the run folder whose metrics.jsonl it is; may be repeated"
    parser.add_argument("--run", type=_named_folder, required=True, action="append", help=run)
    parser.add_argument("--key", required=True, help="what is drawn, as metrics.jsonl names it")
    until = "the last step drawn; 0: all (default: 0)"
    parser.add_argument("--until", type=at_least(0), default=0, help=until)
    parser.add_argument("--log_y", action="store_true", help="a logarithmic vertical axis")
    add_outputs(parser)
    return parser


def _named_folder(text: str) -> tuple[str, Path]:
    name, comma, folder = text.partition(",")
    if not comma:
        raise argparse.ArgumentTypeError(f"expected NAME,FOLDER, not {text!r}")
    return name, Path(folder)


def _draw(arguments: argparse.Namespace) -> None:
    lines = {
        name: read_curve(folder, arguments.key, arguments.until) for name, folder in arguments.run
    }
    rows = []
    for name, curve in lines.items():
        values = list(curve.values())
        cells = [f"{value:.4f}" for value in (values[0], values[-1], min(values), max(values))]
        rows.append([name, str(len(values)), *cells])
    print_table(["", "points", "first", "last", "lowest", "highest"], rows)
    if arguments.json_out:
        write_json(arguments.json_out, {"key": arguments.key, "lines": lines})
    write_plot(arguments.out, arguments.key, lines, Axis("step"), log_y=arguments.log_y)


if __name__ == "__main__":
    main()
