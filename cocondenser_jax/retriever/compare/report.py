"""Writes reports: a comparison of rankings, and curves and settings of runs, on one HTML page."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from cocondenser_jax.files.metrics import logged_lines
from cocondenser_jax.files.runs import flatten, require_run_folder
from cocondenser_jax.files.whole import new_file, read_object
from cocondenser_jax.retriever.compare.changes import Changes, Judged, find_changes
from cocondenser_jax.retriever.compare.differences import Differences
from cocondenser_jax.retriever.compare.panels import Panel, in_order, panel_of
from cocondenser_jax.retriever.compare.plots import COLORS, Curve, gains_svg, plot_svg, read_curves
from cocondenser_jax.retriever.compare.rankings import Ranking
from cocondenser_jax.retriever.data.significance import format_interval, format_p

_HTML = Environment(
    loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined
)
_FLAG = re.compile(r"(?<!\S)--\w+")


def _whole_flags(text: str) -> Markup:
    """Marks flags in a text, so that a browser does not break them at hyphens."""
    return Markup(_FLAG.sub(r'<span class="flag">\g<0></span>', str(escape(text))))


_HTML.filters["whole_flags"] = _whole_flags
_HTML.filters["svg"] = plot_svg
_HTML.filters["gains_svg"] = gains_svg
# The settings file of each kind of run, and its heading.
_KINDS = {"run.json": "Pre-training", "finetune.json": "Fine-tuning"}


def write_run_report(workdirs: Sequence[Path], out: Path) -> None:
    """Writes a report on run folders of pre-training or fine-tuning."""
    for folder in workdirs:
        require_run_folder(folder, *_KINDS)
    by_name = {str(folder): folder for folder in workdirs}
    write_report(out, "Runs", ", ".join(by_name), by_name)


def write_changes(
    out: Path, before: Ranking, after: Ranking, judged: Judged, test: Mapping[str, Any]
) -> None:
    """Writes a report on the changes from one ranking to another, by query.

    `test` is the entry of `significance.compare` for the metric.
    """
    summary = (
        f"{judged.metric}: {after.name} {test['mean']:.4f}, {before.name} {test['other_mean']:.4f},"
        f" difference {test['difference']:+.4f} ({format_interval(test['interval'], digits=4)}),"
        f" p {format_p(test['randomization_p'])}"
    )
    changes = find_changes(before, after, judged)
    write_report(out, "What changes", summary, {}, changes=changes)


def write_report(
    out: Path,
    title: str,
    summary: str,
    workdirs: Mapping[str, Path],
    table: Sequence[Sequence[str]] = (),
    changes: Changes | Differences | None = None,
) -> None:
    """Writes a report on a comparison and on training runs, atomically.

    The page loads no other files, runs no script, and follows the reader's light or dark setting.

    Args:
      out: the HTML file.
      title: the page's title.
      summary: one or two sentences.
      workdirs: folders of training runs, by name; folders without a run are skipped.
      table: the cells of a comparison, see `comparison_table`.
      changes: the changes between two rankings or, without judgments, the overlap of all.
    """
    runs = []
    for file, kind in _KINDS.items():
        of_kind = {name: path for name, path in workdirs.items() if (path / file).is_file()}
        facts = {name: flatten(read_object(path / file)) for name, path in of_kind.items()}
        if of_kind:
            progress = {
                name: _progress(of_kind[name], values)
                for name, values in facts.items()
                if "steps" in values  # pre-training
            }
            runs.append((kind, progress, _plots(of_kind), facts))
    is_judged = not isinstance(changes, Differences)
    page = _HTML.get_template("page.html").render(
        title=title,
        summary=summary,
        table=table,
        changes=changes if is_judged else None,
        differences=None if is_judged else changes,
        runs=runs,
    )
    with new_file(out) as file_out:
        # Text from a corpus may contain lone surrogates, which UTF-8 cannot represent.
        file_out.write_text(page, encoding="utf-8", errors="replace")


def _progress(folder: Path, facts: Mapping[str, Any]) -> str:
    """Returns a pre-training run's step, devices and speed in words."""
    logged = [values for _, values in logged_lines(folder / "metrics.jsonl")]
    step = max((values["step"] for values in logged), default=0)
    progress = f"step {step:,.0f} of {facts['steps']:,}"
    if "computed.device" in facts:
        progress += f" on {facts['computed.devices']} x {facts['computed.device']}"
    rates = [values["tokens_per_second"] for values in logged if "tokens_per_second" in values]
    return progress + (f", {median(rates):,.0f} tokens a second" if rates else "")


def _plots(workdirs: Mapping[str, Path]) -> list[tuple[Panel, list[Curve]]]:
    """Returns panels with their curves, important ones first; each run keeps its color."""
    plots: dict[str, list[Curve]] = {}
    for number, (name, folder) in enumerate(workdirs.items()):
        color = COLORS[number % len(COLORS)]
        for key, curve in read_curves(folder / "metrics.jsonl", name, color).items():
            plots.setdefault(key, []).append(curve)
    return [(panel_of(key), plots[key]) for key in in_order([*plots])]
