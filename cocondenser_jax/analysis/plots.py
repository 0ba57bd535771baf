"""Arrays in, plots out: parts of a page, which sets colours and fonts, or files."""

import io
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cocondenser_jax.errors import escape_control
from cocondenser_jax.storage.files import new_file
from cocondenser_jax.storage.metrics import logged_lines

_MAX_POINTS = 400  # per curve; more cannot be seen at this width and would swell the page
_SMOOTHED_FROM = 40  # points; shorter curves are drawn as they are
_MARKED_UP_TO = 40  # points, where a plot is a file; more would hide the line
_TWO_COLUMNS_UP_TO = 32  # characters of the longest name in the legend of a file
_DASHES = ("-", "--", ":")  # for lines beyond the colours

# Plots are drawn in the colours of a light page; in the SVG of a page, CSS takes their places.
_INK, _GRID, *_SERIES = "#1d1f21 #e3e4e1 #0067a5 #c94f00 #00805e #a03c78 #7a6a00 #5b4bc4".split()
_CSS_OF_COLOUR = {_INK: "currentColor", _GRID: "var(--grid)"} | {
    colour: f"var(--series-{index})" for index, colour in enumerate(_SERIES)
}
SERIES_COLOURS = len(_SERIES)

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 9,
    "font.sans-serif": "DejaVu Sans",  # comes with matplotlib, so sizes are the same everywhere
    "text.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": _INK,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": _GRID,
    "grid.linewidth": 0.8,
    "xtick.color": _GRID,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "ytick.major.size": 0,
}


class Curve(NamedTuple):
    """One line of a panel: its values [T] at places on the horizontal axis [T]."""

    label: str
    steps: np.ndarray = np.empty(0)
    values: np.ndarray = np.empty(0)


class Panel(NamedTuple):
    """One plot."""

    title: str  # what is plotted, with its unit
    curves: Sequence[Curve]  # a curve's place is its colour, also where others are empty
    from_zero: bool = False  # whether the vertical axis starts at 0
    reference: tuple[float, str] | None = None  # height and name of a dashed line, such as chance
    x_label: str = "step"
    log_x: bool = False


def read_curves(path: Path, label: str) -> dict[str, Curve]:
    """Reads the curve of each key of a `metrics.jsonl`, but for values that are not finite.

    The run may go on: an incomplete last line is left out.
    """
    points: dict[str, list[tuple[float, float]]] = {}
    for _, values in logged_lines(path):
        for key, value in values.items():
            found = points.setdefault(key, [])
            if math.isfinite(value):
                found.append((values["step"], value))
    return {key: Curve(label, *np.reshape(found, (-1, 2)).T) for key, found in points.items()}


def bin_means(values: np.ndarray, n_bins: int) -> np.ndarray:
    """Returns the means of at most `n_bins` consecutive, almost equal parts of `values` [T]."""
    if len(values) <= n_bins:
        return values
    return np.array([part.mean() for part in np.array_split(values, n_bins)])


def final_value(line: Curve) -> float:
    """Returns the mean of the last twentieth of the values, at least of one."""
    return float(line.values[-max(1, len(line.values) // 20) :].mean())


def panel_svg(panel: Panel) -> str:
    """Draws a panel that has a point, without title and legend, which are the page's.

    Long curves are averaged down to 400 points; from 40 points on, a running mean lies over them.
    The `<svg>` element refers to the CSS variables `--series-0` ... and `--grid`.
    """
    svg = _draw(panel, "svg", as_file=False).decode()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # would occur in each plot of the page
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)  # the viewBox stays
    for colour, css in _CSS_OF_COLOUR.items():
        svg = svg.replace(colour, css)
    return svg


def write_plot(panel: Panel, out: Path) -> None:
    """Writes a panel that has a point, with title, legend and all points, as .png or .svg."""
    content = _draw(panel, out.suffix.removeprefix("."), as_file=True)
    with new_file(out) as partial:
        partial.write_bytes(content)


def _draw(panel: Panel, kind: str, *, as_file: bool) -> bytes:
    buffer, inches = io.BytesIO(), (5.6, 3.6) if as_file else (4.6, 2.5)
    with mpl.rc_context({**_STYLE, "svg.hashsalt": panel.title}):
        figure = Figure(figsize=inches, layout="constrained")
        axes = figure.add_subplot()
        for index, line in enumerate(panel.curves):
            colour = _SERIES[index % SERIES_COLOURS]
            if as_file:
                marker = "o" if len(line.values) <= _MARKED_UP_TO else ""
                dashes = _DASHES[index // SERIES_COLOURS % len(_DASHES)]
                [drawn] = axes.plot(line.steps, line.values, dashes, label=line.label, color=colour)
                drawn.set(linewidth=1.8, marker=marker, markersize=4)
            else:
                _draw_smoothed(axes, line, colour)
        _finish(axes, panel)
        if as_file:
            names = axes.get_legend_handles_labels()[1]
            figure.legend(
                title=panel.title,
                title_fontproperties={"weight": "bold"},
                alignment="left",
                loc="outside upper left",
                ncols=1 if max(map(len, names)) > _TWO_COLUMNS_UP_TO else 2,
                frameon=False,
            )
        # Without the date, equal numbers give equal files.
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(buffer, format=kind, dpi=200, metadata=metadata, transparent=not as_file)
    return buffer.getvalue()


def _draw_smoothed(axes: Axes, line: Curve, colour: str) -> None:
    steps, values = bin_means(line.steps, _MAX_POINTS), bin_means(line.values, _MAX_POINTS)
    if len(values) >= _SMOOTHED_FROM:
        axes.plot(steps, values, color=colour, linewidth=0.8, alpha=0.35)
        window = np.full(len(values) // 20, 1 / (len(values) // 20))
        steps, values = (np.convolve(array, window, "valid") for array in (steps, values))
    axes.plot(steps, values, color=colour, linewidth=1.8, marker="o" if len(values) == 1 else "")


def _finish(axes: Axes, panel: Panel) -> None:
    """Draws the reference line, and sets the axes."""
    if panel.reference is not None:
        height, name = panel.reference
        # Below the curves, of which one may lie on it.
        dashes = (0, (4, 3))
        axes.axhline(height, label=name, color=_INK, linewidth=0.9, linestyle=dashes, zorder=1.9)
    if panel.from_zero:
        axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    axes.set_xlabel(panel.x_label)
    if panel.log_x:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(mpl.ticker.LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_locator(mpl.ticker.NullLocator())
    else:
        axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(6, integer=True))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:,.6g}"))


def legend_names(paths: Sequence[Path]) -> dict[str, Path]:
    """Returns the paths, each once, by the shortest of their ends that tell them apart."""
    distinct = {path.absolute(): path for path in paths}
    names: dict[str, Path] = {}
    for n_parts in range(1, 1 + max(len(path.parts) for path in distinct)):
        ends = (escape_control(Path(*path.parts[-n_parts:]).as_posix()) for path in distinct)
        names = dict(zip(ends, distinct.values(), strict=True))
        if len(names) == len(distinct):
            break
    return names
