"""What `adapt` keeps: of two models made by hand, one reads words and the other does not."""

import json
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from cocondenser_jax.cli import main
from cocondenser_jax.pipelines import adapt as adapting
from cocondenser_jax.pipelines import pretraining
from cocondenser_jax.representation import Given
from cocondenser_jax.retriever.data.trec import read_run
from cocondenser_jax.retriever.search.models import load_retriever, towers
from tests.recording import all_said, assert_recorded, seen_on, written
from tests.world import write_beir, write_qrels, write_records

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
        known_letters = 5 - number % 2  # BM25 knows none of the words of every second query
        queries.append(" ".join(word[:known_letters] for word in own[:5]))
    write_beir(folder / "data", passages, queries, {"test": range(60)})
    model = load_retriever(
        make_model(hidden_size=128, initializer_range=0.02), given=Given("mean", "dot")
    )
    model.similarity_fn_name = "cosine"
    (tower,) = towers(model).values()
    vectors_VxD = tower.model.embeddings.word_embeddings.weight.detach()
    vectors_VxD.mul_(10)
    model.save_pretrained(str(folder / "seeing"), create_model_card=False)
    number_of_word_Vx1 = torch.randn(len(vectors_VxD), 1)
    same_D, direction_D = torch.randn(2, vectors_VxD.shape[1])
    vectors_VxD.copy_(same_D + number_of_word_Vx1 * direction_D)
    model.save_pretrained(str(folder / "blind"), create_model_card=False)
    return World(folder / "data", folder / "seeing", folder / "blind")


class Result(NamedTuple):
    workdir: Path
    verdict: str  # the line that is printed
    said: str  # all that is printed and logged

    def texts(self, *json_files, inside=()):
        """What was said, shown and written, by what it is."""
        page = (self.workdir / "report.html").read_text()
        seen = seen_on(page, of_queries=False)
        return {
            "said": self.said,
            "report": seen,
            **written(self.workdir, *json_files, inside=inside),
        }


@pytest.fixture
def adapt_to(world, tmp_path, monkeypatch):
    """Gives a function that adapts one model, as if training led to the other."""

    def run(published, trained, *flags):
        def copy(config, run, out):
            print(f"trains {config.warm_start} on {config.data.store} in {run}")
            shutil.copytree(trained, out)

        monkeypatch.setattr(pretraining, "pretrain_model", copy)
        workdir = tmp_path / published.name
        words = [f"--corpus={world.data}", f"--model={published}", f"--workdir={workdir}"]
        with all_said() as said:
            assert main(["adapt", *words, "--config.data.length=64", *flags]) == 0
        verdict = next(x for x in said.getvalue().splitlines() if x.startswith("VERDICT: "))
        return Result(workdir, verdict, said.getvalue())

    return run


def read_verdict(line):
    """Returns the outcome, the names of the rankings that were compared, and their difference."""
    outcome, _, compared, difference, *_ = line.removeprefix("VERDICT: ").split(" | ")
    names = re.findall(r"(\S.*?) 0\.\d{4}(?:, )?", compared)
    return outcome, names, float(difference.partition(" ")[0])


def assert_same_weights(folder, other):
    expected = load_file(other / "model.safetensors")
    for name, value in load_file(folder / "model.safetensors").items():
        np.testing.assert_array_equal(value, expected[name], name)


def places(result, world):
    return {"WORKDIR": result.workdir, "DATA": world.data, "MODEL": world.data.parent}


def test_a_better_model_replaces_the_published_one_once_it_is_judged(world, adapt_to):
    without = adapt_to(world.blind, world.seeing)
    assert without.verdict.startswith("VERDICT: unknown | ")
    assert_same_weights(without.workdir / "retriever", world.blind)
    shown = without.texts()["report"]
    result = adapt_to(world.blind, world.seeing, f"--data={world.data}")
    # Half of what BM25 finds is enough to be the best without the adapted model.
    outcome, (after, before), difference = read_verdict(result.verdict)
    assert (outcome, after, before) == ("helped", "adapted + BM25", "BM25")
    assert difference > 0.2
    assert result.verdict.endswith(" | retriever/ is adapted")
    assert_same_weights(result.workdir / "retriever", world.seeing)
    texts = result.texts(
        "started.json", "test/results.json", inside=["test", "test/models/adapted"]
    )
    # Training is not repeated; without judgments nothing shows that it helped.
    again = adapt_to(world.blind, world.blind)
    assert again.verdict.endswith(" | retriever/ is published")
    assert_same_weights(again.workdir / "retriever", world.blind)
    texts |= {"said without judgments": without.said, "and again": again.said, "shown": shown}
    assert_recorded("adapt_helped", texts, places(result, world))


def test_a_worse_model_harms_and_is_not_kept(world, adapt_to):
    result = adapt_to(world.seeing, world.blind, f"--data={world.data}")
    outcome, (after, before), difference = read_verdict(result.verdict)
    assert (outcome, after, before) == ("harmed", "adapted", "published")
    assert difference < -0.2
    page = (result.workdir / "report.html").read_text()
    assert "<h2>adapted compared with published</h2>" in page
    assert_same_weights(result.workdir / "retriever", world.seeing)
    (search,) = [line for line in result.said.splitlines() if "cocondenser search" in line]
    assert f"{result.workdir}/test/models/published/embeddings" in search
    assert search.endswith(f"--model={result.workdir}/retriever")
    assert_recorded("adapt_harmed", result.texts(), places(result, world))


def test_the_same_model_makes_no_difference_and_is_not_kept(world, adapt_to):
    result = adapt_to(world.seeing, world.seeing, f"--data={world.data}")
    outcome, (after, before), difference = read_verdict(result.verdict)
    assert (outcome, difference) == ("undecided", 0.0)
    assert after == before.replace("published", "adapted")
    assert result.verdict.endswith(" | retriever/ is published")
    assert_recorded("adapt_undecided", result.texts(), places(result, world))


@pytest.mark.effect("adapt --metric")
def test_another_metric_decides(world, adapt_to):
    result = adapt_to(world.blind, world.seeing, f"--data={world.data}", "--metric=MRR@10")
    outcome, metric, *_ = result.verdict.removeprefix("VERDICT: ").split(" | ")
    assert (outcome, metric) == ("helped", "MRR@10")
    rows = json.loads((result.workdir / "test" / "results.json").read_text())
    assert [*rows[0]["metrics"]] == ["MRR@10", "nDCG@10", "Recall@100"]


@pytest.mark.effect("adapt --ignore_identical_ids")
def test_queries_that_are_passages_are_left_out_of_every_ranking(
    world, words, tmp_path, monkeypatch, capsys
):
    """Passage i is the query i, and the answer to it is the next one, which shares its words."""
    rng = np.random.default_rng(3)
    texts = []
    for _ in range(30):
        own = rng.choice(words, 8, replace=False)
        sentences = " ".join(own[:7]), " ".join(own[1:])
        texts += [f"{first}. {second}." for first, second in (sentences, sentences[::-1])]
    records = [{"_id": f"a{i}", "text": text} for i, text in enumerate(texts)]
    data = tmp_path / "data"
    write_records(data / "corpus.jsonl", records)
    write_records(data / "queries.jsonl", records[:10])
    write_qrels(data / "qrels" / "test.tsv", {f"a{i}": {f"a{i ^ 1}": 1} for i in range(10)})
    monkeypatch.setattr(pretraining, "pretrain_model", lambda _, __, out: shutil.copytree(
        world.seeing, out))  # fmt: skip
    words = ["adapt", f"--corpus={data}", f"--model={world.seeing}", "--config.data.length=64"]
    for name, flags in (("with", []), ("without", ["--ignore_identical_ids"])):
        assert main([*words, f"--workdir={tmp_path / name}", f"--data={data}", *flags]) == 0
        runs = [*(tmp_path / name / "test").rglob("*.trec")]
        assert {run.name for run in runs} == {"bm25.trec", "dense.trec", "fused.trec"}
        own = [query in names for run in runs for query, names in read_run(run).items()]
        assert all(own) if name == "with" else not any(own)
    capsys.readouterr()
    assert main([*words, f"--workdir={tmp_path / 'new'}", "--ignore_identical_ids"]) == 2
    assert "--ignore_identical_ids goes with --data" in capsys.readouterr().err


def test_the_curves_of_the_report_are_the_adapted_models(world, adapt_to, monkeypatch):
    written = []
    monkeypatch.setattr(adapting, "write_report", lambda *given: written.append(given))
    result = adapt_to(world.blind, world.seeing)  # which keeps the published one
    ((_, _, _, workdirs, _, _),) = written
    assert workdirs == {"adapted": result.workdir / "pretraining"}
