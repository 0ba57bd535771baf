"""Commands that run whole pipelines, and the page on what runs logged."""

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cocondenser_jax.cli.flags import (
    Command,
    Parser,
    chosen,
    print_search,
    print_table,
)
from cocondenser_jax.errors import UserError, escape_control, lookup
from cocondenser_jax.storage.files import write_json


def quickstart(command: Parser) -> Command:
    """Run the whole pipeline on the docstrings of this machine's Python packages."""
    command.path("--workdir", "the folder to work in")
    arguments = yield "--workdir=runs/quickstart"

    from cocondenser_jax.quickstart.ladder import quickstart

    _print_outcome(quickstart(arguments.workdir))


def adapt(command: Parser) -> Command:
    """Pre-train a model on your documents, and say whether it paid; resumes."""
    command.flag("--corpus", "your documents: whatever corpus --source takes", required=True)
    command.flag("--model", "to adapt (docs/backbones.md): a folder or hub name", required=True)
    command.path("--workdir", "the folder to work in")
    data = (
        "a folder of passages, queries and judgments of test to compare on, after fine-tuning if it"
        " has some of train (default: held-out spans of the corpus)"
    )
    command.path("--data", data, required=False)
    command.set_defaults(config=None)  # --config.KEY=VALUE may follow
    example = "--corpus=articles.jsonl.xz --model=runs/minilm --workdir=runs/adapted --data=data"
    arguments = yield example

    from cocondenser_jax.quickstart.adapt import adapt

    _print_outcome(adapt(**chosen(arguments, "workdir corpus model data overrides")))


def _print_outcome(outcome: Any) -> None:
    from cocondenser_jax.quickstart.report import other_columns

    rows = outcome.rows
    columns = {name: [f"{row.metrics[name]:.3f}" for row in rows] for name in rows[0].metrics}
    columns |= other_columns(rows)
    print()
    cells = zip([row.name for row in rows], *columns.values(), strict=True)
    print_table(("", *columns), [*cells])
    for query, hits in outcome.examples.items():
        print()
        print_search(query, hits)
    print(f"\n{escape_control(outcome.summary)}\nreport: {escape_control(str(outcome.report))}")
    print(f"search for yourself:\n  {escape_control(outcome.search_command)}")


def report(command: Parser) -> Command:
    """Show what runs logged, their settings, data and versions, on one HTML page."""
    workdir = "a run folder of pretrain or finetune; may be repeated"
    command.path("--workdir", workdir, action="append")
    command.flag("--out", "the page", Path("report.html"))
    arguments = yield "--workdir=runs/condenser --workdir=runs/cocondenser"

    from cocondenser_jax.quickstart.report import write_run_report

    write_run_report(arguments.workdir, arguments.out)
    print(escape_control(str(arguments.out)))


def reproduce(command: Parser) -> Command:
    """Repeat a table of the papers, or a row of it, and compare with the published figures."""
    command.add_argument("table", nargs="?", help="such as co/table1")
    command.add_argument("--list", action="store_true", help="print the tables and their rows")
    row = "of the table; may be repeated (default: all rows)"
    command.add_argument("--row", action="append", default=[], help=row)
    dry_run = "print the commands, the data and estimated hours, and run nothing"
    command.add_argument("--dry_run", action="store_true", help=dry_run)
    command.flag("--workdir", "what is made; what is there is not made again", Path("runs/papers"))
    command.flag("--data", "the folder of the data that --dry_run names", Path("data"))
    command.add_json_out()
    arguments = yield "--dry_run co/table1 --row=cocondenser"

    from cocondenser_jax import reproduce

    tables, _ = reproduce.load_manifest()
    if arguments.list == bool(arguments.table):
        raise UserError("give either a table, such as co/table1, or --list")
    if arguments.list:
        for name, table in tables.items():
            print(f"{name}: {table['title']}\n  {', '.join(table['rows'])}")
            for left_out, reason in table.get("not_repeated", {}).items():
                print(f"  not repeated: {left_out}: {reason}")
        return
    table = lookup(tables, arguments.table, "table")
    goals, steps = reproduce.plan(table, arguments.row, arguments.workdir, arguments.data)
    if arguments.dry_run:
        hours = ", ".join(f"{value:.1f} ({on})" for on, value in reproduce.hours(steps).items())
        estimate = f"hours at {reproduce.UTILISATION:.0%} of the peak (v3-8: pre-training): {hours}"
        needed = (f"{path}: {step.get}" for path, step in steps.items() if step.get)
        for note in (table["title"], table.get("note"), table.get("why"), estimate, *needed):
            print(f"# {note}" if note else "#")
        print(*(shlex.join(words) for step in steps.values() for words in step.commands), sep="\n")
        return
    reproduce.run(steps, _execute)
    compared = reproduce.compare_goals(goals, table["tolerance"])
    rows = [list(one.values()) for one in compared]
    cells = [(" ".join(row[:3]), *map(_cell, row[3:])) for row in rows]
    print_table(("", *list(compared[0])[3:]), cells)
    if arguments.json_out:
        write_json(arguments.json_out, compared)


def _cell(value: float | None) -> str:
    words = {None: "", True: "yes", False: "no"}
    return f"{value:.4f}" if isinstance(value, float) else words[value]


def _execute(command: Sequence[str]) -> int:
    """Runs one of our commands in a process of its own: JAX and PyTorch would share a device."""
    print(f"$ {shlex.join(command)}", flush=True)
    with subprocess.Popen([sys.executable, "-m", "cocondenser_jax.cli", *command[1:]]) as process:
        try:
            return process.wait()
        except SystemExit:  # asked to end; Ctrl-C has also reached the process, which then saves
            process.terminate()
            raise
