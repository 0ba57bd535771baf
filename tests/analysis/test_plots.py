"""Metrics files are read as they are found on disk, and plots show the numbers they were given."""

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from cocondenser_jax.analysis import page
from cocondenser_jax.analysis.plots import (
    Curve,
    Panel,
    bin_means,
    final_value,
    legend_names,
    panel_svg,
    read_curves,
    write_plot,
)
from cocondenser_jax.errors import UserError


def write_lines(path, *rows, end=""):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + end)
    return path


def test_curves_have_the_values_of_the_lines_that_have_their_key(tmp_path):
    path = write_lines(tmp_path / "m.jsonl", {"step": 1, "loss": 2.0}, {"step": 2, "rate": 0.5})
    curves = read_curves(path, "run")
    assert list(curves) == ["step", "loss", "rate"]
    assert {curve.label for curve in curves.values()} == {"run"}
    np.testing.assert_array_equal(curves["loss"].steps, [1])
    np.testing.assert_array_equal(curves["loss"].values, [2.0])
    np.testing.assert_array_equal(curves["rate"].steps, [2])
    np.testing.assert_array_equal(curves["rate"].values, [0.5])


@pytest.mark.parametrize("end", ["", "{", '{"step": 3, "lo', "\x00\x00"])
def test_curves_ignore_an_unfinished_last_line(tmp_path, end):
    path = write_lines(
        tmp_path / "m.jsonl", {"step": 1, "loss": 2}, {"step": 2, "loss": 1}, end=end
    )
    np.testing.assert_array_equal(read_curves(path, "")["loss"].values, [2, 1])


@pytest.mark.parametrize("line", ["{", "[1]", '{"loss": 1}', '{"step": 1, "loss": "high"}', "3"])
def test_read_curves_names_the_line_that_is_wrong(tmp_path, line):
    path = tmp_path / "m.jsonl"
    path.write_text(f'{{"step": 1, "loss": 2}}\n{line}\n{{"step": 2, "loss": 2}}\n')
    with pytest.raises(UserError, match=r"m\.jsonl, line 2: expected"):
        read_curves(path, "")


def test_read_curves_of_a_missing_file(tmp_path):
    with pytest.raises(UserError, match=r"cannot read .*none\.jsonl"):
        read_curves(tmp_path / "none.jsonl", "")


def test_curves_leave_out_what_cannot_be_drawn(tmp_path):
    losses = [1.0, np.inf, np.nan, 2.0]
    rows = [{"step": step, "loss": loss, "none": np.nan} for step, loss in enumerate(losses)]
    curves = read_curves(write_lines(tmp_path / "m.jsonl", *rows), "")
    np.testing.assert_array_equal(curves["loss"].steps, [0, 3])
    assert curves["none"].values.shape == (0,)


def test_bin_means():
    np.testing.assert_allclose(bin_means(np.arange(6.0), 3), [0.5, 2.5, 4.5])
    np.testing.assert_array_equal(bin_means(np.arange(3.0), 3), [0, 1, 2])
    values = np.random.default_rng(0).normal(size=1003)
    means = bin_means(values, 10)  # three bins hold 101 values, seven hold 100
    np.testing.assert_allclose(means @ ([101] * 3 + [100] * 7), values.sum())


def test_final_value_is_the_mean_of_the_last_twentieth():
    values = np.concatenate([np.zeros(95), [1, 2, 3, 4, 5]])
    assert final_value(Curve("", np.arange(100), values)) == 3.0
    assert final_value(Curve("", np.arange(3), np.array([9.0, 9.0, 7.0]))) == 7.0


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


def test_panel_draws_each_curve_to_scale_in_its_own_colour():
    steps, first, second = np.array([0, 1, 3]), np.array([1.0, 5.0, 3.0]), np.array([2.0, 2.0, 4.0])
    empty = Curve("empty", np.empty(0), np.empty(0))
    curves = [Curve("a", steps, first), empty, Curve("b", steps, second)]
    lines = drawn_lines(panel_svg(Panel("loss", curves, reference=(4.5, "chance"))))
    [a], [b], [chance] = lines["var(--series-0)"], lines["var(--series-2)"], lines["currentColor"]
    assert "var(--series-1)" not in lines
    per_step = (a[2, 0] - a[0, 0]) / 3
    np.testing.assert_allclose(a[:, 0], a[0, 0] + per_step * steps, atol=1e-4)
    per_unit = (a[1, 1] - a[0, 1]) / 4  # negative: SVG counts downwards
    assert per_unit < 0
    np.testing.assert_allclose(a[:, 1], a[0, 1] + per_unit * (first - 1), atol=1e-4)
    np.testing.assert_allclose(b[:, 1], a[0, 1] + per_unit * (second - 1), atol=1e-4)
    np.testing.assert_allclose(chance[:, 1], a[0, 1] + per_unit * 3.5, atol=1e-4)


@pytest.mark.parametrize("from_zero", [True, False])
def test_vertical_axis_starts_at_zero_on_request(from_zero):
    line = Curve("", np.array([10.0, 11.0]), np.array([300.0, 310.0]))
    labels = re.findall(r">([\d,.]+)</text>", panel_svg(Panel("", [line], from_zero=from_zero)))
    assert ("0" in labels) == from_zero


def test_running_mean_of_a_noisy_line_lies_on_the_line():
    steps = np.arange(200.0)
    noise = np.where(steps % 2 == 0, 1.0, -1.0)  # cancels in every window of even length
    svg = panel_svg(Panel("", [Curve("", steps, 0.5 * steps + noise)]))
    raw, smooth = drawn_lines(svg)["var(--series-0)"]
    # The first and the last raw point are (0, 1) and (199, 98.5); the line itself is y = x / 2.
    (x0, y0), (x1, y1) = raw[0], raw[-1]
    step = (smooth[:, 0] - x0) / (x1 - x0) * 199
    value = 1 + (smooth[:, 1] - y0) / (y1 - y0) * 97.5
    np.testing.assert_allclose(value, step / 2, atol=1e-3)


def test_panel_takes_its_colours_from_the_page_only():
    steps = np.arange(50.0)
    curves = [Curve(str(i), steps, steps * i) for i in range(7)]
    svg = panel_svg(Panel("", curves, from_zero=True, reference=(1.0, "")))
    assert re.findall(r"(?:fill|stroke): ?(#[0-9a-f]+|black|white)", svg) == []
    assert "<metadata" not in svg


def test_panel_of_a_long_run_stays_small():
    steps = np.arange(500_000.0)
    values = np.random.default_rng(0).normal(size=steps.shape)
    assert len(panel_svg(Panel("", [Curve("", steps, values)]))) < 60_000


LIGHT = dict(
    re.findall(
        r"--([\w-]+): (#\w+)",
        Path(page.__file__).with_name("page.html").read_text().split("@media")[0],
    )
)


def test_a_file_has_the_light_colours_of_the_report_and_every_point(tmp_path):
    k = np.arange(1, 61)
    jagged, other = k + 9.0 * (k % 2), 50.0 - 5.0 * (k % 3)  # a running mean would show
    curves = [Curve("<jagged>", k, jagged), Curve("other", k, other)]
    panel = Panel("recall", curves, reference=(40, "level"), x_label="depth", log_x=True)
    out = tmp_path / "new" / "plot.svg"
    write_plot(panel, out)
    svg = out.read_text()
    lines = drawn_lines(svg)
    # Each has a second line of its colour, in the legend.
    first, second = (max(lines[LIGHT[f"series-{i}"]], key=len) for i in (0, 1))
    per_decade = (first[-1, 0] - first[0, 0]) / np.log10(60)
    per_unit = (first[-1, 1] - first[0, 1]) / (jagged[-1] - jagged[0])
    for points, values in ((first, jagged), (second, other)):
        np.testing.assert_allclose(points[:, 0], first[0, 0] + per_decade * np.log10(k), atol=1e-4)
        heights = first[0, 1] + per_unit * (values - jagged[0])
        np.testing.assert_allclose(points[:, 1], heights, atol=1e-4)
    assert set(re.findall(r"(?:fill|stroke): ?(#\w+)", svg)) <= {*LIGHT.values(), "#ffffff"}
    shown = "".join(ElementTree.fromstring(svg).itertext())
    for text in ("recall", "<jagged>", "other", "level", "depth", "20", "50"):
        assert text in shown
    write_plot(panel, tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text() == svg


def test_more_lines_than_colours_differ_in_their_dashes(tmp_path):
    curves = [Curve(f"{i}", np.arange(3), np.arange(3) * i) for i in range(8)]
    write_plot(Panel("", curves), tmp_path / "plot.svg")
    styles = re.findall(
        r'style="([^"]*stroke-width: 1\.8[^"]*)"', (tmp_path / "plot.svg").read_text()
    )
    assert len(set(styles)) == 8


def test_a_png_is_one_and_nothing_else_is_left(tmp_path):
    write_plot(Panel("", [Curve("a", np.arange(3), np.arange(3.0))]), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["plot.png"]


def test_a_file_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    panel = Panel("", [Curve("a", np.arange(3), np.arange(3.0))])
    with pytest.raises(UserError, match=r"cannot write .*plot\.png"):
        write_plot(panel, tmp_path / "file" / "plot.png")


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["a/b/run", "a/c/run", "a/b/run"], ["b/run", "c/run"]),
        (["a/run", "b/other"], ["run", "other"]),
        (["run"], ["run"]),
    ],
)
def test_names_of_a_legend_tell_paths_apart(paths, names):
    found = legend_names([Path(path) for path in paths])
    assert found == {name: Path(path) for name, path in zip(names, paths, strict=False)}
