"""Tables of published figures, and their comparison with measurements.

A .yaml file contains `tables`. In a row, `published` (or `measured`, for our own figures) names the
functions that measure it, with their figures. Such a function takes the step that the row's
`recipe` returns for the arguments `with`, or these arguments if there is no recipe. A table's
`recipe` and `with` apply to all its rows; those under the name of a test apply only to this test.
"""

import statistics
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import yaml

from cocondenser_jax.errors import lookup
from cocondenser_jax.files.whole import read_json
from cocondenser_jax.retriever.data.significance import compare, correct, format_p
from papers.steps import Folders, Step, means

Table = Mapping[str, Any]
Recipes = Mapping[str, ModuleType]  # the modules of functions that tables name


class Goal(NamedTuple):
    """The step that measures a row by a test; `against`: the row that it is compared with."""

    row: str
    test: str
    step: Step
    figures: Mapping[str, float | None]
    against: str


class Comparison(NamedTuple):
    """A measured figure, averaged over seeds, beside the published one; None where unknown."""

    row: str
    test: str
    metric: str
    measured: float | None
    deviation: float | None  # over seeds
    published: float | None
    difference: float | None
    within: bool | None  # the table's tolerance
    p: float | None  # of the randomization test against another row
    corrected_p: float | None = None  # for the number of tests that are compared (Holm)


@cache
def load_files(folder: Path) -> dict[str, Any]:
    """Reads the .yaml files of a folder, by their names without the ending."""
    files = sorted(folder.glob("*.yaml"))
    return {file.stem: yaml.safe_load(file.read_text("utf-8")) for file in files}


def load_tables(folder: Path) -> dict[str, Table]:
    """Reads the tables of a folder, by their names, such as `co/table1`."""
    return {
        f"{file}/{name}": table
        for file, content in load_files(folder).items()
        for name, table in content["tables"].items()
    }


def figures_of(row: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """Returns the figures of a row by test and metric."""
    return row["published"] if "published" in row else row["measured"]


def goals_of(table: Table, rows: Sequence[str], recipes: Recipes) -> list[Goal]:
    """Returns the goals of rows of a table (of all, if none is named), one for each seed."""
    goals = []
    for name in rows or table["rows"]:
        row = lookup(table["rows"], name, "row")
        against = row.get("against", table.get("against", ""))
        seeds = row.get("seeds", table.get("seeds")) or [None]
        for test, figures in figures_of(row).items():
            for seed in seeds:
                step = _measure([table, row, row.get(test, {})], test, seed, recipes)
                goals.append(Goal(name, test, step, figures, against))
    return goals


def _measure(
    levels: Sequence[Mapping[str, Any]], test: str, seed: int | None, recipes: Recipes
) -> Step:
    """Calls a test for a row; later levels take precedence."""
    arguments = {key: value for level in levels for key, value in level.get("with", {}).items()}
    if seed is not None:
        arguments["seed"] = seed
    names = [level["recipe"] for level in levels if "recipe" in level]
    if not names:
        return _function(test, recipes)(**arguments)
    return _function(test, recipes)(_function(names[-1], recipes)(**arguments))


def _function(name: str, recipes: Recipes) -> Any:
    module, _, function = name.partition(".")
    return getattr(recipes[module], function)


def compare_goals(goals: Sequence[Goal], tolerance: float, folders: Folders) -> list[Comparison]:
    """Compares the measurements of goals with the published figures."""
    results: dict[tuple[str, str], list[Any]] = {}
    for goal in goals:
        of_row = results.setdefault((goal.row, goal.test), [])
        file = folders.result(goal.step)
        if file.suffix == ".json" and file.exists():
            of_row.append(read_json(file))
    comparisons = []
    for (row, test), goal in {(goal.row, goal.test): goal for goal in goals}.items():
        own = results[row, test]
        p_values = _randomization_p(own, results.get((goal.against, test), []))
        for metric, published in goal.figures.items():
            values = [float(means(result)[metric]) for result in own]
            mean = statistics.fmean(values) if values else None
            difference = None if mean is None or published is None else mean - published
            comparisons.append(
                Comparison(
                    row=row,
                    test=test,
                    metric=metric,
                    measured=mean,
                    deviation=statistics.stdev(values) if len(values) > 1 else None,
                    published=published,
                    difference=difference,
                    within=_is_within(difference, tolerance),
                    p=p_values.get(metric),
                )
            )
    corrected = correct({one[:3]: one.p for one in comparisons if one.p is not None})
    return [one._replace(corrected_p=corrected.get(one[:3])) for one in comparisons]


def _is_within(difference: float | None, tolerance: float) -> bool | None:
    if difference is None:
        return None
    return abs(difference) <= tolerance + 1e-9  # 0.382 - 0.377 > 0.005 in binary


def _randomization_p(own: Sequence[Any], others: Sequence[Any]) -> dict[str, float]:
    """Tests each metric's means over seeds, query by query; {} if there is nothing to test."""
    if not own or not others or own == others:
        return {}
    differences = compare(average_seeds(own), average_seeds(others))
    return {name: one["randomization_p"] for name, one in differences.items()}


def average_seeds(results: Sequence[Any]) -> dict[str, dict[str, float]]:
    """Returns, by query, the means of metrics over results of `evaluate`, one for each seed."""
    by_seed = [result["per_query"] for result in results]
    return {
        query: {name: statistics.fmean(one[query][name] for one in by_seed) for name in metrics}
        for query, metrics in by_seed[0].items()
    }


def comparison_cells(compared: Sequence[Comparison]) -> list[list[str]]:
    """Returns a line of cells for each comparison."""
    n_tests = sum(one.p is not None for one in compared)
    lines = []
    for one in compared:
        line = [" ".join(one[:3]), *map(_format_cell, one[3:-2])]
        line.append("" if one.p is None else format_p(one.p))
        line.append("" if one.corrected_p is None else format_p(one.corrected_p, n_tests))
        lines.append(line)
    return lines


def _format_cell(value: float | None) -> str:
    words = {None: "", True: "yes", False: "no"}
    return f"{value:.4f}" if isinstance(value, float) else words[value]
