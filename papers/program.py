"""The command line for repeating rows of tables."""

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cocondenser_jax.cli.output import print_table
from cocondenser_jax.errors import UserError, lookup
from cocondenser_jax.files.whole import write_json
from papers import estimates
from papers.gpus import on_gpus
from papers.steps import (
    Command,
    Folders,
    Refused,
    Step,
    removable,
    require_data,
    run_steps,
    unfinished,
)
from papers.tables import (
    Comparison,
    Recipes,
    Table,
    compare_goals,
    comparison_cells,
    goals_of,
    load_files,
    load_tables,
)


class Study(NamedTuple):
    """Tables, their recipes, and the program that repeats them."""

    program: str  # such as python -m papers.reproduce
    folder: Path  # of the .yaml files
    recipes: Recipes
    example: str  # a table
    workdir: Path  # where it works unless told otherwise
    # Called with the name of a table before its rows are run; may refuse.
    begin: Callable[[str, Folders], None] = lambda table, folders: None


def run_program(study: Study, description: str, argv: Sequence[str] | None = None) -> None:
    """Runs the command line of a study; a UserError is one line and exit status 2."""
    parser = _make_parser(study, description)
    arguments = parser.parse_args(argv)
    if arguments.list == bool(arguments.table):
        parser.exit(2, f"reproduce: give either a table, such as {study.example}, or --list\n")
    try:
        if arguments.list:
            _print_tables(study)
        else:
            _reproduce(study, arguments)
    except Refused:
        parser.exit(2)
    except UserError as error:
        parser.exit(2, f"reproduce: {error}\n")


def end_on_signals() -> None:
    """Makes the process end cleanly at a signal, and silently after `--list | head`."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # under nohup, SIGHUP is ignored
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def _make_parser(study: Study, description: str) -> argparse.ArgumentParser:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog=study.program, description=description, formatter_class=plain
    )
    parser.add_argument("table", nargs="?", help=f"such as {study.example}")
    parser.add_argument("--list", action="store_true", help="print the tables and their rows")
    row = "of the table; may be repeated (default: all rows)"
    parser.add_argument("--row", action="append", default=[], help=row)
    dry_run = "print the commands, the data and estimated hours, and run nothing"
    parser.add_argument("--dry_run", action="store_true", help=dry_run)
    workdir = f"what is made, each step once, and seconds.json (default: {study.workdir})"
    parser.add_argument("--workdir", type=Path, default=study.workdir, help=workdir)
    data = "the folder of the data that --dry_run names (default: data)"
    parser.add_argument("--data", type=Path, default=Path("data"), help=data)
    delete = "delete embeddings as soon as no other step of these rows needs them"
    parser.add_argument("--delete_embeddings", action="store_true", help=delete)
    json_out = "also write the comparison to this JSON file"
    parser.add_argument("--json_out", type=Path, help=json_out)
    return parser


def _print_tables(study: Study) -> None:
    for file, content in load_files(study.folder).items():
        if "paper" in content:
            paper = content["paper"]
            print(f"{file}: {paper['author']}, {paper['title']}\n  {content['read']}")
            _print_left_out(content)
        for name, table in content["tables"].items():
            _print_table(f"{file}/{name}", table)


def _print_table(name: str, table: Table) -> None:
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


def _reproduce(study: Study, arguments: argparse.Namespace) -> None:
    table = lookup(load_tables(study.folder), arguments.table, "table")
    folders = Folders(arguments.workdir, arguments.data)
    goals = goals_of(table, arguments.row, study.recipes)
    wanted = [goal.step for goal in goals]
    steps = unfinished(wanted, folders)
    if arguments.dry_run:
        _print_plan(table, steps, folders)
        return
    require_data(steps)
    deletes = arguments.delete_embeddings
    estimates.require_room(folders.work, estimates.estimate(steps, folders), deletes=deletes)
    study.begin(arguments.table, folders)

    def delete_embeddings() -> None:
        for folder in removable(wanted, folders) if deletes else ():
            print(f"deleting {folder}, which no other step needs", flush=True)
            shutil.rmtree(folder)

    delete_embeddings()  # those that a killed program left
    run_steps(steps, folders, execute, delete_embeddings)
    compared = compare_goals(goals, table["tolerance"], folders)
    print_table(("", *Comparison._fields[3:]), comparison_cells(compared))
    if arguments.json_out:
        write_json(arguments.json_out, [one._asdict() for one in compared])


def _print_plan(table: Table, steps: Mapping[Path, Step], folders: Folders) -> None:
    costs = estimates.lines(estimates.estimate(steps, folders))
    needed = (f"{path}: {step.get}" for path, step in steps.items() if step.get)
    for note in (table["title"], table.get("note"), table.get("why"), *costs, *needed):
        if note:
            print(f"# {note}")
    for step in steps.values():
        for choice in step.choices:
            tried = (f"{value}: {folders.result(one)}" for value, one in choice.tried.items())
            print(
                f"# {choice} of the next command: of the best {choice.metric} ({', '.join(tried)})"
            )
        for command in step.commands:
            print(shlex.join(command))


def execute(command: Command, seconds: float | None = None) -> int:
    """Runs a recipe's command in its own process, so that JAX and PyTorch do not share a device.

    `cocondenser ...` and `python ...` run with this Python, whatever is on the PATH.

    Raises:
      subprocess.TimeoutExpired: if it takes longer than `seconds`; it was asked to end, and has.
    """
    from cocondenser_jax.retriever.search.gpus import visible_gpus  # imports PyTorch

    command, variables = on_gpus(command, visible_gpus())
    shown = [f"{name}={value}" for name, value in variables.items()]
    print(" ".join(["$", *shown, shlex.join(command)]), flush=True)
    program, *words = command
    if program == "cocondenser":
        words = ["-m", "cocondenser_jax.cli", *words]
    environment = {**os.environ, **variables}
    with subprocess.Popen([sys.executable, *words], env=environment) as process:
        try:
            return process.wait(seconds)
        # Asked to end, or too late; Ctrl-C has also reached the process, which then saves.
        except (SystemExit, subprocess.TimeoutExpired):
            process.terminate()
            raise
