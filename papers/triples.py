"""Write MS MARCO's training triples of ids (query, relevant passage, negative) as a TREC run.

python -m papers.triples --triples=qidpidtriples.train.full.2.tsv --out=runs/triples.trec

Keeps the first 200 negatives of each query: the published file has 400 million lines.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from cocondenser_jax.collection.trec import Run, write_run
from cocondenser_jax.errors import UserError
from cocondenser_jax.storage.files import numbered_lines
from papers.figures.output import at_least, run_script


def read_triples(path: Path, depth: int) -> Run:
    """Reads the first `depth` negatives of each query, with decreasing scores."""
    run: Run = {}
    for number, line in numbered_lines(path):
        ids = line.split("\t")
        if len(ids) != 3 or any(len(name.split()) != 1 for name in ids):
            raise UserError(f"{path}:{number}: expected three ids, separated by tabs")
        query, _, negative = map(sys.intern, ids)
        negatives = run.setdefault(query, {})
        if len(negatives) < depth:
            negatives.setdefault(negative, float(-len(negatives)))
    return run


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the script."""
    run_script(make_parser(), _write, argv)


def make_parser() -> argparse.ArgumentParser:
    """Declares the flags."""
    parser = argparse.ArgumentParser(prog="triples", allow_abbrev=False)
    parser.add_argument("--triples", type=Path, required=True, help="plain, .gz, .xz or .zst")
    parser.add_argument("--out", type=Path, required=True, help="TREC run to write")
    depth = "negatives of a query (default: 200)"
    parser.add_argument("--depth", type=at_least(1), default=200, help=depth)
    return parser


def _write(arguments: argparse.Namespace) -> None:
    write_run(arguments.out, read_triples(arguments.triples, arguments.depth), tag="triples")


if __name__ == "__main__":
    main()
