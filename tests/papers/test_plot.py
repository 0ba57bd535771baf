"""Plots as files: every point is drawn to scale, and named."""

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from cocondenser_jax.errors import UserError
from papers.figures.plot import Axis, numbered, write_plot
from tests.svg import drawn_lines


def test_every_point_is_drawn_to_scale_and_named(tmp_path):
    k = np.arange(1, 61)
    jagged = k + 9.0 * (k % 2)  # a running mean would show
    other = 50.0 - 5.0 * (k % 3)
    values = {"<jagged>": jagged.tolist(), "other": other.tolist()}
    out = tmp_path / "new" / "plot.svg"
    level = (40, "level")
    write_plot(out, "recall", numbered(values), Axis("depth", is_log=True), reference=level)
    svg = out.read_text()
    lines = drawn_lines(svg)
    # Each has a second line of its color, in the legend.
    first, second = sorted((max(found, key=len) for found in lines.values()), key=len)[-2:]
    per_decade = (first[-1, 0] - first[0, 0]) / np.log10(60)
    per_unit = (first[-1, 1] - first[0, 1]) / (jagged[-1] - jagged[0])
    assert per_unit < 0  # SVG counts downwards
    for points, heights in ((first, jagged), (second, other)):
        np.testing.assert_allclose(points[:, 0], first[0, 0] + per_decade * np.log10(k), atol=1e-4)
        expected = first[0, 1] + per_unit * (heights - jagged[0])
        np.testing.assert_allclose(points[:, 1], expected, atol=1e-4)
    assert svg.count("prefers-color-scheme: dark") == 1
    shown = "".join(ElementTree.fromstring(svg).itertext())
    for text in ("recall", "<jagged>", "other", "level", "depth", "20", "50"):
        assert text in shown
    again = tmp_path / "again.svg"
    write_plot(again, "recall", numbered(values), Axis("depth", is_log=True), reference=level)
    assert again.read_text() == svg


def test_a_logarithmic_height_and_places_of_ones_own(tmp_path):
    steps = np.array([50.0, 100.0, 400.0])
    losses = np.array([10.0, 1.0, 0.1])
    curve = dict(zip(steps.tolist(), losses.tolist(), strict=True))
    write_plot(tmp_path / "plot.svg", "loss", {"a": curve}, Axis("step"), log_y=True)
    lines = drawn_lines((tmp_path / "plot.svg").read_text())
    points = next(found[0] for found in lines.values() if found[0].shape == (3, 2))
    width, height = points[-1] - points[0]
    assert height > 0  # SVG counts downwards
    np.testing.assert_allclose(points[:, 0] - points[0, 0], (steps - 50) / 350 * width, atol=1e-4)
    np.testing.assert_allclose(points[:, 1] - points[0, 1], [0, height / 2, height], atol=1e-4)


def test_more_lines_than_colors_differ_in_their_dashes(tmp_path):
    values = {f"{i}": [0, i, 2 * i] for i in range(12)}
    write_plot(tmp_path / "plot.svg", "", numbered(values), Axis(""))
    styles = re.findall(
        r'style="(fill: none; [^"]*stroke-width: 1\.5[^"]*)"', (tmp_path / "plot.svg").read_text()
    )
    assert len(set(styles)) == 12


def test_a_png_is_one_and_nothing_else_is_left(tmp_path):
    write_plot(tmp_path / "plot.png", "", {"a": {1: 1.0, 2: 2.0}}, Axis(""))
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["plot.png"]


def test_a_file_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*plot\.png"):
        write_plot(tmp_path / "file" / "plot.png", "", {"a": {1: 1.0}}, Axis(""))
