"""Shapes of SVG, in colors for light and dark pages. A picture is a string of them."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

# Class → fill and stroke in light mode, and in dark mode. "ink" is text, "paper" the ground.
LIGHT = {
    "paper": ("#fcfcfa", "none"),
    "ink": ("#1d1f21", "none"),
    "faint": ("#5c6166", "none"),
    "jax": ("#e8f2fa", "#0067a5"),
    "torch": ("#fdeee6", "#c94f00"),
    "data": ("#f1f1ee", "#5c6166"),
    "off": ("#d9d9d6", "none"),
    "one": ("#8a8f94", "none"),
    "two": ("#0067a5", "none"),
    "three": ("#c94f00", "none"),
    "four": ("#00805e", "none"),
    "line": ("none", "#5c6166"),
    "curve-one": ("none", "#8a8f94"),
    "curve-two": ("none", "#0067a5"),
    "curve-three": ("none", "#c94f00"),
    "curve-four": ("none", "#00805e"),
    "grid": ("none", "#d0d0cc"),
    "head": ("#5c6166", "none"),
}
DARK = {
    "paper": ("#17191c", "none"),
    "ink": ("#e8e8e6", "none"),
    "faint": ("#a8adb2", "none"),
    "jax": ("#14344a", "#6db3e8"),
    "torch": ("#472414", "#f59b62"),
    "data": ("#2a2d30", "#a8adb2"),
    "off": ("#3a3d40", "none"),
    "one": ("#858a8f", "none"),
    "two": ("#6db3e8", "none"),
    "three": ("#f59b62", "none"),
    "four": ("#4fc59d", "none"),
    "line": ("none", "#a8adb2"),
    "curve-one": ("none", "#858a8f"),
    "curve-two": ("none", "#6db3e8"),
    "curve-three": ("none", "#f59b62"),
    "curve-four": ("none", "#4fc59d"),
    "grid": ("none", "#3a3d40"),
    "head": ("#a8adb2", "none"),
}


WIDTH = 900  # of a picture, so that text has one size on a page
NARROW = 480  # of one that a phone shows whole


def picture(height: int, title: str, shapes: Sequence[str], width: int = WIDTH) -> str:
    """Returns the text of an SVG file; the title is read out to those who cannot see it."""
    dark = "".join(_rules(DARK))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" font-family="Helvetica, Arial, sans-serif" font-size="14"'
        f' role="img" aria-labelledby="title">\n<title id="title">{escape(title)}</title>\n'
        f"<style>\n{''.join(_rules(LIGHT))}@media (prefers-color-scheme: dark) {{\n{dark}}}\n"
        "</style>\n"
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"'
        ' markerHeight="7" orient="auto"><path class="head" d="M0 0 L8 4 L0 8 z"/></marker>'
        "</defs>\n"
        f'<rect class="paper" width="{width}" height="{height}" rx="8"/>\n'
        + "".join(f"{shape}\n" for shape in shapes)
        + "</svg>\n"
    )


def _rules(colors: dict[str, tuple[str, str]]) -> list[str]:
    return [
        f".{name} {{ fill: {fill}; stroke: {stroke} }}\n" for name, (fill, stroke) in colors.items()
    ]


def text(
    x: float, y: float, words: str, *, kind: str = "ink", size: int = 14, at: str = "middle"
) -> str:
    """Returns a line of text: `at` is its start, middle or end."""
    return (
        f'<text class="{kind}" x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{at}">'
        f"{escape(words)}</text>"
    )


def box(x: float, y: float, width: float, height: float, lines: str, *, kind: str = "data") -> str:
    """Returns a box with its lines of text, separated by |."""
    shapes = [
        f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"/>'
    ]
    words = lines.split("|")
    first = y + height / 2 + 5 - 9 * (len(words) - 1)
    shapes += [text(x + width / 2, first + 18 * i, line) for i, line in enumerate(words)]
    return "\n".join(shapes)


def arrow(path: str, *, dashed: bool = False) -> str:
    """Returns an arrow along an SVG path."""
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<path class="line" d="{path}" stroke-width="1.5"{dash} marker-end="url(#head)"/>'


def line(path: str, *, kind: str = "grid") -> str:
    """Returns a line along an SVG path."""
    return f'<path class="{kind}" d="{path}"/>'


def note(y: float, words: str) -> str:
    """Returns a small line of text, at the left border."""
    return text(20, y, words, kind="faint", size=12, at="start")


def bar(x: float, y: float, width: float, height: float, kind: str) -> str:
    """Returns a bar of a chart."""
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"/>'


def panel(
    x: float,
    title: str,
    curves: dict[str, Sequence[Sequence[float]]],
    ticks: Sequence[float],
    marks: dict[str, float],
    width: int = 240,
) -> list[str]:
    """Returns a plot of curves.

    Args:
      x: the left border of the panel, which is 60 wider than the plot.
      title: what the vertical axis shows.
      curves: color of a curve → its points [share of the width, value].
      ticks: values to mark on the vertical axis; the first and the last are its ends.
      marks: label on the horizontal axis → its share of the width.
      width: of the plot.
    """
    left = x + 44
    base = 250
    height = 160
    low = ticks[0]
    scale = height / (ticks[-1] - low)
    shapes = [text(x + 10, 72, title, size=13, at="start")]
    for tick in ticks:
        y = base - (tick - low) * scale
        shapes.append(line(f"M{left} {y:g} H{left + width}"))
        shapes.append(text(left - 8, y + 4, f"{tick:g}", kind="faint", size=12, at="end"))
    for label, share in marks.items():
        shapes.append(text(left + share * width, base + 18, label, kind="faint", size=12))
    for kind, points in curves.items():
        places = [
            f"{left + share * width:.1f} {base - (value - low) * scale:.1f}"
            for share, value in points
        ]
        shapes.append(f'<path class="curve-{kind}" d="M{" L".join(places)}" stroke-width="2"/>')
    return shapes


def legend(y: float, names: dict[str, str]) -> list[str]:
    """Returns the names of curves or bars beside their colors, in a row."""
    shapes = []
    x = 20.0
    for name, kind in names.items():
        shapes += [bar(x, y, 12, 12, kind), text(x + 18, y + 11, name, size=13, at="start")]
        x += 40 + 7 * len(name)
    return shapes


class Row(NamedTuple):
    """A bar of a chart, with its name and its value."""

    name: str
    value: float
    shown: str  # the value as it is written
    kind: str  # the color


def bars(y: float, title: str, rows: Sequence[Row], top: float) -> list[str]:
    """Returns horizontal bars of a narrow picture, which begin at 0, under a title.

    Args:
      y: the base line of the title; the bars take `BAR_PITCH` each below it.
      title: what they show.
      rows: from above.
      top: the value of the longest bar that there is room for.
    """
    shapes = [text(20, y, title, size=13, at="start")]
    left, room = 196, NARROW - 196 - 62
    for number, row in enumerate(rows):
        place = y + 10 + BAR_PITCH * number
        length = room * row.value / top
        shapes += [
            text(left - 8, place + 14, row.name, kind="faint", size=13, at="end"),
            bar(left, place, length, BAR_PITCH - 5, row.kind),
            text(left + length + 6, place + 14, row.shown, size=13, at="start"),
        ]
    return shapes


BAR_PITCH = 24
