"""`adapt` of families that the Flax network does not compute, by all weights or by adapters."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

from cocondenser_jax.cli import main
from cocondenser_jax.corpus.batches import held_out_documents
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.pipelines import agreement
from cocondenser_jax.pipelines.backends import LORA_RANK
from cocondenser_jax.retriever.search.models import load_retriever
from tests.other_families import write_model
from tests.world import as_flags, make_texts, read_metrics, write_records

pytestmark = pytest.mark.timeout(900)
N_STEPS = 6
SETTINGS = {
    "train.steps": N_STEPS,
    "data.length": 64,
    "data.batch_size": 8,
    "optimizer.learning_rate": 0.005,
    "checkpoint.every": 1,
    "probe.every": 2,
    "log_every": 1,
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    texts = ({"text": text} for text in make_texts(60, n_sentences=3))
    return write_records(tmp_path_factory.mktemp("corpus") / "texts.jsonl", texts)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    texts = make_texts(60, n_sentences=3)
    folders = {name: tmp_path_factory.mktemp(name) for name in ("distilbert", "qwen3")}
    return {name: write_model(name, texts, folder) for name, folder in folders.items()}


@pytest.fixture(scope="module")
def adapt_to(models, corpus):
    """Gives a function that adapts a model of a family in a workdir, perhaps killed once."""

    def run(family, workdir, *flags, is_killed=False):
        words = [f"--corpus={corpus}", f"--model={models[family]}", f"--workdir={workdir}"]
        words = ["adapt", *words, *flags, *as_flags(SETTINGS)]
        if is_killed:
            kill_during_training(words, workdir)
            assert not (workdir / "model").exists()
        assert main(words) == 0
        return workdir

    return run


def kill_during_training(words, workdir):
    """Starts a command, and ends it with SIGKILL once a checkpoint is there."""
    process = subprocess.Popen([sys.executable, "-m", "cocondenser_jax.cli", *words])
    checkpoints = workdir / "pretraining" / "checkpoints"
    while not [*checkpoints.glob("checkpoint-*/sha256.json")]:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


@pytest.fixture(scope="module")
def finished(adapt_to, tmp_path_factory):
    """One adaptation for each family, the second of which was killed."""
    folder = tmp_path_factory.mktemp("adapt")
    return {
        name: adapt_to(name, folder / name, is_killed=name == "qwen3")
        for name in ("distilbert", "qwen3")
    }


def numbers_of(folder):
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("family", ["distilbert", "qwen3"])
def test_a_model_is_adapted_to_its_verdict(finished, adapt_to, models, family, capsys):
    workdir = finished[family]
    lines = read_metrics(workdir / "pretraining")
    assert [x["step"] for x in lines if "loss" in x] == [*range(1, N_STEPS + 1)]
    assert [x["step"] for x in lines if "probe/positive_mrr" in x] == [2, 4, 6]
    capsys.readouterr()
    adapt_to(family, workdir)  # makes nothing again
    verdict = capsys.readouterr().out.splitlines()[0]
    assert verdict.startswith("VERDICT: ")
    store = open_store(workdir / "store")
    found = agreement.sample_found(store, held_out_documents(store, 300, of_one_span=True))
    trained = load_retriever(workdir / "model")
    choice = agreement.choose_alpha(load_retriever(models[family]), trained, *found).choice
    assert json.loads((workdir / "agreement.json").read_text())["alpha"] == choice.alpha
    assert verdict.startswith(f"VERDICT: {'unknown' if choice.alpha else 'no difference'} | ")
    kept = verdict.rpartition("retriever/ is ")[2]
    expected = numbers_of(workdir / kept / "model")
    for name, value in numbers_of(workdir / "retriever").items():
        assert torch.equal(value, expected[name])
    before, after = (numbers_of(f) for f in (models[family], workdir / "model"))
    assert before.keys() == after.keys()
    for name, value in numbers_of(workdir / "adapted" / "model").items() if choice.alpha else []:
        mixed = torch.lerp(before[name], after[name], choice.alpha)
        torch.testing.assert_close(value, mixed, rtol=0, atol=1e-6)


def test_all_weights_of_an_encoder_are_trained(finished, models):
    before = numbers_of(models["distilbert"])
    after = numbers_of(finished["distilbert"] / "model")
    same = [name for name, value in before.items() if torch.equal(value, after[name])]
    assert same == []


@pytest.mark.effect("adapt --backend")
def test_adapters_change_linear_maps_alone_and_are_of_low_rank(
    finished, models, adapt_to, tmp_path
):
    by_flag = adapt_to("distilbert", tmp_path / "lora", "--backend=lora")
    for family, workdir in (("qwen3", finished["qwen3"]), ("distilbert", by_flag)):
        before, after = numbers_of(models[family]), numbers_of(workdir / "model")
        changes = {name: after[name] - value for name, value in before.items()}
        changed = {name for name, change in changes.items() if change.any()}
        modules = SentenceTransformer(str(models[family]))[0].model.named_modules()
        linear = {f"{n}.weight" for n, m in modules if isinstance(m, torch.nn.Linear)}
        assert changed == linear
        ranks = {int(torch.linalg.matrix_rank(changes[name], tol=1e-5)) for name in changed}
        assert max(ranks) == LORA_RANK < max(min(changes[name].shape) for name in changed)


def test_a_run_that_was_killed_is_as_one_that_was_not(finished, adapt_to, tmp_path):
    again = adapt_to("qwen3", tmp_path / "again")
    runs = [read_metrics(each / "pretraining") for each in (again, finished["qwen3"])]
    for one, other in zip(*runs, strict=True):
        for name in one.keys() - {"pairs_per_second"}:
            assert one[name] == pytest.approx(other[name], rel=1e-5), name
    expected = numbers_of(finished["qwen3"] / "model")
    for name, value in numbers_of(again / "model").items():
        torch.testing.assert_close(value, expected[name])


def test_an_adapted_decoder_needs_no_package_for_adapters(finished, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    workdir = finished["qwen3"]
    assert not [*(workdir / "retriever").rglob("adapter*")]
    model = SentenceTransformer(str(workdir / "model"))
    assert model[1].pooling_mode == "lasttoken"
    vectors = model.encode(["red stone", "blue river"])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    ours = load_retriever(workdir / "model").encode(["red stone", "blue river"])
    np.testing.assert_allclose(vectors, ours, atol=1e-6)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--config.train.objective=mlm"], "objective is 'mlm': with this backend, expected contr"),
        (["--config.model.representation=cls"], "config.model.representation is given: with this"),
        (["--config.train.skip_nonfinite=1"], "config.train.skip_nonfinite is above 0: with this"),
        (["--config.data.length=200"], "config.data.length 200 is longer than the 128 tokens that"),
        (["--config.model.sizes=[64,8]"], "config.model.sizes is [64, 8]; expected 32, the size"),
        (["--backend=jax"], "model_type is 'distilbert'; expected bert or "),
        (["--backend=keras"], "'keras' is not one of 'jax', 'torch', 'lora'"),
    ],
)
def test_what_a_backend_cannot_do_is_one_line_before_any_work(
    models, corpus, tmp_path, capsys, flags, said
):
    words = [f"--corpus={corpus}", f"--model={models['distilbert']}", "--config.data.length=64"]
    assert main(["adapt", *words, f"--workdir={tmp_path / 'new'}", *flags]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_adapters_without_their_package_are_one_line(models, corpus, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    words = [f"--corpus={corpus}", f"--model={models['qwen3']}", "--config.data.length=64"]
    assert main(["adapt", *words, f"--workdir={tmp_path / 'new'}"]) == 2
    said = "peft is missing; it comes with: pip install 'cocondenser-jax[lora]'"
    assert said in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
