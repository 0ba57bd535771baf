"""Reports: a comparison of retrievers, curves and facts of runs, on one HTML page."""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from cocondenser_jax.files.runs import flatten, require_run_folder
from cocondenser_jax.files.whole import new_file, read_object
from cocondenser_jax.retriever.compare.changes import Changes, Judged, Ranking, find_changes
from cocondenser_jax.retriever.compare.differences import Differences
from cocondenser_jax.retriever.compare.panels import Panel, in_order, panel_of
from cocondenser_jax.retriever.compare.plots import COLORS, Curve, gains_svg, plot_svg, read_curves
from cocondenser_jax.retriever.data.ranking import Metrics
from cocondenser_jax.retriever.data.significance import (
    Comparison,
    compare,
    correct,
    format_interval,
    format_p,
)

_HTML = Environment(
    loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined
)
_FLAG = re.compile(r"(?<!\S)--\w+")


def _whole_flags(text: str) -> Markup:
    """Returns a text in which no line ends within a flag: a browser may break it at a hyphen."""
    return Markup(_FLAG.sub(r'<span class="flag">\g<0></span>', str(escape(text))))


_HTML.filters["whole_flags"] = _whole_flags
_HTML.filters["svg"] = plot_svg
_HTML.filters["gains_svg"] = gains_svg
# The file that says what a run decided, and the heading of such runs.
_KINDS = {"run.json": "Pre-training", "finetune.json": "Fine-tuning"}
NO_VECTORS = (0, 0)


class Evaluation(NamedTuple):
    """What a ranking scores that is compared with others."""

    name: str
    model: str  # by whose vectors it is; "": by BM25 alone
    is_fused: bool  # with the ranking of BM25
    metrics: Metrics
    seconds: float  # that it took to make
    vectors: tuple[int, int] = NO_VECTORS  # how many it searches, and the numbers of each


class ResultRow(NamedTuple):
    """A ranking of a comparison."""

    name: str
    model: str  # as in `Evaluation`
    is_fused: bool
    metrics: Mapping[str, float]  # means, in [0, 1]; the first decides
    tests: Mapping[str, Comparison]  # against one row, which has none
    seconds: float
    vectors: tuple[int, int] = NO_VECTORS  # as in `Evaluation`


def result_rows(evaluations: Sequence[Evaluation], baselines: Collection[str]) -> list[ResultRow]:
    """Returns a row for each ranking, tested against the best baseline.

    Args:
      evaluations: of rankings of the same queries, with the same metrics.
      baselines: names; the best has the highest mean of the first metric.
    """
    metric = next(iter(evaluations[0].metrics["mean"]))
    candidates = [each for each in evaluations if each.name in baselines]
    best = max(candidates, key=lambda each: each.metrics["mean"][metric])
    rows = []
    for each in evaluations:
        tests = {}
        if each is not best:
            tests = compare(each.metrics["per_query"], best.metrics["per_query"])
        row = ResultRow(
            name=each.name,
            model=each.model,
            is_fused=each.is_fused,
            metrics=each.metrics["mean"],
            tests=tests,
            seconds=each.seconds,
            vectors=each.vectors,
        )
        rows.append(row)
    return rows


def corrected_p(rows: Sequence[ResultRow]) -> dict[str, float]:
    """Returns the p of each row's first metric, corrected for the number of tests, by name."""
    metric = next(iter(rows[0].metrics))
    return correct({row.name: row.tests[metric]["randomization_p"] for row in rows if row.tests})


def comparison_table(rows: Sequence[ResultRow]) -> list[list[str]]:
    """Returns the cells of a comparison: the heads first, then a line for each row.

    Beside each metric is the difference from the row that all are tested against; of the first
    metric also its interval, and p, corrected for the number of tests.
    """
    first, *others = rows[0].metrics
    has_vectors = any(row.vectors != NO_VECTORS for row in rows)
    table = [["", first, "95 %", "p", *others, *(["vectors"] if has_vectors else []), "seconds"]]
    p_values = corrected_p(rows)
    for row in rows:
        metrics = {name: f"{value:.3f}" for name, value in row.metrics.items()}
        for name, test in row.tests.items():
            metrics[name] += f" ({test['difference']:+.3f})"
        interval, p_value = "", ""
        if row.tests:
            interval = format_interval(row.tests[first]["interval"])
            p_value = format_p(p_values[row.name], len(p_values))
        cells = [row.name, metrics[first], interval, p_value, *(metrics[name] for name in others)]
        if has_vectors:
            n_vectors, size = row.vectors
            cells.append(f"{n_vectors:,} x {size:,}" if n_vectors else "")
        table.append([*cells, f"{row.seconds:,.0f}"])
    return table


def write_run_report(workdirs: Sequence[Path], out: Path) -> None:
    """Writes a page on run folders of pre-training or fine-tuning."""
    for folder in workdirs:
        require_run_folder(folder, *_KINDS)
    by_name = {str(folder): folder for folder in workdirs}
    write_report(out, "Runs", ", ".join(by_name), by_name)


def write_changes(out: Path, before: Ranking, after: Ranking, judged: Judged) -> None:
    """Writes a page on what changes from one ranking to another, for which queries."""
    test = compare(after.metrics["per_query"], before.metrics["per_query"])[judged.metric]
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
    rows: Sequence[ResultRow] = (),
    changes: Changes | Differences | None = None,
) -> None:
    """Writes a page on a comparison and on training runs, whole or not at all.

    The page loads nothing, runs no script, and follows the reader's light or dark setting.

    Args:
      out: the HTML file.
      title: of the page.
      summary: a sentence or two.
      workdirs: of training runs, by their names; a folder without a run is left out.
      rows: of the comparison, if there is one.
      changes: from one of its rankings to another; or, where nothing is judged, how they differ.
    """
    runs = []
    for file, kind in _KINDS.items():
        of_kind = {name: path for name, path in workdirs.items() if (path / file).is_file()}
        facts = {name: flatten(read_object(path / file)) for name, path in of_kind.items()}
        if of_kind:
            runs.append((kind, _plots(of_kind), facts))
    table = comparison_table(rows) if rows else []
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
        # Text from a corpus may hold lone surrogates, which UTF-8 cannot write.
        file_out.write_text(page, encoding="utf-8", errors="replace")


def _plots(workdirs: Mapping[str, Path]) -> list[tuple[Panel, list[Curve]]]:
    """Returns panels and their curves, the important first; a run has the same color in all."""
    plots: dict[str, list[Curve]] = {}
    for number, (name, folder) in enumerate(workdirs.items()):
        color = COLORS[number % len(COLORS)]
        for key, curve in read_curves(folder / "metrics.jsonl", name, color).items():
            plots.setdefault(key, []).append(curve)
    return [(panel_of(key), plots[key]) for key in in_order([*plots])]
