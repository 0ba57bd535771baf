"""Draws a plot of a few lines, with title and legend, to a file."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure

from cocondenser_jax.files.whole import new_file

_DASHES = ("-", "--", ":")  # for lines beyond the colors
_N_COLORS = 10  # of matplotlib's
_MARKED_UP_TO = 40  # points; more would hide the line
_TWO_COLUMNS_UP_TO = 32  # characters of the longest name in the legend
# Dark pages show the plot with inverted brightness and the same hues.
_DARK = b"""<style>@media (prefers-color-scheme: dark)
 { svg { filter: invert(1) hue-rotate(180deg) } }</style>
"""
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "cocondenser",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.alpha": 0.4,
}


def numbered(lines: Mapping[str, Sequence[float]]) -> dict[str, dict[float, float]]:
    """Returns lines for a plot whose values stand at 1, 2, ... of the horizontal axis."""
    return {name: dict(enumerate(values, start=1)) for name, values in lines.items()}


class Axis(NamedTuple):
    """The horizontal axis of a plot."""

    label: str
    is_log: bool = False


def write_plot(
    out: Path,
    title: str,
    lines: Mapping[str, Mapping[float, float]],
    x: Axis,
    *,
    log_y: bool = False,
    reference: tuple[float, str] | None = None,
) -> None:
    """Writes a plot as .png or .svg; equal numbers give equal files.

    Args:
      out: the file, whose ending is its format.
      title: what is plotted, with its unit.
      lines: name → place on the horizontal axis → value.
      x: the horizontal axis.
      log_y: whether the vertical axis is logarithmic; if not, it begins at 0.
      reference: height and name of a dashed line.
    """
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(5.6, 3.6), layout="constrained")
        axes = figure.add_subplot()
        for index, (name, values) in enumerate(lines.items()):
            axes.plot(
                list(values.keys()),
                list(values.values()),
                _DASHES[index // _N_COLORS % len(_DASHES)],
                label=name,
                color=f"C{index % _N_COLORS}",
                marker="o" if len(values) <= _MARKED_UP_TO else "",
                markersize=4,
            )
        if reference is not None:
            height, name = reference
            axes.axhline(height, label=name, color="black", linewidth=0.9, linestyle=(0, (4, 3)))
        if log_y:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.set_xlabel(x.label)
        if x.is_log:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(mpl.ticker.LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_minor_locator(mpl.ticker.NullLocator())
            axes.xaxis.set_major_formatter(mpl.ticker.StrMethodFormatter("{x:,g}"))
        else:
            axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(6, integer=True))
        longest = max(map(len, lines))
        figure.legend(
            title=title,
            title_fontproperties={"weight": "bold"},
            alignment="left",
            loc="outside upper left",
            ncols=1 if longest > _TWO_COLUMNS_UP_TO else 2,
            frameon=False,
        )
        kind = out.suffix.removeprefix(".")
        buffer = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(buffer, format=kind, dpi=200, metadata=metadata)
    content = buffer.getvalue()
    if kind == "svg":
        content = content.replace(b"</svg>", _DARK + b"</svg>")
    with new_file(out) as partial:
        partial.write_bytes(content)
