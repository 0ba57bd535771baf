"""Arrays in, plots out: parts of a page, which decides on colours and fonts, or files."""

import dataclasses
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from cocondenser_jax.errors import UserError
from cocondenser_jax.files import new_file

SERIES_COLOURS = 6  # the page defines --series-0 ... --series-5
_MAX_POINTS = 400  # per curve; more cannot be seen at this width and would swell the page
_SMOOTHED_FROM = 40  # points; shorter curves are drawn as they are
_MARKED_UP_TO = 40  # points, where a plot is a file; more would hide the line
_TWO_COLUMNS_UP_TO = 32  # characters of the longest name in the legend of a file
_DASHES = ("-", "--", ":")  # for lines beyond the colours

# Placeholders that no plot uses for itself; the SVG gets the page's CSS colours in their place.
_CSS_OF_COLOUR = {"#010203": "currentColor", "#040506": "var(--grid)"} | {
    f"#0708{index:02x}": f"var(--series-{index})" for index in range(SERIES_COLOURS)
}
_INK, _GRID, *_SERIES = _CSS_OF_COLOUR
# A plot that is a file gets the colours that the report has on a light page.
_HEX = "#1d1f21 #e3e4e1 #0067a5 #c94f00 #00805e #a03c78 #7a6a00 #5b4bc4".split()
_HEX_OF_COLOUR = dict(zip(_CSS_OF_COLOUR, _HEX, strict=True))

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 9,
    "font.sans-serif": "DejaVu Sans",  # comes with matplotlib, so sizes are the same everywhere
    "figure.facecolor": "none",
    "axes.facecolor": "none",
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


@dataclasses.dataclass(frozen=True)
class Curve:
    """One line of a panel: a value (unit of the panel) at each logged step, [T] and [T].

    In a panel whose horizontal axis shows something else, `steps` are the places on that axis.
    """

    label: str
    steps: np.ndarray
    values: np.ndarray


@dataclasses.dataclass(frozen=True)
class Panel:
    """One plot.

    Attributes:
      title: what is plotted, with its unit.
      curves: the lines; a curve's place in the list is its colour, also where others are empty.
      from_zero: whether the vertical axis starts at 0.
      reference: the height and the name of a dashed horizontal line, for instance chance.
      x_label: what the horizontal axis shows.
      log_x: whether equal factors are equally far apart on it.
    """

    title: str
    curves: Sequence[Curve]
    from_zero: bool = False
    reference: tuple[float, str] | None = None
    x_label: str = "step"
    log_x: bool = False


def read_metrics(path: Path) -> dict[str, np.ndarray]:
    """Reads a `metrics.jsonl` that a training loop wrote, or is still writing.

    A last line without its end is left out.

    Args:
      path: a file of JSON objects, each with `step` and any other numbers.

    Returns:
      One float64 array [T] per key, in the order of the lines; NaN where a line lacks the key.

    Raises:
      UserError: if the file cannot be read, or a line before the last is not such an object.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    rows: list[dict[str, float]] = []
    for number, line in enumerate(lines, start=1):
        try:
            row = {key: float(value) for key, value in json.loads(line).items()}
            if "step" not in row:
                raise ValueError("no step")
            rows.append(row)
        except (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            if number == len(lines):  # what follows the last newline: nothing, or half a line
                break
            message = 'expected a JSON object of numbers with a "step"'
            raise UserError(f"{path}, line {number}: {message}") from error
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: np.array([row.get(key, math.nan) for row in rows]) for key in keys}


def curve(label: str, metrics: Mapping[str, np.ndarray], key: str) -> Curve:
    """Returns the finite values of `key` over their steps; an empty curve if there are none."""
    if key not in metrics:
        return Curve(label, np.empty(0), np.empty(0))
    finite = np.isfinite(metrics[key])
    return Curve(label, metrics["step"][finite], metrics[key][finite])


def bin_means(values: np.ndarray, n_bins: int) -> np.ndarray:
    """Returns the means of `n_bins` consecutive, almost equal parts of `values` [T]: [n_bins].

    With at most `n_bins` values it returns them unchanged.
    """
    if len(values) <= n_bins:
        return values
    return np.array([part.mean() for part in np.array_split(values, n_bins)])


def final_value(line: Curve) -> float:
    """Returns the mean of the last twentieth of the values, at least of one."""
    return float(line.values[-max(1, len(line.values) // 20) :].mean())


def panel_svg(panel: Panel, width: float = 4.6, height: float = 2.5) -> str:
    """Draws a panel without title or legend, which the page sets in its own type.

    Long curves are averaged down to 400 points; from 40 points on, a running mean lies over them.

    Args:
      panel: at least one of its curves must have a point.
      width: inches, as is `height`; the SVG scales with the page.
      height: inches.

    Returns:
      An `<svg>` element that refers to the CSS variables `--series-0` ... and `--grid`.
    """
    with mpl.rc_context({**_STYLE, "svg.hashsalt": panel.title}):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.add_subplot()
        for index, line in enumerate(panel.curves):
            _draw_curve(axes, line, _SERIES[index % SERIES_COLOURS])
        _finish(axes, panel, _INK)
        buffer = io.StringIO()
        FigureCanvasSVG(figure).print_svg(buffer)
    return _inline(buffer.getvalue())


def write_plot(panel: Panel, out: Path, width: float = 5.6, height: float = 3.6) -> None:
    """Writes a panel with title and legend to a file of its own, whole or not at all.

    The lines go through every point, whatever their number.

    Args:
      panel: at least one of its curves must have a point.
      out: the file; its suffix, .png or .svg, says which kind.
      width: inches, as is `height`.
      height: inches.

    Raises:
      UserError: if the file cannot be written.
    """
    kind = out.suffix.removeprefix(".")
    style = {key: _HEX_OF_COLOUR.get(value, value) for key, value in _STYLE.items()}
    style |= {"figure.facecolor": "white", "text.color": _HEX[0], "svg.hashsalt": panel.title}
    with mpl.rc_context(style):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.add_subplot()
        for index, line in enumerate(panel.curves):
            axes.plot(
                line.steps,
                line.values,
                label=line.label,
                color=_HEX_OF_COLOUR[_SERIES[index % SERIES_COLOURS]],
                linestyle=_DASHES[index // SERIES_COLOURS % len(_DASHES)],
                marker="o" if len(line.values) <= _MARKED_UP_TO else "",
                markersize=4,
                linewidth=1.8,
            )
        _finish(axes, panel, _HEX[0])
        long_names = any(
            len(text) > _TWO_COLUMNS_UP_TO for text in axes.get_legend_handles_labels()[1]
        )
        figure.legend(
            title=panel.title,
            title_fontproperties={"weight": "bold"},
            alignment="left",
            loc="outside upper left",
            ncols=1 if long_names else 2,
            frameon=False,
        )
        # Without the date, equal numbers give equal files.
        metadata = {"Date": None} if kind == "svg" else None
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, dpi=200, metadata=metadata)
    with new_file(out) as partial:
        partial.write_bytes(buffer.getvalue())


def _finish(axes: Axes, panel: Panel, ink: str) -> None:
    """Sets what surrounds the lines."""
    if panel.reference is not None:
        height, name = panel.reference
        dashes = (0, (4, 3))
        # Below the curves, of which one may lie on it.
        axes.axhline(height, label=name, color=ink, linewidth=0.9, linestyle=dashes, zorder=1.9)
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


def _draw_curve(axes: Axes, line: Curve, colour: str) -> None:
    steps, values = bin_means(line.steps, _MAX_POINTS), bin_means(line.values, _MAX_POINTS)
    if len(values) >= _SMOOTHED_FROM:
        axes.plot(steps, values, color=colour, linewidth=0.8, alpha=0.35)
        window = np.full(len(values) // 20, 1 / (len(values) // 20))
        steps, values = (np.convolve(array, window, "valid") for array in (steps, values))
    axes.plot(steps, values, color=colour, linewidth=1.8, marker="o" if len(values) == 1 else "")


def _inline(svg: str) -> str:
    """Turns a stand-alone SVG file into an element that takes its colours from the page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # would occur in each plot of the page
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)  # the viewBox stays
    for placeholder, css in _CSS_OF_COLOUR.items():
        svg = svg.replace(placeholder, css)
    return svg
