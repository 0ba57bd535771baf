"""The command that walks the whole road."""

import sys
from pathlib import Path

from cocondenser_jax.cli.flags import Arguments, Commands, add_command, add_workdir, print_search


def add_commands(commands: Commands) -> None:
    """Adds them to the command line."""
    _add_quickstart(commands)


def _add_quickstart(commands: Commands) -> None:
    command = add_command(
        commands,
        "quickstart",
        _quickstart,
        "The whole road in one command, on the docstrings of this machine's Python packages.",
        "--workdir=runs/quickstart",
    )
    add_workdir(command, "the folder to work in")
    compare = "all: also a Condenser, and two more seeds (about three times as long)"
    command.add_argument("--compare", choices=("baseline", "all"), default="baseline", help=compare)


def _quickstart(arguments: Arguments) -> None:
    from cocondenser_jax.quickstart.pipeline import quickstart

    program = sys.argv[0] if Path(sys.argv[0]).name == "cocondenser" else "cocondenser"
    compare_all = arguments.compare == "all"
    outcome = quickstart(arguments.workdir, compare_all=compare_all, program=program)
    print(f"\n{'':<28}{'MRR@10':>8}{'Recall@100':>12}{'seconds':>9}")
    for row in outcome.rows:
        print(f"{row.name:<28}{row.mrr_at_10:8.3f}{row.recall_at_100:12.3f}{row.seconds:9.0f}")
    for example in outcome.examples:
        print()
        print_search(example.query, [(hit.score, hit.title, hit.text) for hit in example.hits])
    print(f"\nreport: {outcome.report}\nsearch for yourself:\n  {outcome.search_command}")
