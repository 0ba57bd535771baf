"""`adapt` with a trained model that is known to be better than the published one, or worse.

One of the two models reads texts as bags of words. The other sees one number of each word, so it
ranks almost at random. Every second query of test has its words cut short, so that BM25 does not
know them; it finds the other queries' passages, and no blind ranking that is fused with it helps.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from cocondenser_jax.cli import main
from cocondenser_jax.pipelines import adapt as adapting
from cocondenser_jax.pipelines import agreement
from cocondenser_jax.pipelines.agreement import Choice, Decision, Sample
from cocondenser_jax.representation import Given
from cocondenser_jax.retriever.compare.judging import FORM, describe_form
from cocondenser_jax.retriever.data.folder import read_corpus, read_queries
from cocondenser_jax.retriever.search.bm25 import bm25_run
from cocondenser_jax.retriever.search.models import load_retriever, towers
from tests.world import write_beir

N = 300
pytestmark = pytest.mark.timeout(900)


class World(NamedTuple):
    """A collection, and the folders of the two models."""

    data: Path
    seeing: Path
    blind: Path


@pytest.fixture(scope="module")
def world(tmp_path_factory, make_model, words):
    folder = tmp_path_factory.mktemp("outcomes")
    rng = np.random.default_rng(1)
    passages, queries = [], []
    for number in range(N):
        own = rng.choice(words, 8, replace=False)
        sentences = [" ".join(rng.choice(own, 6)).capitalize() for _ in range(3)]
        passages.append(". ".join(sentences) + ".")
        known_letters = 5 - number % 2
        queries.append(" ".join(word[:known_letters] for word in own[:5]))
    write_beir(folder / "data", passages, queries, {"test": range(60)})
    model = load_retriever(
        make_model(hidden_size=128, initializer_range=0.02),
        given=Given("mean", "dot"),
    )
    model.similarity_fn_name = "cosine"
    (tower,) = towers(model).values()
    vectors_VxD = tower.model.embeddings.word_embeddings.weight.detach()
    vectors_VxD.mul_(10)
    model.save_pretrained(str(folder / "seeing"), create_model_card=False)
    number_of_word_Vx1 = torch.randn(len(vectors_VxD), 1)
    same_D, direction_D = torch.randn(2, vectors_VxD.shape[1])
    # So large that a quarter of it outweighs three quarters of the other model's.
    vectors_VxD.copy_(1e4 * (same_D + number_of_word_Vx1 * direction_D))
    model.save_pretrained(str(folder / "blind"), create_model_card=False)
    return World(folder / "data", folder / "seeing", folder / "blind")


class Result(NamedTuple):
    workdir: Path
    agreement: dict[str, Any]  # as its file has it
    verdict: str  # the line that is printed
    printed: list[str]  # all lines


@pytest.fixture
def adapt_to(world, tmp_path, train_by, capsys):
    """Gives a function that adapts one model, as if training led to the other."""

    def run(published, trained, *flags):
        train_by(lambda config, run, model: shutil.copytree(trained, model))
        workdir = tmp_path / published.name
        words = [f"--corpus={world.data}", f"--model={published}", f"--workdir={workdir}"]
        assert main(["adapt", *words, "--config.data.length=64", *flags]) == 0
        record = json.loads((workdir / "agreement.json").read_text())
        lines = capsys.readouterr().out.splitlines()
        verdict = next(x for x in lines if x.startswith("VERDICT: "))
        return Result(workdir, record, verdict, lines)

    return run


def read_verdict(line):
    """Returns the outcome, the names of the rankings that were compared, and their difference."""
    outcome, _, compared, difference, *_ = line.removeprefix("VERDICT: ").split(" | ")
    names = re.findall(r"(\S.*?) 0\.\d{4}(?:, )?", compared)
    return outcome, names, float(difference.partition(" ")[0])


def weights(folder):
    return load_file(folder / "model.safetensors")


def assert_same_weights(folder, other):
    expected = weights(other)
    for name, value in weights(folder).items():
        np.testing.assert_array_equal(value, expected[name], name)


def test_a_better_model_helps(world, adapt_to):
    result = adapt_to(world.blind, world.seeing, f"--data={world.data}")
    assert result.agreement["alpha"] == 1.0
    assert [*result.agreement["tests"]] == ["1"]
    # Half of what BM25 finds is enough to be the best without the adapted model.
    outcome, (best, before), difference = read_verdict(result.verdict)
    assert (outcome, best, before) == ("helped", "adapted + BM25", "BM25")
    assert difference > 0.2
    assert result.verdict.endswith(" | retriever/ is adapted")
    assert_same_weights(result.workdir / "retriever", world.seeing)


@pytest.mark.effect("adapt --metric", "adapt --test_passages")
def test_a_test_among_fewer_passages_by_another_metric(world, adapt_to):
    flags = [f"--data={world.data}", "--metric=MRR@10", "--test_passages=100"]
    result = adapt_to(world.blind, world.seeing, *flags)
    outcome, metric, *_ = result.verdict.removeprefix("VERDICT: ").split(" | ")
    assert (outcome, metric) == ("helped", "MRR@10")
    said = "on 100 of 300 passages, the 60 judged ones among them: metrics are higher than on all"
    assert result.verdict.endswith(f" | {said} | retriever/ is adapted")
    rows = json.loads((result.workdir / "test" / "results.json").read_text())
    assert [*rows[0]["metrics"]] == ["MRR@10", "nDCG@10", "Recall@100"]
    assert [row["vectors"] for row in rows] == [[0, 0], *[[100, 128]] * 4]


def test_without_judgments_the_better_model_is_not_kept_until_it_is_judged(world, adapt_to):
    result = adapt_to(world.blind, world.seeing)
    folder = result.workdir / "to_judge"
    form = folder / "qrels" / "test.tsv"
    assert result.verdict == (
        f"VERDICT: unknown | {describe_form(folder)} | retriever/ is published"
    )
    assert "judge 30 queries in " in result.verdict
    assert_same_weights(result.workdir / "retriever", world.blind)
    written = "\n".join(passage.text for passage in read_corpus(world.data))
    assert all(passage.text in written for passage in read_corpus(folder))
    assert any(passage.text != passage.text.lower() for passage in read_corpus(folder))
    asked = read_queries(folder).values()
    assert not [query for query in asked if query not in written]
    assert any(query != query.lower() for query in asked)
    with pytest.raises(AssertionError):  # a form without judgments is refused
        adapt_to(world.blind, world.seeing, f"--data={folder}")
    # A query asks for the passage that it is from, and BM25 finds its words there.
    header, *rows = (line.split("\t") for line in form.read_text().splitlines())
    places = {name: i for i, name in enumerate(header)}
    for row in rows:
        is_source = row[places["query-id"]] == f"query-{row[places['corpus-id']]}"
        row[places["score"]] = str(int(is_source))
    form.write_text("\n".join("\t".join(row) for row in [header, *rows]))
    judged = adapt_to(world.blind, world.seeing, f"--data={folder}")
    assert judged.verdict.startswith("VERDICT: no difference | nDCG@10 | ")
    assert ", BM25 1.0000 | " in judged.verdict
    assert "30 queries show differences of" in judged.verdict


@pytest.fixture
def log(world, tmp_path):
    """The queries of the collection, a line each: line i + 1 asks for passage pi."""
    queries = read_queries(world.data)
    path = tmp_path / "log.txt"
    path.write_text("\n".join(queries.values()))
    return path


def test_the_queries_to_judge_are_those_of_a_log(world, adapt_to, log):
    result = adapt_to(world.blind, world.seeing, f"--data={log}")
    folder = result.workdir / "to_judge"
    assert result.verdict == (
        f"VERDICT: unknown | {describe_form(folder)} | retriever/ is published"
    )
    assert_same_weights(result.workdir / "retriever", world.blind)
    assert [*read_corpus(folder)] == [*read_corpus(world.data)]  # as they are written
    asked = read_queries(folder)
    assert len(asked) == 30
    assert asked.items() < read_queries(log).items()
    rows = json.loads((result.workdir / "test" / "results.json").read_text())
    ends = ("", " + BM25")
    assert [row["name"] for row in rows] == [
        "BM25",
        *(f"{name}{end}" for name in ("published", "adapted") for end in ends),
    ]
    page = (result.workdir / "report.html").read_text()
    assert "Queries on which the rankings differ most" in page
    assert result.printed[1].split()[:5] == ["first", "ten", "in", "common", "with"]
    assert [line.split("  ")[0] for line in result.printed[2:7]] == [
        f"{number} {row['name']}" for number, row in enumerate(rows, start=1)
    ]
    # Judged, they decide, by the same vectors.
    header, *lines = (line.split("\t") for line in (folder / FORM).read_text().splitlines())
    for line in lines:
        line[0] = str(int(int(line[4][1:]) + 1 == int(line[3])))
    (folder / FORM).write_text("\n".join("\t".join(line) for line in [header, *lines]))
    files = [*(result.workdir / "test").rglob("*.arrow")]
    before = [path.stat().st_mtime_ns for path in files]
    judged = adapt_to(world.blind, world.seeing, f"--data={folder}")
    assert "unknown" not in judged.verdict
    rows = json.loads((result.workdir / "test" / "results.json").read_text())
    values = {row["name"]: row["metrics"]["nDCG@10"] for row in rows}
    assert values["adapted"] > values["published"] + 0.2
    assert len(before) >= 2
    assert [path.stat().st_mtime_ns for path in files] == before


def test_where_none_of_the_change_is_kept_no_log_is_ranked(world, adapt_to, log):
    result = adapt_to(world.seeing, world.blind, f"--data={log}")
    assert result.verdict.startswith("VERDICT: no difference | none of the change is kept")
    assert not (result.workdir / "test" / "models").exists()
    assert not (result.workdir / "to_judge").exists()


def test_judgments_that_come_later_decide_without_another_training(
    world, adapt_to, monkeypatch, capsys
):
    indexed = []

    def index(*given):
        indexed.append(given)
        return bm25_run(*given)

    monkeypatch.setattr(agreement, "bm25_run", index)
    first = adapt_to(world.blind, world.seeing)
    assert len(indexed) == 1
    assert_same_weights(first.workdir / "retriever", world.blind)
    monkeypatch.setattr(adapting, "choose_alpha", pytest.fail)
    later = adapt_to(world.blind, world.seeing, f"--data={world.data}")
    outcome, _, difference = read_verdict(later.verdict)
    assert (outcome, difference > 0.2) == ("helped", True)
    assert_same_weights(later.workdir / "retriever", world.seeing)
    assert "Gained most" in (later.workdir / "report.html").read_text()
    other = [f"--corpus={world.data}", f"--model={world.blind}", f"--workdir={later.workdir}"]
    other += [f"--data={later.workdir / 'to_judge'}", "--config.data.length=64"]
    form = later.workdir / "to_judge" / "qrels" / "test.tsv"
    form.write_text(form.read_text().replace("\n\t", "\n1\t"))
    assert main(["adapt", *other]) == 2
    assert f"{later.workdir / 'test'} was started with data." in capsys.readouterr().err


def test_a_worse_model_is_not_kept(world, adapt_to):
    result = adapt_to(world.seeing, world.blind)
    assert result.agreement["alpha"] == 0.0
    for test in result.agreement["tests"].values():
        assert test["mean"] < 0.2 < 0.6 < test["other_mean"]
    assert [*result.agreement["tests"]] == ["1", "0.75", "0.5", "0.25"]
    assert result.verdict.startswith("VERDICT: no difference | none of the change is kept")
    assert not (result.workdir / "to_judge").exists()
    assert result.verdict.endswith(" | retriever/ is published")
    assert_same_weights(result.workdir / "retriever", world.seeing)


def test_what_judgments_say_of_a_worse_model_counts(world, adapt_to, monkeypatch):
    decision = Decision(Choice(1.0, {}), Sample({}, {}), {}, {}, {})
    monkeypatch.setattr(adapting, "choose_alpha", lambda *_: decision)
    result = adapt_to(world.seeing, world.blind, f"--data={world.data}")
    outcome, (_, before), difference = read_verdict(result.verdict)
    assert (outcome, before) == ("harmed", "published + BM25")
    assert difference < -0.2
    assert result.verdict.endswith(" | retriever/ is published")
    assert_same_weights(result.workdir / "retriever", world.seeing)


def test_the_largest_alpha_that_agrees_is_kept(monkeypatch):
    """A model that is changed by more than half ranks the expected passages last."""
    queries = [f"q{number}" for number in range(20)]
    passages = [f"p{number}" for number in range(30)]

    def run(order):
        scores = dict(zip(order, range(len(order), 0, -1), strict=True))
        return dict.fromkeys(queries, scores)

    monkeypatch.setattr(agreement, "blend", lambda original, changed, alpha: alpha)
    monkeypatch.setattr(
        agreement, "dense_run", lambda model, _: run(passages if model <= 0.5 else passages[::-1])
    )
    decision = agreement.choose_alpha(
        0.0, 1.0, Sample({}, dict.fromkeys(queries, "")), run(passages)
    )
    choice = decision.choice
    assert choice.alpha == 0.5
    differences = {alpha: test["difference"] for alpha, test in choice.tests.items()}
    assert differences == {"1": -1.0, "0.75": -1.0, "0.5": 0.0}
    assert decision.adapted == run(passages)
