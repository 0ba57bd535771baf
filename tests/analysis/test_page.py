"""The page says what it was given, is well-formed, and needs nothing beside itself."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from cocondenser_jax.analysis.page import parts, write_page
from cocondenser_jax.analysis.plots import COLOURS, Curve, Panel

HOSTILE = "<script src='https://x.example/a.js'>&\"</script>"
VOID = {"meta", "br", "hr", "img", "input", "link"}
LOADING_ATTRIBUTES = {"src", "srcset", "href", "xlink:href", "data", "action", "poster"}


class Page(HTMLParser):
    """Keeps the text of each element and every attribute; fails on tags that do not nest."""

    def __init__(self, html):
        super().__init__()
        self.open = []
        self.texts = []  # (innermost tag, text)
        self.attributes = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if data.strip():
            self.texts.append((self.open[-1], " ".join(data.split())))

    def texts_in(self, tag):
        return [text for where, text in self.texts if where == tag]


def content(**changes):
    steps = np.arange(1.0, 4.0)
    values = {
        "title": "A run",
        "summary": "Small.",
        "facts": {"seed": "7", "jax": "0.10"},
        "panels": [
            Panel("MLM loss", [Curve("stage 1", steps, np.array([3.0, 2.0, 1.25]))]),
            Panel("Contrastive loss", [Curve("stage 1", np.empty(0), np.empty(0))]),
        ],
        "names": ["BM25", "coCondenser"],
        "metrics": {"MRR@10": [0.4712, 0.24], "Recall@100": [0.9, 0.9001]},
        "others": {"seconds": ["0.2", "1,512.7"]},
        "note": "1,000 queries.",
        "found": {
            "sort an array": [(12.25, "numpy.sort", "Return a sorted copy.")],
            "nothing like it": [],
        },
        "command": 'cocondenser search --query "…"',
        "heading": "Curves",
    }
    return values | changes


def written_page(folder, **changes):
    values, out = content(**changes), folder / "report.html"
    sections = {
        "Comparison": parts.comparison(
            values["names"], values["metrics"], values["others"], values["note"]
        ),
        "Searches": parts.searches(values["found"], values["command"]),
        values["heading"]: parts.plots(values["panels"]),
        "Run": parts.definitions(values["facts"]),
    }
    write_page(out, values["title"], values["summary"], sections)
    html = out.read_text(encoding="utf-8")
    return html, Page(html)


def test_page_shows_the_metrics_and_sets_the_best_of_each_column_in_bold(tmp_path):
    html, page = written_page(tmp_path)
    table = html[html.index("<tbody>") : html.index("</tbody>")]
    assert re.findall(r"<b>([\d.]+)</b>", table) == ["0.471", "0.900"]
    assert re.findall(r"width:([\d.]+)%", table) == ["47.1", "90.0", "24.0", "90.0"]
    assert page.texts_in("th") == [
        "Retriever",
        "MRR@10",
        "Recall@100",
        "seconds",
        "BM25",
        "coCondenser",
    ]
    assert page.texts_in("td") == ["0.900", "0.2", "0.240", "1,512.7"]
    assert page.texts_in("dd") == ["7", "0.10"]
    assert 'cocondenser search --query "…"' in page.texts_in("code")
    assert re.search(r"^pre \{[^}]*white-space: pre-wrap; overflow-wrap: anywhere;", html, re.M)


def test_page_shows_examples_with_scores_and_opens_the_first(tmp_path):
    html, page = written_page(tmp_path)
    assert page.texts_in("summary") == ["sort an array", "nothing like it"]
    assert "12.25" in page.texts_in("span")
    assert "nothing found" in page.texts_in("li")
    opened = re.findall(r"<details( open)?><summary>([^<]*)", html)
    assert opened == [(" open", "sort an array"), ("", "nothing like it")]


def test_page_leaves_out_panels_without_points_and_names_final_values(tmp_path):
    html, page = written_page(tmp_path)
    assert "MLM loss" in page.texts_in("h3")
    assert "Contrastive loss" not in page.texts_in("h3")
    assert html.count("<svg") == 1
    assert "1.25" in page.texts_in("b")


def test_a_curve_has_the_colour_of_its_place_in_plot_and_legend(tmp_path):
    steps = np.arange(1.0, 4.0)
    curves = [Curve(f"{i}", steps, steps * i) for i in range(3)]
    curves[1] = Curve("empty")
    html, _ = written_page(tmp_path, panels=[Panel("loss", curves)])
    legend = re.findall(r'<i style="background:(#\w+)"></i>\s*(\w+) <b>', html)
    assert legend == [(COLOURS[0], "0"), (COLOURS[2], "2")]
    drawn = re.findall(r"stroke: (#\w+); stroke-width: 1\.8", html)
    assert drawn == [COLOURS[0], COLOURS[2]]


def hostile_content():
    return {
        "title": HOSTILE,
        "summary": HOSTILE,
        "facts": {HOSTILE: HOSTILE},
        "panels": [
            Panel(HOSTILE, [Curve(HOSTILE, np.ones(2), np.ones(2))], reference=(1, HOSTILE))
        ],
        "names": [HOSTILE],
        "metrics": {HOSTILE: [0.0]},
        "others": {HOSTILE: [HOSTILE]},
        "note": HOSTILE,
        "found": {HOSTILE: [(1.0, HOSTILE, HOSTILE)]},
        "command": HOSTILE,
        "heading": HOSTILE,
    }


@pytest.mark.parametrize("changes", [{}, hostile_content()])
def test_page_loads_nothing_and_runs_nothing(tmp_path, changes):
    html, page = written_page(tmp_path, **changes)
    loaded = [
        value
        for _, name, value in page.attributes
        if name in LOADING_ATTRIBUTES and not value.startswith("#")
    ]
    assert loaded == []
    assert not any(name.startswith("on") for _, name, _ in page.attributes)
    assert re.findall(r"@import|url\((?!#)", html) == []
    assert "<script" not in html
    policy = [v for t, n, v in page.attributes if t == "meta" and n == "content" and "-src" in v]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_text_comes_out_as_it_went_in(tmp_path):
    _, page = written_page(tmp_path, **hostile_content())
    shown = [text for _, text in page.texts if text == HOSTILE]
    # Title twice, summary, heading, fact twice, panel, curve, reference, metric, column, row, cell,
    # note, query, hit, passage, command.
    assert len(shown) == 18


def test_lone_surrogates_are_written(tmp_path):
    _, page = written_page(tmp_path, found={"\ud800 query": []})
    assert page.texts_in("summary") == ["? query"]


@pytest.mark.parametrize(
    ("passage", "shown"),
    [
        ("one\n  two\tthree", "one two three"),
        ("word " * 100_000, "word " * 80 + "…"),
        ("文" * 100_000, "文" * 400 + " …"),
    ],
)
def test_page_shows_the_beginning_of_a_passage(tmp_path, passage, shown):
    found = {f"query {i}": [(1.0, "title", passage)] * 10 for i in range(20)}
    html, page = written_page(tmp_path, found=found)
    assert page.texts_in("p").count(shown) == 200
    assert len(html.encode()) < 400_000


def test_an_older_page_is_replaced_and_nothing_else_is_left(tmp_path):
    (tmp_path / "report.html").write_text("old")
    _, page = written_page(tmp_path)
    assert page.texts_in("h1") == ["A run"]
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
