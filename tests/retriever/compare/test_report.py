"""The page on run folders, made here by hand."""

import json
import re

import pytest

from cocondenser_jax.cli import main
from cocondenser_jax.configs import default, finetune
from cocondenser_jax.retriever.compare.panels import panel_of
from cocondenser_jax.retriever.compare.plots import COLORS
from cocondenser_jax.retriever.compare.rankings import comparison_table
from cocondenser_jax.retriever.compare.report import write_run_report
from tests.recording import NONE, assert_recorded, seen_on
from tests.world import comparison_of, ranked

LOGGED = {"loss": 2.5, "contrastive_loss": 1.25, "probe/positive_mrr": 0.5, "epoch": 1.0}


def write_run(folder, kind, facts, **last):
    """Writes a run folder that logged three steps, the first two at another speed."""
    folder.mkdir()
    (folder / kind).write_text(json.dumps(facts))
    steps = [{"step": step, **last} for step in (10, 15, 20)]
    if "tokens_per_second" in last:
        for line, speed in zip(steps, (9999.0, 1.0), strict=False):
            line["tokens_per_second"] = speed
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in steps))
    return folder


@pytest.fixture
def runs(tmp_path):
    config = default.get_config().to_dict()
    config["seed"] = 7
    config["data"] |= {"batch_size": 32, "store": "stores/mine"}
    facts = {
        "config": config,
        "model": {"num_hidden_layers": 6, "hidden_size": 384, "vocab_size": 30522},
        "data": {"sha256": "5a1e", "corpus": "a<b.txt", "documents": 9, "spans": 20, "tokens": 999},
        "versions": {"jax": "0.10.2"},
        "steps": 1650,
        "computed": {"devices": 8, "device": "TPU v3"},
    }
    tuned = finetune.get_config().to_dict() | {"sha256": {"model": "ab12"}}
    tuned["train"]["epochs"] = 2
    return [
        write_run(
            tmp_path / "first",
            "run.json",
            facts,
            **LOGGED,
            spans_per_second=64.0,
            tokens_per_second=4096.0,
        ),
        write_run(tmp_path / "second", "run.json", facts, **LOGGED | {"contrastive_loss": 0.75}),
        write_run(tmp_path / "tuned", "finetune.json", tuned, loss=0.375, pairs_per_second=3.0),
    ]


def facts_of(page, run):
    section = page[page.index(f"<summary>{run}</summary>") :]
    return dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", section[: section.index("</dl>")]))


@pytest.mark.effect("report --run_dir", "report --run_dir...", "report --out")
def test_curves_and_facts_of_several_runs(runs, tmp_path):
    out = tmp_path / "page.html"
    assert main(["report", *(f"--run_dir={run}" for run in runs), f"--out={out}"]) == 0
    page = out.read_text()
    titles = re.findall("<h3>(.*?)</h3>", page)
    pretraining = ["probe/positive_mrr", "contrastive_loss", "loss", "spans_per_second"]
    keys = [*pretraining, "loss", "pairs_per_second"]
    assert titles == [panel_of(key).title for key in keys]
    legends = re.findall('<ul class="legend">(.*?)</ul>', page, re.DOTALL)
    both = [(COLORS[0], str(runs[0]), "1.25"), (COLORS[1], str(runs[1]), "0.75")]
    assert re.findall(r"background:(#\w+)\W.*?\s(\S+) <b>([\d.]+)</b>", legends[1], re.S) == both
    assert str(runs[1]) not in legends[3]

    said = re.findall("<p><b>(.*?)</b>: (.*?)</p>", page)
    how_far = "step 20 of 1,650 on 8 x TPU v3"
    assert said == [
        (str(runs[0]), f"{how_far}, 4,096 tokens a second"),
        (str(runs[1]), how_far),
    ]
    first = facts_of(page, runs[0])
    assert first["config.seed"] == "7"
    assert first["config.data.store"] == "stores/mine"
    assert first["data.corpus"] == "a&lt;b.txt"
    assert first["model.hidden_size"] == "384"
    assert first["versions.jax"] == "0.10.2"
    texts = {"report.html": seen_on(page)}
    assert_recorded("report", texts, {"RUNS": tmp_path}, masked=NONE)
    tuned = facts_of(page, runs[2])
    assert (tuned["train.epochs"], tuned["sha256.model"]) == ("2", "ab12")


def test_a_run_that_has_logged_nothing_is_at_its_start(tmp_path):
    (tmp_path / "run.json").write_text('{"steps": 9}')
    (tmp_path / "metrics.jsonl").touch()
    write_run_report([tmp_path], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert re.findall("<p><b>.*?</b>: (.*?)</p>", page) == ["step 0 of 9"]


def test_a_folder_without_a_run_is_one_line(runs, tmp_path, capsys):
    out = tmp_path / "page.html"
    assert main(["report", f"--run_dir={runs[0]}", f"--run_dir={tmp_path}", f"--out={out}"]) == 2
    said = f"cocondenser: {tmp_path} is not a run folder: it has no run.json and no finetune.json\n"
    assert capsys.readouterr().err == said
    assert not out.exists()
    page = tmp_path / "report.html"  # as adapt and compare write it
    page.write_text("")
    assert main(["report", f"--run_dir={tmp_path}", f"--out={out}"]) == 2
    hint = f"; the command that made it wrote {page}\n"
    assert capsys.readouterr().err == said.replace("\n", hint)


def test_p_of_a_comparison_is_corrected_for_its_rows():
    measured = {"BM25": 2 / 10_001, "worse": 0.02, "against": None, "alike": 0.03}
    rows = []
    for name, p in measured.items():
        tests = {"MRR@10": comparison_of(p), "nDCG@10": comparison_of(0.9)} if p else {}
        rows.append(ranked(name, name, False, {"MRR@10": 0.5, "nDCG@10": 0.6}, tests, 1.0))
    header, *lines = comparison_table(rows)
    assert [line[header.index("p")] for line in lines] == ["≤ 0.0006", "0.04", "", "0.04"]


def test_a_table_has_signed_differences_and_what_a_ranking_costs():
    metrics = {"nDCG@10": 0.5, "Recall@100": 0.75, "MRR@10": 0.25}
    tests = {"nDCG@10": comparison_of(0.5, 0.25), "Recall@100": comparison_of(0.01, -0.125)}
    tests["MRR@10"] = comparison_of(0.3, 0.125)
    rows = [
        ranked("BM25", "", False, metrics, tests, 1234.4),
        ranked("a", "a", False, metrics, {}, 0.6, vectors=(12_345, 384)),
    ]
    assert comparison_table(rows) == [
        ["", "nDCG@10", "95 %", "p", "Recall@100", "MRR@10", "vectors", "seconds"],
        [
            *("BM25", "0.500 (+0.250)", "+0.150 to +0.350", "0.5"),
            *("0.750 (-0.125)", "0.250 (+0.125)", "", "1,234"),
        ],
        ["a", "0.500", "", "", "0.750", "0.250", "12,345 x 384", "1"],
    ]


def test_more_runs_than_colors_are_shown(tmp_path):
    """The next one has the first color again."""
    folders = [tmp_path / f"run{i}" for i in range(len(COLORS) + 1)]
    made = [write_run(folder, "run.json", {"steps": 20}, loss=1.0) for folder in folders]
    write_run_report(made, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    (legend,) = re.findall('<ul class="legend">(.*?)</ul>', page, re.DOTALL)
    assert re.findall(r"background:(#\w+)", legend) == [*COLORS, COLORS[0]]
