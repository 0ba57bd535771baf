"""Commands that run whole pipelines, and the page on what runs logged."""

from pathlib import Path
from typing import Any

from cocondenser_jax.cli.flags import (
    Command,
    Parser,
    chosen,
    print_search,
    print_table,
)
from cocondenser_jax.errors import escape_control


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
