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
from cocondenser_jax.quickstart import adapt as adapting
from cocondenser_jax.quickstart import agreement
from cocondenser_jax.quickstart.agreement import Choice, Sample
from cocondenser_jax.quickstart.verdict import Verdict
from cocondenser_jax.representation import Given
from cocondenser_jax.retrieval.models import load_retriever, towers
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
        return Result(workdir, record, next(x for x in lines if x.startswith("VERDICT: ")))

    return run


def read_verdict(line):
    """Returns the outcome, the names of the rankings that were compared, and their difference."""
    outcome, _, compared, difference, *_ = line.removeprefix("VERDICT: ").split(" | ")
    return outcome, re.findall(r"(\S.*?) 0\.\d{4}(?:, )?", compared), float(difference)


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
    unlabeled = result.agreement["verdict"]
    assert unlabeled["outcome"] == "helped"
    assert (unlabeled["best"], unlabeled["before"]) == ("adapted + BM25", "published + BM25")
    assert unlabeled["best_mean"] > unlabeled["before_mean"]
    assert unlabeled["difference"] > 0.1
    # Half of what BM25 finds is enough to be the best without the adapted model.
    outcome, (best, before), difference = read_verdict(result.verdict)
    assert (outcome, best, before) == ("helped", "adapted + BM25", "BM25")
    assert difference > 0.2
    assert result.verdict.endswith(" | retriever/ is adapted")
    assert_same_weights(result.workdir / "retriever", world.seeing)


def test_a_worse_model_is_not_kept(world, adapt_to):
    result = adapt_to(world.seeing, world.blind)
    assert result.agreement["alpha"] == 0.0
    for test in result.agreement["tests"].values():
        assert test["mean"] < 0.2 < 0.6 < test["other_mean"]
    assert [*result.agreement["tests"]] == ["1", "0.75", "0.5", "0.25"]
    assert result.verdict.startswith(
        "VERDICT: no difference | nDCG@10 | none of the change is kept"
    )
    assert result.verdict.endswith(" | retriever/ is published")
    assert_same_weights(result.workdir / "retriever", world.seeing)


def test_what_judgments_say_of_a_worse_model_counts(world, adapt_to, monkeypatch):
    helped = Verdict(
        outcome="helped",
        metric="nDCG@10",
        best="adapted + BM25",
        best_mean=0.9,
        before="published + BM25",
        before_mean=0.1,
        difference=0.8,
        p=0.0,
    )

    monkeypatch.setattr(adapting, "choose_alpha", lambda *_: Choice(1.0, {}, helped))
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

    monkeypatch.setattr(agreement, "lexical_run", lambda *_: run(passages))
    monkeypatch.setattr(agreement, "blend", lambda original, changed, alpha: alpha)
    monkeypatch.setattr(
        agreement, "dense_run", lambda model, _: run(passages if model <= 0.5 else passages[::-1])
    )
    choice = agreement.choose_alpha(0.0, 1.0, Sample({}, dict.fromkeys(queries, "")))
    assert choice.alpha == 0.5
    differences = {alpha: test["difference"] for alpha, test in choice.tests.items()}
    assert differences == {"1": -1.0, "0.75": -1.0, "0.5": 0.0}
    assert choice.verdict.best == "adapted + BM25"
