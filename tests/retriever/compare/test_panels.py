"""The words of a page's plots, and which of them are folded."""

import json
import re

import pytest

from cocondenser_jax.retriever.compare import panels, report
from cocondenser_jax.retriever.compare.panels import Panel, in_order, panel_of
from cocondenser_jax.retriever.compare.report import write_run_report
from cocondenser_jax.retriever.data.probe import SEARCH_METRICS
from tests.recording import NONE, assert_recorded, seen_on

LOGGED = {
    "step": 3,
    "learning_rate": 1e-3,
    "own_metric": 0.5,
    "tokens_per_second": 100,
    "loss": 2.0,
    "contrastive_loss": 1.0,
    "probe/positive_mrr": 0.25,
    "eval_MRR@10": 0.75,
}


def test_what_tells_of_searching_comes_first_and_the_unknown_last():
    assert in_order([*LOGGED]) == [
        "eval_MRR@10",
        "probe/positive_mrr",
        "contrastive_loss",
        "loss",
        "learning_rate",
        "own_metric",
    ]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("loss", Panel("Total loss", "nats", True)),
        ("learning_rate", Panel("Learning rate", "rate")),
        ("eval_MRR@10", Panel("Search for the evaluation's queries", "MRR@10", True)),
        ("eval_loss", Panel("Loss on held-out pairs", "nats")),
        ("own_metric", Panel("own_metric", "")),
    ],
)
def test_a_key_has_a_title_and_a_unit(key, expected):
    assert panel_of(key) == expected


@pytest.mark.parametrize(("metric", "name"), SEARCH_METRICS.items())
def test_the_metrics_of_the_probe_s_search_are_units(metric, name):
    assert panel_of(f"probe/{name}").unit == metric


def test_the_less_important_curves_are_folded(tmp_path):
    (tmp_path / "finetune.json").write_text("{}")
    (tmp_path / "metrics.jsonl").write_text(json.dumps(LOGGED) + "\n")
    write_run_report([tmp_path], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    shown, folded = page.split("<summary>2 more</summary>")
    titles = [re.findall("<h3>(.*?)</h3>", part) for part in (shown, folded.split("</details>")[0])]
    assert titles == [
        [
            "Search for the evaluation&#39;s queries",
            "Probe: finding the other text of a held-out pair",
            "Contrastive loss",
            "Total loss",
        ],
        ["Learning rate", "own_metric"],
    ]
    for unit in ("MRR@10", "mean of 1 / rank", "nats", "rate", "training step"):
        assert f">{unit}</text>" in page


def test_every_curve_that_is_known_has_its_title_and_unit_on_the_page(tmp_path, monkeypatch):
    """In the order of the page, those that are folded too."""
    monkeypatch.setitem(report._HTML.filters, "svg", lambda curves, unit: f"<p>{unit}</p>")
    keys = sorted({*panels._PANELS, *panels._NOT_DRAWN, "eval_MRR@10", "eval_Recall@100", "other"})
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "metrics.jsonl").write_text(json.dumps(dict.fromkeys(keys, 1.0)))
    write_run_report([tmp_path], tmp_path / "page.html")
    page = seen_on((tmp_path / "page.html").read_text())
    assert_recorded("panels", {"page": page}, {"RUN": tmp_path}, masked=NONE)


def test_a_page_without_other_curves_folds_none(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    write_run_report([tmp_path], tmp_path / "report.html")
    assert "more</summary>" not in (tmp_path / "report.html").read_text()
