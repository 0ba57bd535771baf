"""Sections of reports: a comparison of retrievers, curves and facts of runs."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cocondenser_jax.analysis.page import parts, write_page
from cocondenser_jax.analysis.plots import Curve, Panel, legend_names, read_curves
from cocondenser_jax.errors import UserError
from cocondenser_jax.settings import PRETRAINING, declared_settings, flatten
from cocondenser_jax.storage.files import read_object

# The file that says what a run decided, and the heading of such runs.
_KINDS = {"run.json": "Pre-training", "finetune.json": "Fine-tuning"}
_NOT_DRAWN = {"step", "epoch", "tokens_per_second", "model_tflops_per_second"}
_NOTE = """p: randomisation test of {} against {}. Tokens: read in pre-training. Seconds:
pre-training, fine-tuning, encoding and search."""


class ResultRow(NamedTuple):
    """A retriever of a comparison."""

    name: str
    metrics: Mapping[str, float]  # means, in [0, 1]
    p_values: Mapping[str, float]  # of the randomisation test against the comparison's last row
    tokens: float
    seconds: float


def other_columns(rows: Sequence[ResultRow]) -> dict[str, list[str]]:
    """Returns the columns of a comparison beside the metrics: head → a text for each row."""
    main = next(iter(rows[0].metrics))
    return {
        "p": [f"{row.p_values[main]:.2g}" for row in rows[:-1]] + [""],
        "tokens": [f"{row.tokens:,.2g}" if row.tokens else "" for row in rows],
        "seconds": [f"{row.seconds:,.0f}" for row in rows],
    }


def comparison_table(rows: Sequence[ResultRow]) -> str:
    """Returns the HTML of a comparison."""
    metrics = {name: [row.metrics[name] for row in rows] for name in rows[0].metrics}
    note = _NOTE.format(next(iter(metrics)), rows[-1].name)
    return parts.comparison([row.name for row in rows], metrics, other_columns(rows), note)


def write_run_report(workdirs: Sequence[Path], out: Path) -> None:
    """Writes a page on run folders of pre-training or fine-tuning."""
    for folder in workdirs:
        if not any((folder / name).is_file() for name in _KINDS):
            raise UserError(f"{folder} is not a run folder: it has no {' and no '.join(_KINDS)}")
    runs = legend_names(workdirs)
    write_page(out, "Runs", ", ".join(runs), run_sections([*runs.items()]))


def run_sections(runs: Sequence[tuple[str, Path]]) -> dict[str, str]:
    """Returns the curves and the facts of runs, (name, folder), as sections of a page."""
    sections = {}
    for file, kind in _KINDS.items():
        found = {name: folder for name, folder in runs if (folder / file).is_file()}
        if not found:
            continue
        facts = {name: read_object(folder / file) for name, folder in found.items()}
        sections[kind] = parts.plots(_panels(found, facts))
        for name in found:
            sections[f"{kind}: {name}"] = parts.definitions(_facts(facts[name]))
    return sections


def _panels(runs: Mapping[str, Path], facts: Mapping[str, Mapping[str, Any]]) -> list[Panel]:
    """Returns a panel for each key that was logged; a run has the same colour in all."""
    curves = {name: read_curves(folder / "metrics.jsonl", name) for name, folder in runs.items()}
    logged = dict.fromkeys(key for run in curves.values() for key in run if key not in _NOT_DRAWN)
    pairs = [facts[name]["config"] for name, run in curves.items() if "contrastive_loss" in run]
    sizes = {config["data"]["batch_size"] for config in pairs}
    chance = (math.log(2 * sizes.pop() - 1), "chance") if len(sizes) == 1 else None
    return [
        Panel(
            key.replace("/", ": ").replace("_", " "),
            [run.get(key, Curve(name)) for name, run in curves.items()],
            from_zero=key.endswith("per_second"),
            reference=chance if key == "contrastive_loss" else None,
        )
        # What is to be learned comes first, then how it went.
        for key in sorted(logged, key=lambda key: (not key.endswith("loss"), "/" not in key))
    ]


def _facts(run: Mapping[str, Any]) -> dict[str, str]:
    """Returns a run's settings that are not the default, its data, sizes and versions."""
    config = run.get("config", run)
    defaults = declared_settings(config.get("task", PRETRAINING))
    facts = {
        name: value
        for name, value in flatten(config).items()
        if name not in defaults or name == "seed" or value != defaults[name].default
    }
    if config is not run:
        facts |= flatten({name: value for name, value in run.items() if name != "config"})
    return {name: str(value) for name, value in facts.items()}
