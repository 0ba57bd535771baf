"""Reports: a comparison of retrievers, curves and facts of runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cocondenser_jax.analysis.page import Runs, write_page
from cocondenser_jax.analysis.plots import COLOURS, Curve, read_curves
from cocondenser_jax.errors import UserError
from cocondenser_jax.evaluation.significance import correct, format_p
from cocondenser_jax.storage.files import read_object
from cocondenser_jax.storage.runs import flatten

# The file that says what a run decided, and the heading of such runs.
_KINDS = {"run.json": "Pre-training", "finetune.json": "Fine-tuning"}
_NOT_DRAWN = {"step", "epoch", "tokens_per_second", "model_tflops_per_second"}
NOTE = """p: randomization test of the first measure against the row without a p, corrected for
the number of tests (Holm). Seconds: pre-training, fine-tuning, encoding and search."""


class ResultRow(NamedTuple):
    """A retriever of a comparison."""

    name: str
    metrics: Mapping[str, float]  # means, in [0, 1]
    p_values: Mapping[str, float]  # of the randomization test; none in the row tested against
    seconds: float


def comparison_table(rows: Sequence[ResultRow]) -> list[list[str]]:
    """Returns the cells of a comparison: the heads first, then a line for each row."""
    measures = list(rows[0].metrics)
    table = [["", *measures, "p", "seconds"]]
    tested = correct({row.name: row.p_values[measures[0]] for row in rows if row.p_values})
    for row in rows:
        metrics = [f"{row.metrics[name]:.3f}" for name in measures]
        p_value = format_p(tested[row.name], len(tested)) if row.name in tested else ""
        table.append([row.name, *metrics, p_value, f"{row.seconds:,.0f}"])
    return table


def write_run_report(workdirs: Sequence[Path], out: Path) -> None:
    """Writes a page on run folders of pre-training or fine-tuning."""
    for folder in workdirs:
        if not any((folder / name).is_file() for name in _KINDS):
            raise UserError(f"{folder} is not a run folder: it has no {' and no '.join(_KINDS)}")
    runs = {str(folder): folder for folder in workdirs}
    write_page(out, "Runs", ", ".join(runs), read_runs(runs))


def read_runs(folders: Mapping[str, Path]) -> list[Runs]:
    """Reads the curves and the facts of runs, by their names; a folder without a run is no run."""
    kinds = []
    for file, kind in _KINDS.items():
        found = {name: folder for name, folder in folders.items() if (folder / file).is_file()}
        if found:
            facts = {name: flatten(read_object(folder / file)) for name, folder in found.items()}
            kinds.append(Runs(kind, _plots(found), facts))
    return kinds


def _plots(runs: Mapping[str, Path]) -> dict[str, list[Curve]]:
    """Returns the curves of each key that was logged; a run has the same color in all."""
    plots: dict[str, list[Curve]] = {}
    for number, (name, folder) in enumerate(runs.items()):
        colour = COLOURS[number % len(COLOURS)]
        for key, curve in read_curves(folder / "metrics.jsonl", name, colour).items():
            if key not in _NOT_DRAWN:
                plots.setdefault(key, []).append(curve)
    return plots
