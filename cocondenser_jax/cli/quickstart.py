"""The command that runs the whole pipeline."""

import sys
from pathlib import Path

from cocondenser_jax.cli.flags import (
    Arguments,
    Commands,
    add_command,
    add_workdir,
    print_search,
    print_table,
)
from cocondenser_jax.errors import visible


def add_commands(commands: Commands) -> None:
    """Adds it to the command line."""
    command = add_command(commands, _quickstart, "--workdir=runs/quickstart")
    add_workdir(command, "the folder to work in")
    compare = "all: also a Condenser, and two more seeds (about three times as long)"
    command.add_argument("--compare", choices=("baseline", "all"), default="baseline", help=compare)


def _quickstart(arguments: Arguments) -> None:
    """Run the whole pipeline on the docstrings of this machine's Python packages."""
    from cocondenser_jax.quickstart.pipeline import quickstart

    program = sys.argv[0] if Path(sys.argv[0]).name == "cocondenser" else "cocondenser"
    compare_all = arguments.compare == "all"
    outcome = quickstart(arguments.workdir, compare_all=compare_all, program=program)
    print()
    print_table(
        ("", "MRR@10", "Recall@100", "seconds"),
        [
            (name, f"{mrr:.3f}", f"{recall:.3f}", f"{seconds:.0f}")
            for name, mrr, recall, seconds in outcome.rows
        ],
    )
    for query, hits in outcome.examples.items():
        print()
        print_search(query, hits)
    print(f"\nreport: {visible(str(outcome.report))}")
    print(f"search for yourself:\n  {visible(outcome.search_command)}")
