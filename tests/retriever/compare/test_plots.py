"""Metrics files are read as they are found on disk, and plots show the numbers they were given."""

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.compare import report
from cocondenser_jax.retriever.compare.plots import COLORS, Curve, plot_svg, read_curves


def write_lines(path, *rows, end=""):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + end)
    return path


def test_curves_have_the_values_of_the_lines_that_have_their_key(tmp_path):
    path = write_lines(tmp_path / "m.jsonl", {"step": 1, "loss": 2.0}, {"step": 2, "rate": 0.5})
    curves = read_curves(path, "run", "#2b83c6")
    assert list(curves) == ["step", "loss", "rate"]
    assert {(curve.label, curve.color) for curve in curves.values()} == {("run", "#2b83c6")}
    np.testing.assert_array_equal(curves["loss"].steps, [1])
    np.testing.assert_array_equal(curves["loss"].values, [2.0])
    np.testing.assert_array_equal(curves["rate"].steps, [2])
    np.testing.assert_array_equal(curves["rate"].values, [0.5])


@pytest.mark.parametrize("end", ["", "{", '{"step": 3, "lo', "\x00\x00"])
def test_curves_ignore_an_unfinished_last_line(tmp_path, end):
    path = write_lines(
        tmp_path / "m.jsonl", {"step": 1, "loss": 2}, {"step": 2, "loss": 1}, end=end
    )
    np.testing.assert_array_equal(read_curves(path, "", "")["loss"].values, [2, 1])


@pytest.mark.parametrize("line", ["{", "[1]", '{"loss": 1}', '{"step": 1, "loss": "high"}', "3"])
def test_read_curves_names_the_line_that_is_wrong(tmp_path, line):
    path = tmp_path / "m.jsonl"
    path.write_text(f'{{"step": 1, "loss": 2}}\n{line}\n{{"step": 2, "loss": 2}}\n')
    with pytest.raises(UserError, match=r"m\.jsonl, line 2: expected"):
        read_curves(path, "", "")


def test_read_curves_of_a_missing_file(tmp_path):
    with pytest.raises(UserError, match=r"cannot read .*none\.jsonl"):
        read_curves(tmp_path / "none.jsonl", "", "")


def test_curves_leave_out_what_cannot_be_drawn(tmp_path):
    losses = [1.0, np.inf, np.nan, 2.0]
    rows = [{"step": step, "loss": loss, "none": np.nan} for step, loss in enumerate(losses)]
    curves = read_curves(write_lines(tmp_path / "m.jsonl", *rows), "", "")
    np.testing.assert_array_equal(curves["loss"].steps, [0, 3])
    assert "none" not in curves


def test_a_long_curve_becomes_the_means_of_a_hundred_parts(tmp_path):
    values = np.random.default_rng(0).normal(size=1003)
    rows = [{"step": step, "loss": loss} for step, loss in enumerate(values)]
    curve = read_curves(write_lines(tmp_path / "m.jsonl", *rows), "", "")["loss"]
    sizes = [11] * 3 + [10] * 97
    np.testing.assert_allclose(curve.values[0], values[:11].mean())
    np.testing.assert_allclose(curve.values[-1], values[-10:].mean())
    np.testing.assert_allclose(curve.values @ sizes, values.sum())
    np.testing.assert_allclose(curve.steps @ sizes, np.arange(1003).sum())


def drawn_lines(svg):
    """Returns the points [T, 2] of every unfilled path, by stroke."""
    lines = {}
    for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}path"):
        style = dict(re.findall(r"([\w-]+): ([^;]+)", element.get("style", "")))
        if style.get("fill") == "none" and "stroke" in style:
            numbers = re.findall(r"-?[\d.]+", element.get("d", ""))
            points = np.array(numbers, dtype=float).reshape(-1, 2)
            lines.setdefault(style["stroke"], []).append(points)
    return lines


def test_plot_draws_each_curve_to_scale_in_its_own_color():
    steps, first, second = np.array([0, 1, 3]), np.array([1.0, 5.0, 3.0]), np.array([2.0, 2.0, 4.0])
    curves = [Curve("a", COLORS[0], steps, first), Curve("b", COLORS[2], steps, second)]
    lines = drawn_lines(plot_svg(curves, "loss"))
    [a] = lines[COLORS[0]]
    [b] = lines[COLORS[2]]
    assert COLORS[1] not in lines
    per_step = (a[2, 0] - a[0, 0]) / 3
    np.testing.assert_allclose(a[:, 0], a[0, 0] + per_step * steps, atol=1e-4)
    per_unit = (a[1, 1] - a[0, 1]) / 4  # negative: SVG counts downwards
    assert per_unit < 0
    np.testing.assert_allclose(a[:, 1], a[0, 1] + per_unit * (first - 1), atol=1e-4)
    np.testing.assert_allclose(b[:, 1], a[0, 1] + per_unit * (second - 1), atol=1e-4)


def luminance(color):
    """Relative luminance, as in WCAG 2."""
    values = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in values]
    return np.dot([0.2126, 0.7152, 0.0722], linear)


def test_every_color_can_be_told_from_a_light_and_a_dark_page():
    steps = np.arange(50.0)
    curves = [Curve("", color, steps, steps * i) for i, color in enumerate(COLORS)]
    svg = plot_svg(curves, "")
    used = set(re.findall(r"(?:fill|stroke): ?(#[0-9a-f]+)", svg))
    assert used > {*COLORS}
    html = Path(report.__file__).with_name("page.html").read_text()
    cards = re.findall(r"--card: (#\w+)", html)
    assert len(cards) == 2
    for color in used:
        for card in cards:
            dark, light = sorted(luminance(x) + 0.05 for x in (color, card))
            assert light / dark > 3  # what WCAG 2 asks of graphics


def test_plot_brings_neither_a_background_nor_a_color_of_text():
    svg = plot_svg([Curve("", COLORS[0], np.arange(3.0), np.arange(3.0))], "")
    assert re.findall(r"(?:fill|stroke): ?(?:black|white|#000000|#ffffff)", svg) == []
    assert re.findall(r"<text[^>]*fill", svg) == []
    assert "<metadata" not in svg
