"""Metrics files are read as they are found on disk, and plots show the numbers they were given."""

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.compare import report
from cocondenser_jax.retriever.compare.plots import COLORS, Curve, gains_svg, plot_svg, read_curves
from tests.svg import drawn_lines


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


def filled_areas(svg):
    """Returns the points [T, 2] of every filled path, by its color."""
    areas = {}
    for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}path"):
        style = dict(re.findall(r"([\w-]+): ([^;]+)", element.get("style", "")))
        if style.get("fill") in COLORS:
            numbers = re.findall(r"-?[\d.]+", element.get("d", ""))
            areas[style["fill"]] = np.array(numbers, dtype=float).reshape(-1, 2)
    return areas


@pytest.mark.parametrize("n", [5, 2_000])
def test_gains_are_areas_above_and_losses_below_zero(n):
    """Each query is as wide as the others; of many, 500 are drawn, from the first to the last."""
    n_losses = n * 2 // 5
    gains_Q = np.r_[np.linspace(-0.5, -0.25, n_losses), np.linspace(0, 1, n - n_losses)]
    svg = gains_svg(gains_Q, "MRR@10")
    assert {*re.findall(r">([a-z][^<]*)</text>", svg)} == {"queries, by gain", "gain in MRR@10"}
    above, below = filled_areas(svg).items()
    assert (above[0], below[0]) == (COLORS[2], COLORS[1])
    zero = below[1][:, 1].min()
    assert above[1][:, 1].max() == pytest.approx(zero)
    gain, loss = zero - above[1][:, 1].min(), below[1][:, 1].max() - zero
    assert gain / loss == pytest.approx(1 / 0.5, rel=1e-4)
    all_x = np.r_[above[1][:, 0], below[1][:, 0]]
    losing_x = below[1][below[1][:, 1] > zero + 1e-6, 0]
    assert np.ptp(losing_x) / np.ptp(all_x) == pytest.approx(2 / 5, abs=2e-3)
    assert losing_x.min() == all_x.min()
    # The line at zero; those of the grid are faint.
    styles = re.findall(r'<path d="([^"]*)"[^>]*style="([^"]*stroke: #848a90[^"]*)"', svg)
    (line,) = (path for path, style in styles if "opacity" not in style)
    assert [float(y) for y in re.findall(r"[ML] \S+ (\S+)", line)] == pytest.approx([zero] * 2)
    assert len({*all_x}) == min(n, 500) + 1  # borders of bars


def test_a_plot_is_the_same_each_time_and_shares_no_name_with_another(tmp_path):
    """Names of parts would mean the first of them on a page with several plots."""
    curves = [Curve("a", COLORS[0], np.arange(3), np.arange(3.0))]
    one, other = (plot_svg(curves, unit) for unit in ("one", "eon"))  # as wide, and as high
    assert one == plot_svg(curves, "one")
    assert one.startswith("<svg ")
    names = [{*re.findall(r' id="([^"]*)"', svg)} for svg in (one, other)]
    assert "figure_1" not in names[0]
    clipped = [{name for name in each if name.startswith("p")} for each in names]
    assert clipped[0]
    assert not clipped[0] & clipped[1]


def test_a_single_point_is_a_dot_and_steps_are_integers():
    def dots(n):
        curve = Curve("a", COLORS[0], np.arange(n) + 1, np.ones(n))
        svg = plot_svg([curve], "nats")
        assert {"training step", "nats"} == {*re.findall(r">([a-z][^<]*)</text>", svg)}
        ticks = re.findall(r">(\d[^<]*)</text>", svg)
        assert "1.5" not in ticks
        return len(re.findall(rf'<use [^>]*style="fill: {COLORS[0]}', svg))

    assert (dots(1), dots(2)) == (1, 0)


def test_only_values_have_grid_lines_which_are_faint():
    svg = plot_svg([Curve("", COLORS[0], np.arange(3.0), np.arange(3.0))], "")
    faint = re.findall(r'<path d="([^"]*)"[^>]*stroke-opacity: 0\.3', svg)
    points = [re.findall(r"-?[\d.]+", path) for path in faint]
    assert len(points) > 2
    assert all(float(x1) < float(x2) and y1 == y2 for x1, y1, x2, y2 in points)


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
