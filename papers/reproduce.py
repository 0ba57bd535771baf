"""Repeat a table of the papers, or a row of it, and compare with the published figures.

  python -m papers.reproduce --list
  python -m papers.reproduce co/table1 --row=cocondenser --dry_run

The .yaml files in this folder contain the tables, one file per paper; the top of condenser.yaml
describes their contents. Their rows name functions of the modules below.
"""

from collections.abc import Sequence
from pathlib import Path

from papers import adaptive, documents, draft, encoders, marco, qa, rocketqa
from papers.program import Study, end_on_signals, run_program

PAPERS = Study(
    program="python -m papers.reproduce",
    folder=Path(__file__).parent,
    recipes={
        "adaptive": adaptive,
        "documents": documents,
        "draft": draft,
        "encoders": encoders,
        "marco": marco,
        "qa": qa,
        "rocketqa": rocketqa,
    },
    example="co/table1",
    workdir=Path("runs/papers"),
)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the program."""
    run_program(PAPERS, __doc__, argv)


if __name__ == "__main__":
    end_on_signals()
    main()
