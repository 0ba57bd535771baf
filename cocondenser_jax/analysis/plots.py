"""The curves that runs logged, and plots of them for a page."""

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
from cocondenser_jax.storage.metrics import logged_lines

# Of curves, by their places: each can be read on a light and on a dark page.
COLOURS = ("#2b83c6", "#d9641e", "#1a9970", "#c4609c", "#95821a", "#8170e0")
_GREY = "#848a90"
_MAX_POINTS = 400  # per curve; more cannot be seen at this width and would swell the page
_SMOOTHED_FROM = 40  # points; shorter curves are drawn as they are
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 9,
    "font.sans-serif": "DejaVu Sans",  # comes with matplotlib, so sizes are the same everywhere
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.edgecolor": _GREY,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": _GREY,
    "grid.alpha": 0.3,
    "xtick.color": _GREY,
    "xtick.labelcolor": "black",
    "ytick.major.size": 0,
}


class Curve(NamedTuple):
    """One line of a panel: its values [T] after training steps [T]."""

    label: str
    steps: np.ndarray = np.empty(0)
    values: np.ndarray = np.empty(0)

    @property
    def has_points(self) -> bool:
        """Whether there is anything to draw."""
        return len(self.values) > 0


class Panel(NamedTuple):
    """One plot."""

    title: str  # what is plotted, with its unit
    curves: Sequence[Curve]  # a curve's place is its colour, also where others are empty
    from_zero: bool = False  # whether the vertical axis starts at 0
    reference: tuple[float, str] | None = None  # height and name of a dashed line, such as chance


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
    The background is transparent, and text has the colour that the page gives it.
    """
    buffer = io.StringIO()
    with mpl.rc_context({**_STYLE, "svg.hashsalt": panel.title}):
        figure = Figure(figsize=(4.6, 2.5), layout="constrained")
        axes = figure.add_subplot()
        for index, line in enumerate(panel.curves):
            _draw_smoothed(axes, line, COLOURS[index % len(COLOURS)])
        if panel.reference is not None:
            # Below the curves, of which one may lie on it.
            height, _ = panel.reference
            axes.axhline(height, color=_GREY, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1.9)
        if panel.from_zero:
            axes.set_ylim(bottom=0)
        axes.margins(x=0.01)
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(6, integer=True))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:,.6g}"))
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(buffer, format="svg", metadata=nothing, transparent=True)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    return re.sub(r'<g id="[^"]*"', "<g", svg)  # would occur in each plot of the page


def _draw_smoothed(axes: Axes, line: Curve, colour: str) -> None:
    steps = bin_means(line.steps, _MAX_POINTS)
    values = bin_means(line.values, _MAX_POINTS)
    if len(values) >= _SMOOTHED_FROM:
        axes.plot(steps, values, color=colour, linewidth=0.8, alpha=0.35)
        window = np.full(len(values) // 20, 1 / (len(values) // 20))
        steps = np.convolve(steps, window, "valid")
        values = np.convolve(values, window, "valid")
    axes.plot(steps, values, color=colour, linewidth=1.8, marker="o" if len(values) == 1 else "")
