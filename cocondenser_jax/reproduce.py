"""Published results, the commands that repeat them, and how far apart the two are.

`papers/` holds the tables, a file per paper, and the recipes of the commands: the heads of
recipes.yaml and condenser.yaml say what stands in them.
"""

import math
import shlex
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from cocondenser_jax.errors import UserError, lookup
from cocondenser_jax.evaluation.significance import compare
from cocondenser_jax.storage.files import read_json

# Peak bfloat16 operations a second: eight cores of a TPU v3, see pretrain/plan.py; NVIDIA's data
# sheets of A100 and H100 SXM, dense.
PEAKS = {"v3-8": 8 * 61.5e12, "A100": 312e12, "H100": 989e12}
UTILISATION = 0.4  # of the peak, assumed


class Step(NamedTuple):
    """Commands as lists of words, and what they compute; or where people `get` the result."""

    commands: list[list[str]]
    flop: float
    get: str


class Goal(NamedTuple):
    """What a recipe, `test`, measures for a row; `against`: the row that it is tested against."""

    row: str
    test: str
    file: Path
    figures: dict[str, float | None]
    against: str


@cache
def load_manifest() -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the tables by their names (`co/table1`), and the recipes by theirs."""
    tables: dict[str, Any] = {}
    recipes: dict[str, Any] = {}
    for file in sorted(resources.files("cocondenser_jax.papers").iterdir(), key=lambda f: f.name):
        name, _, kind = file.name.rpartition(".")
        content = yaml.safe_load(file.read_text("utf-8")) if kind == "yaml" else {}
        recipes |= content if name == "recipes" else content.get("recipes", {})
        tables |= {f"{name}/{key}": table for key, table in content.get("tables", {}).items()}
    return tables, recipes


def plan(
    table: Mapping[str, Any], rows: Sequence[str], workdir: Path, data: Path
) -> tuple[list[Goal], dict[Path, Step]]:
    """Returns what rows of a table measure (all, if none is named), and the unfinished steps.

    Everything is made in `workdir`, of what people have put into `data`. The steps are in their
    order, by the file or folder that is there once they are finished.
    """
    goals: list[Goal] = []
    steps: dict[Path, Step] = {}
    for name in rows or table["rows"]:
        row = lookup(table["rows"], name, "row")
        given = table.get("with", {}) | row.get("with", {})
        for test, figures in (row.get("published") or row["measured"]).items():
            own = table.get("with", {}).get(test, {}) | row.get("with", {}).get(test, {})
            for seed in table.get("seeds", [0]):
                out, before = _make(test, {"seed": seed, **given, **own}, workdir, data)
                file = out / load_manifest()[1][test].get("done", "")
                against = table.get("against", "").format_map(given)
                goals.append(Goal(name, test, file, figures, against))
                steps |= before
    return goals, steps


def _make(
    name: str, given: Mapping[str, Any], workdir: Path, data: Path
) -> tuple[Path, dict[Path, Step]]:
    """Returns the path that a recipe makes, and the unfinished steps that lead there."""
    recipe = load_manifest()[1][name]
    parameters = {**recipe.get("with", {}), **given}
    values: dict[str, Any] = dict(parameters)
    steps: dict[Path, Step] = {}
    for key, need in recipe.get("needs", {}).items():
        wanted = need if isinstance(need, dict) else {"recipe": need or key}
        wanted = {k: str(v).format_map(parameters) for k, v in wanted.items()}
        values[key], before = _make(wanted.pop("recipe"), parameters | wanted, workdir, data)
        steps |= before
    out = Path(recipe["out"].format_map(values))
    if not recipe["out"].startswith("{"):  # with the path of what it needs
        out = (data if "get" in recipe else workdir) / out
    values["out"] = out
    finished = out / recipe.get("done", "")
    lines = [shlex.split(line) for line in recipe.get("run", [])]
    commands = [[word.format_map(values) for word in line] for line in lines]
    flop = math.prod(float(str(factor).format_map(values)) for factor in recipe.get("flop", [0]))
    if commands or "get" in recipe:  # else it is another name for what it needs
        steps[finished] = Step(commands, flop, recipe.get("get", ""))
    return out, {} if finished.exists() else steps


def run(steps: Mapping[Path, Step], execute: Callable[[Sequence[str]], int]) -> None:
    """Runs steps by `execute`, which returns the exit status; a UserError if that is not 0."""
    for path, step in steps.items():
        if step.get:
            raise UserError(f"{path} is missing: {step.get}")
    for command in (command for step in steps.values() for command in step.commands):
        if status := execute(command):
            raise UserError(f"exit status {status}: {shlex.join(command)}")


def hours(steps: Mapping[Path, Step]) -> dict[str, float]:
    """Estimates the hours on one machine of each kind; only pre-training runs on a TPU."""
    flop = [(step.flop, "pretrain" in str(step.commands)) for step in steps.values()]
    on_tpu = sum(n for n, pretrains in flop if pretrains)
    flops = dict.fromkeys(PEAKS, sum(n for n, _ in flop)) | {"v3-8": on_tpu}
    return {name: flops[name] / (UTILISATION * peak * 3600) for name, peak in PEAKS.items()}


def compare_goals(goals: Sequence[Goal], tolerance: float) -> list[dict[str, Any]]:
    """Compares what goals measured, on average over seeds, with the published figures.

    `p` is that of the randomisation test against another row. What is not known is None.
    """
    results: dict[tuple[str, str], list[Any]] = {}
    for goal in goals:
        found = results.setdefault((goal.row, goal.test), [])
        if goal.file.suffix == ".json" and goal.file.exists():
            found.append(read_json(goal.file))
    comparisons = []
    for (row, test), goal in {(goal.row, goal.test): goal for goal in goals}.items():
        own, others = results[row, test], results.get((goal.against, test), [])
        tested = (
            compare(_per_query(own), _per_query(others)) if own and others and own != others else {}
        )
        for measure, published in goal.figures.items():
            values = [float(result.get("mean", result)[measure]) for result in own]
            mean = statistics.fmean(values) if values else None
            difference = None if mean is None or published is None else mean - published
            comparisons.append(
                {
                    **{"row": row, "test": test, "measure": measure, "measured": mean},
                    "deviation": statistics.stdev(values) if len(values) > 1 else None,
                    **{"published": published, "difference": difference},
                    # 0.382 - 0.377 is more than 0.005 in binary.
                    "within": None if difference is None else abs(difference) <= tolerance + 1e-9,
                    "p": tested.get(measure, {}).get("randomisation_p"),
                }
            )
    return comparisons


def _per_query(results: Sequence[Any]) -> dict[str, dict[str, float]]:
    """Averages each query's metrics over the results of several seeds."""
    by_seed = [result["per_query"] for result in results]
    return {
        query: {name: statistics.fmean(one[query][name] for one in by_seed) for name in metrics}
        for query, metrics in by_seed[0].items()
    }
