"""Repeat one of our own studies, or a row of it, and compare with our measurements.

  python -m experiments.reproduce --list
  python -m experiments.reproduce ours/quickstart --row=contrastive --dry_run

The .yaml files in this folder contain the tables of docs/results.md and docs/log.md, like those in
papers/. Their rows name functions of the modules below. The tables in past/ were measured by
programs that have been removed.
"""

from collections.abc import Sequence
from pathlib import Path

from experiments import (
    design,
    proof,
    quickstart,
    settings,
    tuned,
)
from experiments.protocol import require_protocol
from papers.program import Study, end_on_signals, run_program

EXPERIMENTS = Study(
    program="python -m experiments.reproduce",
    folder=Path(__file__).parent,
    recipes={
        "design": design,
        "proof": proof,
        "quickstart": quickstart,
        "settings": settings,
        "tuned": tuned,
    },
    example="ours/quickstart",
    workdir=Path("runs/experiments"),
    begin=require_protocol,
)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the program."""
    run_program(EXPERIMENTS, __doc__, argv)


if __name__ == "__main__":
    end_on_signals()
    main()
