"""`adapt` on tiny texts: without judgments (killed once), and with judgments of test."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import jax
import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from cocondenser_jax.cli import main
from cocondenser_jax.convert.from_torch import load_folder
from cocondenser_jax.corpus.batches import batch_document_ids, held_out_documents, steps_per_epoch
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import file_sha256
from cocondenser_jax.pipelines import adapt as adapting
from cocondenser_jax.pipelines import agreement
from cocondenser_jax.pipelines.adapt import Options, adapt
from cocondenser_jax.pipelines.agreement import Sample
from cocondenser_jax.pretrain.checkpoint import load_run
from cocondenser_jax.pretrain.experiment import resolve
from cocondenser_jax.representation import SPELLINGS, Given, Representation
from cocondenser_jax.retriever.compare import comparison
from cocondenser_jax.retriever.compare.changes import first_of
from cocondenser_jax.retriever.compare.differences import most_different
from cocondenser_jax.retriever.compare.judging import describe_form
from cocondenser_jax.retriever.data.ranking import evaluate_run
from cocondenser_jax.retriever.data.trec import read_qrels, read_run
from cocondenser_jax.retriever.search.fuse import fuse_runs
from cocondenser_jax.retriever.search.models import blend, load_retriever
from tests.world import write_records

pytestmark = pytest.mark.timeout(900)  # the first test pays for all trainings
N_TEXTS, N_STEPS = 60, 6
SETTINGS = [f"--config.train.steps={N_STEPS}", "--config.data.length=64", "--config.log_every=1"]
SETTINGS += ["--config.checkpoint.every=1", "--config.probe.every=1"]
SETTINGS += ["--config.optimizer.learning_rate=0.01"]  # in so few steps, enough to be seen


class Finished(NamedTuple):
    """Two adaptations, of one model and corpus: the second has the first one's pre-training."""

    model: Path
    corpus: Path
    data: Path
    unlabeled: Path
    judged: Path
    printed: dict[Path, str]


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def kill_during_training(words, workdir):
    """Starts a command, and ends it with SIGKILL once a checkpoint is there."""
    process = subprocess.Popen([sys.executable, "-m", "cocondenser_jax.cli", *words])
    checkpoints = workdir / "pretraining" / "checkpoints"
    while not (checkpoints.is_dir() and any(p.name.isdigit() for p in checkpoints.iterdir())):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def copy_pretraining(finished, workdir):
    """Copies an adaptation to another folder, where it continues."""
    shutil.copytree(finished, workdir)
    run = workdir / "pretraining" / "run.json"
    run.write_text(run.read_text().replace(str(finished), str(workdir)))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, words):
    """A folder of text files, each of a few sentences."""
    folder, rng = tmp_path_factory.mktemp("texts"), np.random.default_rng(5)
    for number in range(N_TEXTS):
        # Words of its own make the sentences of a text belong together.
        own = rng.choice(words, 8)
        sentences = [" ".join(rng.choice(own, 6)).capitalize() for _ in range(8)]
        (folder / f"{number}.txt").write_text(". ".join(sentences) + ".\n")
    return folder


@pytest.fixture(scope="module")
def judged_data(tmp_path_factory, beir):
    folder = tmp_path_factory.mktemp("data") / "judged"
    shutil.copytree(beir, folder)
    (folder / "qrels" / "train.tsv").rename(folder / "qrels" / "test.tsv")
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory, make_model, corpus, judged_data):
    folder = tmp_path_factory.mktemp("adapt")
    model = folder / "with-mean-pooling"
    loaded = load_retriever(make_model(), given=Given("mean", "dot"))
    loaded.similarity_fn_name = "cosine"
    loaded.save_pretrained(str(model), create_model_card=False)
    own = [f"--corpus={corpus}", f"--model={model}"]
    asked = {"unlabeled": own, "judged": [*own, f"--data={judged_data}"]}
    printed = {}
    for name, words in asked.items():
        workdir = folder / name
        command = ["adapt", *words, f"--workdir={workdir}", *SETTINGS]
        if name == "unlabeled":
            kill_during_training(command, workdir)
            assert not (workdir / "model").exists()
        else:
            copy_pretraining(folder / "unlabeled", workdir)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdout", out := (folder / f"{name}.out").open("w"))
            assert main(command) == 0
            out.close()
        printed[workdir] = (folder / f"{name}.out").read_text()
    return Finished(model, corpus, judged_data, *(folder / name for name in asked), printed)


def results(workdir):
    file = workdir / "test" / "results.json"
    return {row["name"]: row for row in json.loads(file.read_text())}


def weights(folder):
    return {name: x.numpy() for name, x in SentenceTransformer(str(folder)).state_dict().items()}


@pytest.mark.effect("adapt --corpus", "adapt --model", "adapt --workdir")
def test_an_adaptation_that_was_killed_is_as_promised(finished):
    workdir = finished.unlabeled
    logged = lines(workdir / "pretraining" / "metrics.jsonl")
    for kind in ("loss", "probe/positive_mrr"):  # none lost, none twice
        assert [x["step"] for x in logged if kind in x] == [*range(1, N_STEPS + 1)]
    network, params, facts = load_run(workdir / "pretraining")
    assert facts["step"] == N_STEPS
    assert facts["data"]["source"] == str(finished.corpus)
    # Where all that was assumed or given of the model stands.
    assert facts["config"]["warm_start"] == str(workdir / "published" / "model")
    assert facts["config"]["data"]["pairs"] == "sentence"
    assert network.representation == Representation("mean", similarity="cosine")
    exported, tensors = load_folder(str(workdir / "model"), n_head_layers=0)
    assert exported.representation == SPELLINGS["mean-cosine"]
    jax.tree.map(np.testing.assert_array_equal, tensors, params)
    assert not (workdir / "test").exists()
    copy = workdir / "published" / "model" / "model.safetensors"
    assert file_sha256(copy) == file_sha256(finished.model / "model.safetensors")


def test_without_judgments_the_alpha_that_agrees_is_kept(finished):
    workdir = finished.unlabeled
    chosen = json.loads((workdir / "agreement.json").read_text())
    last = list(chosen["tests"])[-1]
    for alpha, test in chosen["tests"].items():
        holds = test["difference"] >= 0 or test["randomization_p"] >= 0.05
        assert holds == (float(alpha) == chosen["alpha"])
    assert chosen["alpha"] in (0.0, float(last))
    line = finished.printed[workdir].splitlines()[0]
    verdict = "no difference | none of the change is kept"
    if chosen["alpha"]:
        verdict = f"unknown | {describe_form(workdir / 'to_judge')}"
    assert line == f"VERDICT: {verdict} | retriever/ is published"
    for name, value in weights(workdir / "retriever").items():
        np.testing.assert_array_equal(value, weights(finished.model)[name], name)


def test_without_judgments_the_queries_to_judge_are_those_that_differ_most(finished):
    workdir = finished.unlabeled
    alpha = json.loads((workdir / "agreement.json").read_text())["alpha"]
    assert (workdir / "to_judge").exists() == (alpha > 0)
    if not alpha:
        return
    store = open_store(workdir / "store")
    sample = agreement.sample_store(store, held_out_documents(store, 300, of_one_span=True))
    before, after = (load_retriever(workdir / name) for name in ("published/model", "model"))
    models = before, blend(before, after, alpha)
    runs = [agreement.dense_run(model, sample) for model in models]
    expected = most_different([first_of(run, run) for run in runs], 30)
    names = [q["_id"] for q in lines(workdir / "to_judge" / "queries.jsonl")]
    assert names == [f"query-{query}" for query in expected]


def test_the_retriever_is_a_drop_in_whose_weights_lie_between(finished):
    workdir = finished.unlabeled
    alpha = json.loads((workdir / "agreement.json").read_text())["alpha"]
    model = SentenceTransformer(str(workdir / "retriever"))
    assert model.similarity_fn_name == "cosine"
    kinds = [type(module).__name__ for module in model]
    # As published, the folder says cosine without a module that makes it so.
    assert kinds == ["Transformer", "Pooling"]
    assert model[1].pooling_mode == "mean"
    before, after = weights(finished.model), weights(workdir / "model")
    changed = weights(workdir / "adapted" / "model") if alpha else before
    for name, value in changed.items():
        expected = (1 - alpha) * before[name] + alpha * after[name]
        np.testing.assert_allclose(value, expected, rtol=0, atol=1e-6, err_msg=name)
    assert any((before[name] != after[name]).any() for name in before)


def cosine_run(model, data):
    """Ranks all passages with sentence-transformers alone."""
    passages = {p["_id"]: f"{p['title']} {p['text']}".strip() for p in lines(data / "corpus.jsonl")}
    queries = {q["_id"]: q["text"] for q in lines(data / "queries.jsonl")}
    encoder = SentenceTransformer(str(model))
    asked = read_qrels(data / "qrels" / "test.tsv")
    scores = encoder.similarity(
        encoder.encode([queries[q] for q in asked]), encoder.encode([*passages.values()])
    ).numpy()
    return {
        q: dict(zip(passages, map(float, s), strict=True))
        for q, s in zip(asked, scores, strict=True)
    }


@pytest.mark.effect("adapt --data")
def test_with_judgments_all_rankings_are_compared_on_them(finished):
    rows = results(finished.judged)
    qrels = read_qrels(finished.data / "qrels" / "test.tsv")
    test = finished.judged / "test"
    bm25 = read_run(test / "bm25.trec")
    alpha = json.loads((finished.judged / "agreement.json").read_text())["alpha"]
    names = ["published", *(["adapted"] if alpha else [])]
    assert [*rows] == ["BM25", *(n + end for n in names for end in ("", " + BM25"))]
    for name in names:
        run = cosine_run(finished.judged / name / "model", finished.data)
        fused = fuse_runs([bm25, read_run(test / "models" / name / "dense.trec")], "min_max")
        for row, expected in ((name, run), (f"{name} + BM25", fused)):
            found = evaluate_run(qrels, expected, ["nDCG@10", "MRR@10"])["mean"]
            for measure, value in found.items():
                assert rows[row]["metrics"][measure] == pytest.approx(value, abs=2e-3), row
    assert all(row["seconds"] > 0 for row in rows.values())
    facts = {name: (row["model"], row["is_fused"]) for name, row in rows.items()}
    assert facts.pop("BM25") == ("", False)
    assert facts == {n + end: (n, bool(end)) for n in names for end in ("", " + BM25")}


def test_the_search_that_is_printed_finds_something(finished, capsys):
    printed = finished.printed[finished.judged]
    assert "VERDICT: " in printed
    command = printed[printed.index("cocondenser search") :].split()
    assert main([*command[1:-1], "--query=a word", "--top_k=2"]) == 0
    assert capsys.readouterr().out.startswith('"a word"\n')


def test_called_again_it_makes_nothing(finished, monkeypatch, caplog):
    caplog.set_level("INFO", logger=adapting.__name__)
    for name in ("write_store", "choose_alpha"):
        monkeypatch.setattr(adapting, name, pytest.fail)
    for name in ("encode_corpus", "rank_by_vectors", "write_bm25_run"):
        monkeypatch.setattr(comparison, name, pytest.fail)
    before = results(finished.judged)
    corpus, model = str(finished.corpus), str(finished.model)
    again = adapt(finished.judged, corpus, model, finished.data, SETTINGS)
    first = {name: f"{row['metrics']['nDCG@10']:.3f}" for name, row in before.items()}
    assert {name: cell.split()[0] for name, cell, *_ in again.table[1:]} == first
    assert again.summary in finished.printed[finished.judged]
    assert not [m for m in caplog.messages if m.startswith("adapt: ")]


def test_the_work_is_logged_before_the_first_step(
    finished, tmp_path, monkeypatch, train_by, caplog
):
    caplog.set_level("INFO", logger=adapting.__name__)
    workdir = tmp_path / "again"
    copy_pretraining(finished.judged, workdir)
    shutil.rmtree(workdir / "model")

    def pretrain(config, run, model):
        raise UserError("the first step")

    train_by(pretrain)
    seconds = [0]  # two for each passage that is encoded
    clock = SimpleNamespace(perf_counter=lambda: sum(seconds))
    monkeypatch.setattr(adapting, "time", clock)
    monkeypatch.setattr("cocondenser_jax.retriever.compare.survey._N_TEXTS", 3)
    monkeypatch.setattr(adapting, "encode_texts", lambda _, texts: seconds.append(2 * len(texts)))
    with pytest.raises(UserError, match="the first step"):
        adapt(workdir, str(finished.corpus), str(finished.model), finished.data, SETTINGS)
    work, test = [m for m in caplog.messages if m.startswith("adapt: ")]
    said = f"{N_TEXTS} documents; {N_STEPS} steps of 32 pairs (sentence), of up to 64 tokens each"
    assert work.endswith(said)
    n_passages = len(lines(finished.data / "corpus.jsonl"))
    assert 2 * 3 <= sum(seconds) < 2 * 6
    minutes, rest = divmod(2 * n_passages, 60)
    each = f"about {minutes:02}:{rest:02} each"
    assert test.endswith(f"the test encodes {n_passages} passages with two models, {each}")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"corpus": "nowhere.txt"}, "nowhere.txt does not exist"),
        ({"model": "gpt"}, "the weights of gpt lack "),
        ({"model": "gpt", "backend": "jax"}, "model_type is 'gpt2'; expected bert or roberta"),
        ({"model": "empty"}, "empty has no config.json: expected the folder of a model"),
        ({"data": "empty"}, "empty has no judgments of split 'test': expected qrels/test.tsv"),
        ({"data": "nowhere"}, "nowhere does not exist: expected a folder of passages"),
        ({"workdir": "gpt"}, "gpt already exists: choose a new folder"),
        ({"model": "gpt", "workdir": "gpt/new"}, "gpt/new lies in the folder of the model, gpt"),
        ({"model": "nowhere", "workdir": "gpt"}, "gpt already exists: choose a new folder"),
        ({"config.train.step": "3"}, "'config.train.step': did you mean config.train.steps or "),
        ({"config.data.length": "65"}, "config.data.length 65 is longer than the 64 tokens that"),
        (
            {"config.train.chunk_size": "8", "config.data.batch_size": "16"},
            "config.train.chunk_size 8 does not divide the 4 spans of a device",
        ),
        ({"config.warm_start": "gpt"}, "config.warm_start cannot be given: `adapt` sets it"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_made(
    changes, said, model_folder, corpus, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    shutil.copytree(model_folder, tmp_path / "gpt")
    config = json.loads((tmp_path / "gpt" / "config.json").read_text()) | {"model_type": "gpt2"}
    (tmp_path / "gpt" / "config.json").write_text(json.dumps(config))
    given = {"config.data.length": "64", "corpus": str(corpus), "model": str(model_folder)}
    given |= {"workdir": "new"} | changes
    assert main(["adapt", *(f"--{name}={value}" for name, value in given.items())]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("cocondenser: ")
    assert said in error
    assert sorted(os.listdir()) == ["empty", "gpt"]
    assert os.listdir("empty") == []


def test_a_chunk_size_that_does_not_fit_the_corpus_is_refused_before_training(
    model_folder, words, tmp_path, capsys
):
    """Of 24 spans a batch has 16, two on each device: 8, which is the proposal, does not fit."""
    texts = ({"text": " ".join(words[number : number + 12])} for number in range(24))
    corpus = write_records(tmp_path / "texts.jsonl", texts)
    given = [f"--corpus={corpus}", f"--model={model_folder}", "--config.data.length=64"]
    given += ["--config.train.chunk_size=8", f"--workdir={tmp_path / 'new'}"]
    assert main(["adapt", *given]) == 2
    *_, error = capsys.readouterr().err.splitlines()
    assert error == (
        "cocondenser: config.train.chunk_size 8 does not divide the 4 spans of a device"
        " (32 spans / 8 devices)"
    )
    assert not (tmp_path / "new" / "pretraining").exists()


def test_another_corpus_is_refused(finished, capsys):
    words = ["adapt", f"--corpus={finished.corpus / '0.txt'}", f"--model={finished.model}"]
    assert main([*words, f"--workdir={finished.unlabeled}", *SETTINGS]) == 2
    assert f"{finished.unlabeled} was started with corpus_sha256=" in capsys.readouterr().err


def test_a_corpus_too_small_to_hold_documents_out_is_refused(
    model_folder, corpus, tmp_path, capsys
):
    few = tmp_path / "few"
    few.mkdir()
    for number in range(19):
        shutil.copy(corpus / f"{number}.txt", few)
    words = [f"--corpus={few}", f"--model={model_folder}", "--config.data.length=64"]
    assert main(["adapt", *words, f"--workdir={tmp_path / 'new'}"]) == 2
    assert f"{few} has 19 documents: expected 20 or more" in capsys.readouterr().err
    assert not (tmp_path / "new" / "pretraining").exists()


@pytest.mark.parametrize("pairs", ["spans", "sentence"])
def test_queries_are_of_documents_that_training_leaves_out(
    model_folder, words, tmp_path, monkeypatch, train_by, pairs
):
    rng = np.random.default_rng(1)
    texts = []
    for number in range(80):  # half of them have one span
        sentences = [" ".join(rng.choice(words, 9)) for _ in range(2 + 10 * (number % 2))]
        texts.append({"id": str(number), "text": ". ".join(map(str.capitalize, sentences))})
    corpus = write_records(tmp_path / "texts.jsonl", texts)
    seen = []
    found = Sample({}, {}), {}
    monkeypatch.setattr(adapting, "sample_found", lambda *given: seen.append(given) or found)

    def pretrain(config, run, model):
        ((store, documents, language),) = seen
        assert language == "german"
        spec = resolve(config, store).batches
        drawn = [batch_document_ids(store, spec, s) for s in range(steps_per_epoch(store, spec))]
        assert len(documents) >= 2
        assert len(np.concatenate(drawn)) >= 16
        assert not set(np.concatenate(drawn)).intersection(map(store.document_id, documents))
        raise UserError("all seen")

    train_by(pretrain)
    settings = ["--config.data.length=64", "--config.data.batch_size=8"]
    settings += [f"--config.data.pairs={pairs}"]
    german = Options(language="german")
    with pytest.raises(UserError, match="all seen"):
        adapt(tmp_path / "new", str(corpus), str(model_folder), None, settings, german)
