"""docs/repeat_the_papers.md: every command, in order, on tiny data; and the costs in the pages."""

import os
import random
import re
import shlex
import shutil
from pathlib import Path

import pytest

from papers import estimates, get_data, marco, program, reproduce
from papers.reproduce import PAPERS
from papers.steps import Folders
from papers.vectors import Search, run
from tests.papers import rows, tiny_downloads
from tests.papers.tiny_data import execute, write_downloads, write_models
from tests.papers.tiny_downloads import HELD, TEST, TRAIN
from tests.tpu_scripts.cloud import Cloud

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "repeat_the_papers.md"
BLOCKS = re.findall(r"^```\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def commands_of(block):
    """Returns the commands of a block, as words."""
    return [shlex.split(line) for line in block.replace("\\\n", " ").splitlines()]


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with tiny downloads, on which every command is tiny; gives the names of models."""
    rng = random.Random(0)
    texts = [f"{' '.join(rng.choices('abcdefgh', k=9))} {i}." for i in range(60)]
    queries = [texts[i][:9] for i in (*TRAIN, *TEST, *HELD)]
    write_downloads(tmp_path / "downloads", texts, queries, rng)
    write_models(tmp_path / "hub", texts)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    tiny_downloads.make_tiny(monkeypatch)
    monkeypatch.setattr(program, "execute", execute)
    return tmp_path


def run_command(words):
    """Runs a command of the page."""
    if words[:2] == ["hf", "download"]:
        target = Path(words[3].removeprefix("--local-dir="))
        shutil.copytree("hub/bert-base-uncased", target)
    elif words[:3] == ["python", "-m", "papers.get_data"]:
        get_data.main(words[3:])
    elif words[:3] == ["python", "-m", "papers.reproduce"]:
        reproduce.main(words[3:])
    else:
        assert execute(words) == 0, words


# `make reproduce` runs it, in about a minute on an idle core.
@pytest.mark.skipif(os.environ.get("REPRODUCE") != "all", reason="REPRODUCE is not all")
@pytest.mark.timeout(1800)
def test_the_page_runs_from_top_to_bottom(machine, capsys):
    *here, on_tpu = BLOCKS
    for block in here:
        for words in commands_of(block):
            run_command(words)
    printed = capsys.readouterr().out
    assert "cocondenser marco.dev MRR@10" in printed
    for test in ("marco.dev Recall@1000", "qa.nq Accuracy@5", "qa.trivia Accuracy@100"):
        assert f"cocondenser {test}" in printed
    # Both calls deleted their embeddings; those of the page's own command stay.
    found = {path.parent.name for path in machine.rglob("embeddings") if path.is_dir()}
    assert found == {"authors"}
    assert (machine / "runs/own/models/condenser").is_dir()
    assert not (machine / "runs/papers/models/condenser").exists()
    assert on_tpu.startswith("export BUCKET")


def test_the_page_is_for_the_scripts_as_they_are(tmp_path):
    cloud = Cloud(tmp_path)
    settings, *scripts = commands_of(BLOCKS[-1])
    given = dict(word.split("=") for word in settings[1:])
    for script, *words in scripts:
        name = Path(script).stem
        assert script == f"tpu_scripts/{name}.sh"
        if name == "corpus":
            source = dict(rows.flags(words))["--corpus"]
            (cloud.home / source).mkdir(parents=True, exist_ok=True)
            (cloud.home / "data/bert-base-uncased").mkdir(parents=True, exist_ok=True)
        if name == "pretrain":
            rows.check_command(["cocondenser", "pretrain", *words[1:], "--workdir=W"])
        assert "gcloud " in cloud.run(name, *words, "--dry-run", settings=given)
    # What is fetched is the step's result.
    made = {step.out for step in rows.steps(PAPERS, "co/table1", "cocondenser").values()}
    fetched = [dict(rows.flags(words)) for script, *words in scripts if "fetch" in script]
    outs = [flags["--out"].removeprefix("runs/own/") for flags in fetched]
    assert len(outs) == 2
    assert {f"W/{out}" for out in outs} <= made


# ---- the costs ----


def costs_of(table, row, workdir=Path("W")):
    folders = Folders(workdir, Path("D"))
    names = [row] if row else []
    return estimates.estimate(rows.steps(PAPERS, table, *names, folders=folders), folders)


def authors_retriever():
    """Encoding and searching alone."""
    retriever = marco.round1("bert").step
    passages = marco.TITLED.passages
    search = Search(passages.data, passages.folder, marco.N_DEV, 1000)
    found = run(retriever, passages, search, "W/run")
    steps = [found.needs[1], found]
    return estimates.estimate({rows.FOLDERS.result(step): step for step in steps}, rows.FOLDERS)


def cells(found):
    hours = [*found.pretraining.values(), *found.others.values(), found.core_hours]
    sizes = [f"{size / 1e9:.0f}" for size in (found.bytes, found.least_bytes)]
    return [*(f"{value:.1f}" for value in hours), *sizes]


def test_the_costs_are_those_of_a_fresh_dry_run(tmp_path):
    for name in ("condenser", "cocondenser-marco", "cocondenser-wikipedia"):
        (tmp_path / "models" / name).mkdir(parents=True)
    found = {
        "the authors' retriever, MS MARCO": authors_retriever(),
        "the authors' pre-trained model, MS MARCO: `co/table5 --row=cocondenser`": costs_of(
            "co/table5", "cocondenser", tmp_path
        ),
        "the authors' pre-trained models, all data: `co/table1 --row=cocondenser`": costs_of(
            "co/table1", "cocondenser", tmp_path
        ),
        "all of `co/table5 --row=cocondenser`": costs_of("co/table5", "cocondenser"),
        "all of `co/table1 --row=cocondenser`": costs_of("co/table1", "cocondenser"),
        "all rows of `co/table1`": costs_of("co/table1", ""),
    }
    table = "".join(f"| {' | '.join([name, *cells(one)])} |\n" for name, one in found.items())
    (printed,) = re.findall(
        r"<!-- costs -->\n.*\n[|:-]+\n((?:.*\n)*?)<!-- end -->", PAGE.read_text()
    )
    assert printed == table
    one = found["all of `co/table1 --row=cocondenser`"]
    assert f"{one.bytes / 1e9:.0f}" == cells(one)[-2]


def hours(model):
    step = rows.steps(PAPERS, "co/table1", "cocondenser")[Path(f"W/models/{model}")]
    return estimates.estimate({Path(step.out): step}, rows.FOLDERS).pretraining["v3-8"]


def test_the_papers_own_times_stand_beside_the_estimates():
    """Gao & Callan, 4.1: two days and 19 hours on a v3-8."""
    first, second = hours("condenser"), hours("cocondenser-marco")
    text = PAGE.read_text()
    assert f"are {first:.1f} and {second:.1f} hours: {48 / first:.1f} and {19 / second:.1f}" in text
    bound = float(re.search(r"^\| v3-8 \|.* ([\d.]+) \|$", PLAN, re.MULTILINE).group(1))
    assert f"19 hours for this run on a v3-8, {19 / bound:.1f} times the bound" in PLAN


PLAN = (ROOT / "docs" / "plan.md").read_text("utf-8")


def test_the_sentence_of_the_results_is_that_of_the_dry_run():
    found = costs_of("co/table1", "cocondenser")
    text = (ROOT / "docs" / "results.md").read_text("utf-8")
    sentence = (
        f"{found.pretraining['v3-8']:.1f} hours of pre-training on a v3-8 (on one A100"
        f" {found.pretraining['A100']:.1f}), and for the rest {found.others['A100']:.1f} A100 hours"
        f" or {found.others['H100']:.1f} H100 hours, {found.core_hours:.1f} core hours and"
        f" {found.bytes / 1e9:.0f} GB of disk. Of the hours on a v3-8, Condenser takes"
        f" {found.models['condenser']:.1f}, coCondenser on MS MARCO"
        f" {found.models['cocondenser-marco']:.1f} and on Wikipedia"
        f" {found.models['cocondenser-wikipedia']:.1f}."
    )
    assert sentence in text


def test_the_hours_of_the_head_of_finetune_are_those_of_the_recipes():
    """configs/finetune.py: hours of one A100 a round."""
    head = (ROOT / "configs" / "finetune.py").read_text("utf-8")

    def a100(table, row, path):
        step = rows.steps(PAPERS, table, row)[Path(path)]
        return estimates.estimate({Path(path): step}, rows.FOLDERS).others["A100"]

    marco_hours = a100("co/table5", "cocondenser", "W/msmarco/cocondenser_marco-0/round2/retriever")
    documents = a100("condenser/table8", "condenser", "W/msmarco-docs/condenser/round1/retriever")
    nq = a100("co/table1", "cocondenser", "W/qa/nq/cocondenser_wikipedia-0/round2/retriever")
    assert f"by arithmetic: {marco_hours:.1f} a round;" in head
    assert f"documents {documents:.1f}; nq and trivia {nq:.1f} each" in head
