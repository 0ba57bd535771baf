"""The page says what it was given, is well-formed, and needs nothing beside itself."""

import json
import re
from html.parser import HTMLParser

import pytest

from cocondenser_jax.retriever.compare.rankings import comparison_table
from cocondenser_jax.retriever.compare.report import write_report
from tests.world import comparison_of, ranked

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


def write_run(folder, metric, facts):
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps(facts))
    logged = [{"step": step, metric: value} for step, value in enumerate((3.0, 2.0, 1.25))]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in logged))
    return folder


def written_page(tmp_path, **changes):
    run = write_run(tmp_path / "run", "loss", {"seed": 7, "jax": "0.10"})
    rows = [
        ranked("BM25", "", False, {"MRR@10": 0.471}, {"MRR@10": comparison_of(0.02)}, 0.2),
        ranked("coCondenser", "coCondenser", False, {"MRR@10": 0.24}, {}, 1513.0),
    ]
    values = {
        "title": "A run",
        "summary": "Small.",
        "workdirs": {"stage 1": run},
        "table": comparison_table(rows),
    }
    out = tmp_path / "report.html"
    write_report(out, **values | changes)
    html = out.read_text(encoding="utf-8")
    return html, Page(html)


def test_page_shows_the_table_and_the_facts(tmp_path):
    _, page = written_page(tmp_path)
    assert page.texts_in("th") == ["MRR@10", "95 %", "p", "seconds", "BM25", "coCondenser"]
    assert page.texts_in("td") == [
        "0.471 (+0.000)",
        "-0.100 to +0.100",
        "0.02",
        "0",
        "0.240",
        "1,513",
    ]
    assert page.texts_in("h2") == ["Comparison", "Pre-training"]
    assert page.texts_in("summary") == ["stage 1"]
    assert page.texts_in("dt") == ["seed", "jax"]
    assert page.texts_in("dd") == ["7", "0.10"]


def test_page_without_a_table_has_no_comparison(tmp_path):
    html, page = written_page(tmp_path, table=())
    assert page.texts_in("h2") == ["Pre-training"]
    assert "<table" not in html


def test_a_curve_has_its_color_and_last_value_in_plot_and_legend(tmp_path):
    html, _ = written_page(tmp_path)
    legend = re.findall(r'<i style="background:(#\w+)"></i>\s*([\w ]+) <b>([\d.]+)</b>', html)
    assert legend == [("#2b83c6", "stage 1", "1.25")]
    assert html.count("<svg") == 1
    assert "stroke: #2b83c6" in html


def hostile_content(tmp_path):
    run = write_run(tmp_path / "hostile", HOSTILE, {HOSTILE: HOSTILE})
    row = ranked(HOSTILE, HOSTILE, False, {HOSTILE: 0.5}, {}, 1.0)
    return {
        "title": HOSTILE,
        "summary": HOSTILE,
        "workdirs": {HOSTILE: run},
        "table": comparison_table([row]),
    }


@pytest.mark.parametrize("is_hostile", [False, True])
def test_page_loads_nothing_and_runs_nothing(tmp_path, is_hostile):
    html, page = written_page(tmp_path, **(hostile_content(tmp_path) if is_hostile else {}))
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
    _, page = written_page(tmp_path, **hostile_content(tmp_path))
    shown = [text for _, text in page.texts if text == HOSTILE]
    # Title twice, summary, two cells, plot, curve, run, fact twice.
    assert len(shown) == 10


def test_a_flag_in_the_summary_is_not_broken_at_a_hyphen(tmp_path):
    html, page = written_page(tmp_path, summary="judge <a--b>, then give --data=a-b, or --split")
    whole = [text for tag, text in page.texts if tag == "span"]
    assert whole == ["--data", "--split"]
    assert "judge &lt;a--b&gt;, then give" in html
    assert ".flag { white-space: nowrap; }" in html


def test_lone_surrogates_are_written(tmp_path):
    _, page = written_page(tmp_path, summary="\ud800 query")
    assert "? query" in page.texts_in("p")


def test_an_older_page_is_replaced_and_nothing_else_is_left(tmp_path):
    (tmp_path / "report.html").write_text("old")
    _, page = written_page(tmp_path)
    assert page.texts_in("h1") == ["A run"]
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "run"}
