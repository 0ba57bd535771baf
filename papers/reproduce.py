"""Repeat a table of the papers, or a row of it, and compare with the published figures.

  python -m papers.reproduce --list
  python -m papers.reproduce co/table1 --row=cocondenser --dry_run

The .yaml files beside this one hold the tables, a file per paper, and the recipes of the commands:
the heads of recipes.yaml and condenser.yaml say what they contain.
"""

import argparse
import math
import shlex
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from cocondenser_jax.cli.output import print_table
from cocondenser_jax.errors import UserError, lookup
from cocondenser_jax.evaluation.significance import compare, correct, format_p
from cocondenser_jax.quickstart.steps import make_once
from cocondenser_jax.storage.files import read_json, write_json

# Peak bfloat16 operations a second: eight cores of a TPU v3, see pretrain/accelerators.py; NVIDIA's
# data sheets of A100 and H100 SXM, dense.
PEAKS = {"v3-8": 8 * 61.5e12, "A100": 312e12, "H100": 989e12}
UTILISATION = 0.4  # of the peak, assumed


class Grid(NamedTuple):
    """Numbers of epochs to choose from, each with the file of its `measure`."""

    files: dict[str, Path]
    measure: str


class Step(NamedTuple):
    """Commands as lists of words, and what they compute; or where people `get` the result."""

    commands: list[list[str]]
    flop: float
    get: str
    grid: Grid | None = None  # of the {epochs} of the commands


class Goal(NamedTuple):
    """What a recipe, `test`, measures for a row; `against`: the row that it is tested against."""

    row: str
    test: str
    file: Path
    figures: dict[str, float | None]
    against: str


class Comparison(NamedTuple):
    """A measured figure, averaged over seeds, beside the published one; None where unknown."""

    row: str
    test: str
    measure: str
    measured: float | None
    deviation: float | None  # over seeds
    published: float | None
    difference: float | None
    within: bool | None  # the table's tolerance
    p: float | None  # of the randomization test against another row
    corrected_p: float | None = None  # for the number of tests that are compared (Holm)


@cache
def load_files() -> dict[str, Any]:
    """Reads the .yaml files beside this one, by their names without the ending."""
    files = sorted(Path(__file__).parent.glob("*.yaml"))
    return {file.stem: yaml.safe_load(file.read_text("utf-8")) for file in files}


@cache
def load_manifest() -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads the tables by their names (`co/table1`), and the recipes by theirs."""
    tables: dict[str, Any] = {}
    recipes: dict[str, Any] = {}
    for file, content in load_files().items():
        if file == "recipes":
            recipes |= content
            continue
        recipes |= content.get("recipes", {})
        for name, table in content.get("tables", {}).items():
            tables[f"{file}/{name}"] = table
    return tables, recipes


def resolve_rows(
    table: Mapping[str, Any], rows: Sequence[str], workdir: Path, data: Path
) -> tuple[list[Goal], dict[Path, Step]]:
    """Finds what rows of a table measure (all, if none is named), and the unfinished steps.

    Everything is made in `workdir` from the user's `data`. The steps are in the order in which to
    run them, each by the file or folder that exists once it is finished.
    """
    goals: list[Goal] = []
    steps: dict[Path, Step] = {}
    for name in rows or table["rows"]:
        row = lookup(table["rows"], name, "row")
        given = table.get("with", {}) | row.get("with", {})
        for test, figures in (row.get("published") or row["measured"]).items():
            own = table.get("with", {}).get(test, {}) | row.get("with", {}).get(test, {})
            for seed in table.get("seeds", [0]):
                out, before = _resolve({"seed": seed} | given | own, test, workdir, data)
                file = out / load_manifest()[1][test].get("done", "")
                against = table.get("against", "").format_map(given)
                goals.append(Goal(name, test, file, figures, against))
                steps |= before
    return goals, steps


def _resolve(
    given: Mapping[str, Any], name: str, workdir: Path, data: Path
) -> tuple[Path, dict[Path, Step]]:
    """Returns the path that a recipe makes, and the unfinished steps that lead there."""
    recipe = load_manifest()[1][name]
    parameters = {**_fill(recipe.get("with", {}), given), **given}
    epochs = recipe.get("epochs", {"of": []})
    tried = {str(number): epochs["by"] | {"epochs": number} for number in epochs["of"]}
    values: dict[str, Any] = dict(parameters)
    steps: dict[Path, Step] = {}
    for key, need in (recipe.get("needs", {}) | tried).items():
        wanted = _fill(need if isinstance(need, dict) else {"recipe": need or key}, parameters)
        needed = wanted.pop("recipe")
        values[key], before = _resolve(parameters | wanted, needed, workdir, data)
        steps |= before
    out = Path(recipe["out"].format_map(values))
    if not recipe["out"].startswith("{"):  # with the path of what it needs
        out = (data if "get" in recipe else workdir) / out
    values["out"] = out
    finished = out / recipe.get("done", "")
    if finished.exists():
        return out, {}
    grid = None
    if tried:
        grid = Grid({number: values[number] for number in tried}, epochs["measure"])
        values["epochs"] = "{epochs}"
    lines = [shlex.split(line) for line in recipe.get("run", [])]
    commands = [[word.format_map(values) for word in line] for line in lines]
    flop = math.prod(float(str(factor).format_map(values)) for factor in recipe.get("flop", [0]))
    if commands or "get" in recipe:  # else it is another name for what it needs
        steps[finished] = Step(commands, flop, recipe.get("get", ""), grid)
    return out, steps


def _fill(texts: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {key: str(text).format_map(parameters) for key, text in texts.items()}


def run_steps(
    steps: Mapping[Path, Step], workdir: Path, execute: Callable[[Sequence[str]], int]
) -> None:
    """Runs steps by `execute`, which returns the exit status; a UserError if that is not 0.

    `seconds.json` in `workdir` gets how long each took.
    """
    for path, step in steps.items():
        if step.get:
            raise UserError(f"{path} is missing: {step.get}")

    def run(step: Step, _: Path) -> None:
        epochs = _best(step.grid) if step.grid else ""
        for words in step.commands:
            command = [word.replace("{epochs}", epochs) for word in words]
            if status := execute(command):
                raise UserError(f"exit status {status}: {shlex.join(command)}")

    for path, step in steps.items():
        make_once(workdir, path, partial(run, step))


def _best(grid: Grid) -> str:
    results = {number: read_json(file) for number, file in grid.files.items()}
    return max(results, key=lambda n: results[n].get("mean", results[n])[grid.measure])


def estimate_hours(steps: Mapping[Path, Step]) -> dict[str, float]:
    """Estimates the hours on one machine of each kind; only pre-training runs on a TPU."""
    on_gpu = sum(step.flop for step in steps.values())
    on_tpu = sum(step.flop for step in steps.values() if "pretrain" in str(step.commands))
    flop = dict.fromkeys(PEAKS, on_gpu) | {"v3-8": on_tpu}
    return {name: flop[name] / (UTILISATION * peak * 3600) for name, peak in PEAKS.items()}


def compare_goals(goals: Sequence[Goal], tolerance: float) -> list[Comparison]:
    """Compares what goals measured with the published figures."""
    results: dict[tuple[str, str], list[Any]] = {}
    for goal in goals:
        found = results.setdefault((goal.row, goal.test), [])
        if goal.file.suffix == ".json" and goal.file.exists():
            found.append(read_json(goal.file))
    comparisons = []
    for (row, test), goal in {(goal.row, goal.test): goal for goal in goals}.items():
        own = results[row, test]
        p_values = _randomization_p(own, results.get((goal.against, test), []))
        for measure, published in goal.figures.items():
            values = [float(result.get("mean", result)[measure]) for result in own]
            mean = statistics.fmean(values) if values else None
            deviation = statistics.stdev(values) if len(values) > 1 else None
            difference: float | None = None
            within: bool | None = None
            if mean is not None and published is not None:
                difference = mean - published
                within = abs(difference) <= tolerance + 1e-9  # 0.382 - 0.377 > 0.005 in binary
            comparisons.append(
                Comparison(
                    row=row,
                    test=test,
                    measure=measure,
                    measured=mean,
                    deviation=deviation,
                    published=published,
                    difference=difference,
                    within=within,
                    p=p_values.get(measure),
                )
            )
    return _correct_all(comparisons)


def _correct_all(comparisons: Sequence[Comparison]) -> list[Comparison]:
    tested = {one[:3]: one.p for one in comparisons if one.p is not None}
    corrected = correct(tested)
    return [one._replace(corrected_p=corrected.get(one[:3])) for one in comparisons]


def _randomization_p(own: Sequence[Any], others: Sequence[Any]) -> dict[str, float]:
    """Tests each metric's means over seeds, query by query; {} where there is nothing to test."""
    if not own or not others or own == others:
        return {}
    tested = compare(_average_seeds(own), _average_seeds(others))
    return {name: test["randomization_p"] for name, test in tested.items()}


def _average_seeds(results: Sequence[Any]) -> dict[str, dict[str, float]]:
    by_seed = [result["per_query"] for result in results]
    return {
        query: {name: statistics.fmean(one[query][name] for one in by_seed) for name in metrics}
        for query, metrics in by_seed[0].items()
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the program."""
    parser = _make_parser()
    arguments = parser.parse_args(argv)
    if arguments.list == bool(arguments.table):
        parser.exit(2, "reproduce: give either a table, such as co/table1, or --list\n")
    try:
        if arguments.list:
            _print_tables()
        else:
            _reproduce(arguments)
    except UserError as error:
        parser.exit(2, f"reproduce: {error}\n")


def _make_parser() -> argparse.ArgumentParser:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m papers.reproduce", description=__doc__, formatter_class=plain
    )
    parser.add_argument("table", nargs="?", help="such as co/table1")
    parser.add_argument("--list", action="store_true", help="print the tables and their rows")
    row = "of the table; may be repeated (default: all rows)"
    parser.add_argument("--row", action="append", default=[], help=row)
    dry_run = "print the commands, the data and estimated hours, and run nothing"
    parser.add_argument("--dry_run", action="store_true", help=dry_run)
    workdir = "what is made, each step once, and seconds.json (default: runs/papers)"
    parser.add_argument("--workdir", type=Path, default=Path("runs/papers"), help=workdir)
    data = "the folder of the data that --dry_run names (default: data)"
    parser.add_argument("--data", type=Path, default=Path("data"), help=data)
    json_out = "also write the comparison to this JSON file"
    parser.add_argument("--json_out", type=Path, help=json_out)
    return parser


def _print_tables() -> None:
    for file, content in load_files().items():
        if "paper" in content:
            paper = content["paper"]
            print(f"{file}: {paper['author']}, {paper['title']}\n  {content['read']}")
            _print_left_out(content)
        for name, table in content.get("tables", {}).items():
            _print_table(f"{file}/{name}", table)


def _print_table(name: str, table: Mapping[str, Any]) -> None:
    print(f"{name}: {table['title']}")
    own = {row: content["ours"] for row, content in table["rows"].items() if "ours" in content}
    if repeated := [row for row in table["rows"] if row not in own]:
        print(f"  {', '.join(repeated)}")
    for row, purpose in own.items():
        print(f"  ours: {row}: {purpose}")
    if "why" in table:
        print(f"  no figures: {table['why']}")
    _print_left_out(table)


def _print_left_out(content: Mapping[str, Any]) -> None:
    for left_out, reason in content.get("not_repeated", {}).items():
        print(f"  not repeated: {left_out}: {reason}")


def _reproduce(arguments: argparse.Namespace) -> None:
    table = lookup(load_manifest()[0], arguments.table, "table")
    goals, steps = resolve_rows(table, arguments.row, arguments.workdir, arguments.data)
    if arguments.dry_run:
        _print_plan(table, steps)
        return
    run_steps(steps, arguments.workdir, _execute)
    compared = compare_goals(goals, table["tolerance"])
    print_table(("", *Comparison._fields[3:]), comparison_cells(compared))
    if arguments.json_out:
        write_json(arguments.json_out, [one._asdict() for one in compared])


def _print_plan(table: Mapping[str, Any], steps: Mapping[Path, Step]) -> None:
    hours = ", ".join(f"{value:.1f} ({on})" for on, value in estimate_hours(steps).items())
    estimate = f"hours at {UTILISATION:.0%} of the peak (v3-8: pre-training): {hours}"
    needed = (f"{path}: {step.get}" for path, step in steps.items() if step.get)
    for note in (table["title"], table.get("note"), table.get("why"), estimate, *needed):
        if note:
            print(f"# {note}")
    for step in steps.values():
        if step.grid:
            tried = ", ".join(f"{number}: {file}" for number, file in step.grid.files.items())
            print(f"# epochs of the next command: of the best {step.grid.measure} ({tried})")
        for command in step.commands:
            print(shlex.join(command))


def comparison_cells(compared: Sequence[Comparison]) -> list[list[str]]:
    """Returns a line of cells for each comparison."""
    n_tests = sum(one.p is not None for one in compared)
    lines = []
    for one in compared:
        line = [" ".join(one[:3]), *map(_format_cell, one[3:-2])]
        line.append("" if one.p is None else format_p(one.p))
        line.append("" if one.corrected_p is None else format_p(one.corrected_p, n_tests))
        lines.append(line)
    return lines


def _format_cell(value: float | None) -> str:
    words = {None: "", True: "yes", False: "no"}
    return f"{value:.4f}" if isinstance(value, float) else words[value]


def _execute(command: Sequence[str]) -> int:
    """Runs a recipe's command in a process of its own: JAX and PyTorch would share a device.

    `cocondenser ...` and `python ...` run with this Python, whatever is on the PATH.
    """
    print(f"$ {shlex.join(command)}", flush=True)
    program, *words = command
    if program == "cocondenser":
        words = ["-m", "cocondenser_jax.cli", *words]
    with subprocess.Popen([sys.executable, *words]) as process:
        try:
            return process.wait()
        except SystemExit:  # asked to end; Ctrl-C has also reached the process, which then saves
            process.terminate()
            raise


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `--list | head` ends in silence
    main()
