"""Reads and plots the logged curves of runs for a report."""

import io
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cocondenser_jax.files.metrics import logged_lines

# Colors of curves, legible on light and dark pages.
COLORS = ("#2b83c6", "#d9641e", "#1a9970", "#c4609c", "#95821a", "#8170e0")
_GREY = "#848a90"
_MAX_POINTS = 100  # per curve; the noise of single steps would hide it
_MAX_QUERIES = 500  # more than the plot has pixels
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.sans-serif": "DejaVu Sans",  # comes with matplotlib, so sizes are the same everywhere
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": _GREY,
    "grid.alpha": 0.3,
    "xtick.color": _GREY,
    "ytick.color": _GREY,
    "xtick.labelcolor": "black",
    "ytick.labelcolor": "black",
}


class Curve(NamedTuple):
    """A curve: values [T] after training steps [T], T ≥ 1."""

    label: str
    color: str
    steps: np.ndarray
    values: np.ndarray


def read_curves(path: Path, label: str, color: str) -> dict[str, Curve]:
    """Reads a curve for each key with a finite value in a `metrics.jsonl`.

    Long curves are averaged to 100 points. An incomplete last line is ignored.
    """
    points: dict[str, list[tuple[float, float]]] = {}
    for _, values in logged_lines(path):
        for key, value in values.items():
            if math.isfinite(value):
                points.setdefault(key, []).append((values["step"], value))
    curves = {}
    for key, all_points in points.items():
        groups = np.array_split(all_points, min(len(all_points), _MAX_POINTS))
        steps, values = np.array([group.mean(axis=0) for group in groups]).T
        curves[key] = Curve(label, color, steps, values)
    return curves


def gains_svg(gains_Q: np.ndarray, metric: str) -> str:
    """Draws the gains of queries, in ascending order, as an area above and below 0."""
    n_bars = min(len(gains_Q), _MAX_QUERIES)
    gains = gains_Q[np.linspace(0, len(gains_Q) - 1, n_bars).round().astype(int)]
    edges = np.linspace(0, len(gains_Q), n_bars + 1)

    def draw(axes: Any) -> None:
        axes.stairs(gains.clip(min=0), edges, fill=True, color=COLORS[2])
        axes.stairs(gains.clip(max=0), edges, fill=True, color=COLORS[1])
        axes.axhline(0, color=_GREY, linewidth=0.8)
        axes.set_xlabel("queries, by gain")
        axes.set_ylabel(f"gain in {metric}")

    return _draw_svg(draw, metric)


def plot_svg(curves: Sequence[Curve], unit: str) -> str:
    """Draws curves by step, without title and legend, which the page has."""
    from matplotlib.ticker import MaxNLocator  # slow to import

    def draw(axes: Any) -> None:
        for curve in curves:
            marker = "o" if len(curve.values) == 1 else ""
            axes.plot(curve.steps, curve.values, color=curve.color, marker=marker)
        axes.set_xlabel("training step")
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 2.5, 5, 10]))
        axes.set_ylabel(unit)

    return _draw_svg(draw, unit)


def _draw_svg(draw: Callable[[Any], None], salt: str) -> str:
    """Returns a drawing as SVG, on a transparent background, in the page's text color."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    buffer = io.StringIO()
    with mpl.rc_context({**_STYLE, "svg.hashsalt": salt}):
        figure = Figure(figsize=(4.6, 2.5), layout="constrained")
        draw(figure.add_subplot(frameon=False))
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(buffer, format="svg", metadata=nothing, transparent=True)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    return re.sub(r'<g id="[^"]*"', "<g", svg)  # would occur in each plot of the page
