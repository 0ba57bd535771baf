"""Tests differences between arms, as planned before any was measured.

  python -m experiments.planned --metric=MRR@10 --out=FOLDER \
    --test=A2-A1-100 --arm=A2-0.json,A2-1.json --other=A1-0.json,A1-1.json

A test has a name and the results of two arms, with one file of `evaluate` for each seed; the three
flags may be repeated together. FOLDER/NAME.json receives the difference of the means with its 95 %
interval, and p, corrected for the number of tests (Holm).
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cocondenser_jax.cli.output import print_table
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import new_folder, read_json, write_json
from cocondenser_jax.retriever.data.significance import compare, correct, format_p
from papers.tables import average_seeds


class Planned(NamedTuple):
    """Two arms to compare, with the results of each."""

    name: str
    arm: Sequence[Mapping[str, Any]]
    other: Sequence[Mapping[str, Any]]


def run_tests(tests: Sequence[Planned], metric: str) -> dict[str, dict[str, float]]:
    """Compares means over seeds, question by question; see `significance.compare` for the tests.

    Returns:
      By test: `difference`, `from` and `to` of its interval, `p` and `corrected_p`.
    """
    compared = {
        test.name: compare(average_seeds(test.arm), average_seeds(test.other))[metric]
        for test in tests
    }
    p_values = {name: one["randomization_p"] for name, one in compared.items()}
    corrected = correct(p_values)
    return {
        name: {
            "difference": one["difference"],
            "from": one["interval"][0],
            "to": one["interval"][1],
            "p": p_values[name],
            "corrected_p": corrected[name],
        }
        for name, one in compared.items()
    }


def _read_tests(names: Sequence[str], *groups: Sequence[str]) -> list[Planned]:
    if any(len(group) != len(names) for group in groups):
        raise UserError(f"{len(names)} --test: expected as many --arm and --other")
    results = ([_read_results(files) for files in group] for group in groups)
    return [Planned(*of_test) for of_test in zip(names, *results, strict=True)]


def _read_results(files: str) -> list[Mapping[str, Any]]:
    return [read_json(Path(file)) for file in files.split(",")]


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--metric", required=True)
    for flag in ("--test", "--arm", "--other"):
        parser.add_argument(flag, action="append", required=True)
    parser.add_argument("--out", type=Path, required=True)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line; a UserError is one line and exit status 2."""
    parser = make_parser()
    given = parser.parse_args(arguments)
    try:
        found = run_tests(_read_tests(given.test, given.arm, given.other), given.metric)
        with new_folder(given.out) as folder:
            for name, one in found.items():
                write_json(folder / f"{name}.json", one)
    except UserError as error:
        parser.exit(2, f"planned: {error}\n")
    lines = [
        [
            name,
            *(f"{one[key]:+.4f}" for key in ("difference", "from", "to")),
            format_p(one["p"]),
            format_p(one["corrected_p"], len(found)),
        ]
        for name, one in found.items()
    ]
    print_table(("", "difference", "from", "to", "p", "corrected p"), lines)


if __name__ == "__main__":
    main()
