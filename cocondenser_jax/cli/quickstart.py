"""Commands that run whole pipelines, and the page on what runs logged."""

from pathlib import Path
from typing import Any

from cocondenser_jax.cli.flags import OVERRIDES, command, flag, required
from cocondenser_jax.cli.output import print_table, print_text

_WORKDIR = required("--workdir", Path, "the folder to work in")


@command("quickstart --workdir=runs/quickstart", _WORKDIR)
def quickstart(workdir):
    """Run the whole pipeline on the docstrings of this machine's Python packages."""
    from cocondenser_jax.quickstart.ladder import quickstart

    _print_outcome(quickstart(workdir))


@command(
    "adapt --corpus=articles.jsonl.xz --model=runs/minilm --workdir=runs/adapted --data=data",
    required("--corpus", str, "your documents: whatever corpus --source takes"),
    required("--model", str, "to adapt (docs/backbones.md): a folder or hub name"),
    _WORKDIR,
    flag("--data", Path, "passages, queries and judgments to compare on (default: held-out spans)"),
    OVERRIDES,
)
def adapt(**options):
    """Pre-train a model on your documents, and say whether it paid; resumes."""
    from cocondenser_jax.quickstart.adapt import adapt

    _print_outcome(adapt(**options))


def _print_outcome(outcome: Any) -> None:
    from cocondenser_jax.quickstart.report import comparison_table

    header, *rows = comparison_table(outcome.rows)
    print()
    print_table(header, rows)
    print()
    for line in (outcome.summary, f"report: {outcome.report}", "search for yourself:"):
        print_text(line)
    print_text(f"  {outcome.search_command}")


@command(
    "report --workdir=runs/condenser --workdir=runs/cocondenser",
    required("--workdir", Path, "a run folder; may be repeated", multiple=True),
    flag("--out", Path, "the page", default="report.html"),
)
def report(workdir, out):
    """Show what runs logged, their settings, data and versions, on one HTML page."""
    from cocondenser_jax.quickstart.report import write_run_report

    write_run_report(workdir, out)
    print_text(out)
