"""`adapt` on tiny texts: killed once, then without judgments, then with those of test."""

import dataclasses
import json
import shutil
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import jax
import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from transformers import AutoTokenizer

from cocondenser_jax.backbones import BACKBONES
from cocondenser_jax.cli import main
from cocondenser_jax.configs.adapt import fit
from cocondenser_jax.convert import resolve
from cocondenser_jax.convert.from_torch import load_folder
from cocondenser_jax.corpus.sources import ACCEPTED, documents_sha256
from cocondenser_jax.corpus.spans import STARTS_SENTENCE
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import file_sha256, read_object
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.pipelines import adapt as adapting
from cocondenser_jax.pipelines import pretraining, proposal
from cocondenser_jax.pipelines.adapt import adapt
from cocondenser_jax.pretrain import devices
from cocondenser_jax.pretrain.checkpoint import load_run
from cocondenser_jax.pretrain.step import check_batch
from cocondenser_jax.representation import SPELLINGS, Given, Representation
from cocondenser_jax.retriever.compare import comparison
from cocondenser_jax.retriever.compare import trial as trials
from cocondenser_jax.retriever.compare.trial import Trial
from cocondenser_jax.retriever.data.ranking import evaluate_run
from cocondenser_jax.retriever.data.trec import read_qrels, read_run
from cocondenser_jax.retriever.search.fuse import fuse_runs
from cocondenser_jax.retriever.search.models import load_retriever
from cocondenser_jax.settings import check
from tests.processes import start
from tests.recording import assert_recorded, seen_on, written
from tests.world import WORDS, batches_of, read_records, write_beir, write_qrels, write_records

pytestmark = [  # the first test pays for the training
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("one_length"),
]
N_TEXTS, N_STEPS = 60, 6
SETTINGS = [f"--config.train.steps={N_STEPS}", "--config.data.length=64", "--config.log_every=1"]
SETTINGS += ["--config.checkpoint.every=1", "--config.probe.every=1"]
SETTINGS += ["--config.optimizer.learning_rate=0.01"]  # in so few steps, enough to be seen
TEXTS = [" ".join(WORDS[:4]), " ".join(WORDS[2:9])]


class Finished(NamedTuple):
    """An adaptation that was killed, resumed, and called again with judgments."""

    model: Path
    corpus: Path
    data: Path
    workdir: Path
    without: list[str]  # what the call without judgments printed
    judged: list[str]


def kill_during_training(words, workdir):
    """Starts a command, and ends it with SIGKILL once a checkpoint is there."""
    process = start(main, words)
    checkpoints = workdir / "pretraining" / "checkpoints"
    while not (checkpoints.is_dir() and any(p.name.isdigit() for p in checkpoints.iterdir())):
        assert process.exitcode is None
        time.sleep(0.02)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def weights(folder):
    return {name: x.numpy() for name, x in SentenceTransformer(str(folder)).state_dict().items()}


def assert_same_weights(folder, other):
    expected = weights(other)
    for name, value in weights(folder).items():
        np.testing.assert_array_equal(value, expected[name], name)


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
def finished(tmp_path_factory, make_model, corpus, beir):
    folder = tmp_path_factory.mktemp("adapt")
    model, data, workdir = folder / "model", folder / "data", folder / "adapted"
    loaded = load_retriever(make_model(), given=Given("mean", "dot"))
    loaded.similarity_fn_name = "cosine"
    loaded.save_pretrained(str(model), create_model_card=False)
    shutil.copytree(beir, data)
    (data / "qrels" / "train.tsv").rename(data / "qrels" / "test.tsv")
    command = ["adapt", f"--corpus={corpus}", f"--model={model}", f"--workdir={workdir}", *SETTINGS]
    kill_during_training(command, workdir)
    assert not (workdir / "adapted").exists()
    printed = []
    for flags in ([], [f"--data={data}"]):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdout", out := (folder / "out").open("w"))
            assert main([*command, *flags]) == 0
            out.close()
        printed.append((folder / "out").read_text().splitlines())
        if not flags:
            assert_same_weights(workdir / "retriever", model)
    return Finished(model, corpus, data, workdir, *printed)


@pytest.mark.effect("adapt --corpus", "adapt --model", "adapt --workdir")
def test_an_adaptation_that_was_killed_is_as_promised(finished):
    workdir = finished.workdir
    logged = read_records(workdir / "pretraining" / "metrics.jsonl")
    for kind in ("loss", "probe/positive_mrr"):  # none lost, none twice
        assert [x["step"] for x in logged if kind in x] == [*range(1, N_STEPS + 1)]
    network, params, facts = load_run(workdir / "pretraining")
    assert facts["step"] == N_STEPS
    assert facts["data"]["corpus"] == str(finished.corpus)
    # Where all that was assumed or given of the model stands.
    assert facts["config"]["warm_start"] == str(workdir / "published")
    assert facts["config"]["data"]["pairs"] == "sentence"
    assert network.representation == Representation("mean", similarity="cosine")
    exported, tensors = load_folder(str(workdir / "adapted"), n_head_layers=0)
    assert exported.representation == SPELLINGS["mean-cosine"]
    jax.tree.map(np.testing.assert_array_equal, tensors, params)
    copy = workdir / "published" / "model.safetensors"
    assert file_sha256(copy) == file_sha256(finished.model / "model.safetensors")


def test_the_adapted_model_is_a_drop_in_that_has_changed(finished):
    model = SentenceTransformer(str(finished.workdir / "adapted"))
    assert model.similarity_fn_name == "cosine"
    assert model[1].pooling_mode == "mean"
    before, after = weights(finished.model), weights(finished.workdir / "adapted")
    changed = [name for name in before if (before[name] != after[name]).any()]
    assert len(changed) > len(before) / 2


def test_without_judgments_the_published_model_stays(finished):
    line = finished.without[0]
    assert line.startswith("VERDICT: unknown | no judgments, so the published model stays (")
    assert line.endswith(" | retriever/ is published")
    command = line[line.index("`") + 1 : line.rindex("`")]
    published, adapted = (f"--model={finished.workdir / x}" for x in ("published", "adapted"))
    assert command == f"cocondenser compare {published} {adapted}"


def cosine_run(model, data):
    """Ranks all passages with sentence-transformers alone."""
    passages = read_records(data / "corpus.jsonl")
    texts = {p["_id"]: f"{p['title']} {p['text']}".strip() for p in passages}
    queries = {q["_id"]: q["text"] for q in read_records(data / "queries.jsonl")}
    encoder = SentenceTransformer(str(model))
    asked = read_qrels(data / "qrels" / "test.tsv")
    scores_QxP = encoder.similarity(
        encoder.encode([queries[q] for q in asked]), encoder.encode([*texts.values()])
    ).numpy()
    return {
        query: dict(zip(texts, map(float, scores_P), strict=True))
        for query, scores_P in zip(asked, scores_QxP, strict=True)
    }


def results(workdir):
    file = workdir / "test" / "results.json"
    return {row["name"]: row for row in json.loads(file.read_text())}


@pytest.mark.effect("adapt --data")
def test_with_judgments_all_rankings_are_compared_on_them(finished):
    rows = results(finished.workdir)
    qrels = read_qrels(finished.data / "qrels" / "test.tsv")
    test = finished.workdir / "test"
    bm25 = read_run(test / "bm25.trec")
    names = ["published", "adapted"]
    assert [*rows] == ["BM25", *(n + end for n in names for end in ("", " + BM25"))]
    for name in names:
        run = cosine_run(finished.workdir / name, finished.data)
        fused = fuse_runs([bm25, read_run(test / "models" / name / "dense.trec")], "min_max")
        for row, expected in ((name, run), (f"{name} + BM25", fused)):
            found = evaluate_run(qrels, expected, ["nDCG@10", "MRR@10"])["mean"]
            for measure, value in found.items():
                assert rows[row]["metrics"][measure] == pytest.approx(value, abs=2e-3), row
    page = (finished.workdir / "report.html").read_text()
    texts = {"printed without judgments": finished.without, "printed": finished.judged}
    texts = {name: "\n".join(lines) for name, lines in texts.items()}
    texts["report.html"] = seen_on(page, of_queries=False)
    texts |= written(finished.workdir, "started.json", "test/started.json", inside=["test"])
    folders = {"MODEL": finished.model, "CORPUS": finished.corpus, "DATA": finished.data}
    assert_recorded("adapt", texts, {**folders, "WORKDIR": finished.workdir})
    # Training is part of what the adapted model took.
    training = read_object(finished.workdir / "seconds.json")["adapted"]
    seconds = read_object(test / "seconds.json")
    own = sum(seconds[f"models/adapted/{name}"] for name in ("embeddings", "dense.trec"))
    fusing = seconds["bm25.trec"] + seconds["models/adapted/fused.trec"]
    assert rows["adapted"]["seconds"] == pytest.approx(training + own)
    assert rows["adapted + BM25"]["seconds"] == pytest.approx(training + own + fusing)
    (verdict,) = [line for line in finished.judged if line.startswith("VERDICT: ")]
    kept = verdict.rpartition(" ")[2]
    assert (kept == "adapted") == verdict.startswith("VERDICT: helped | nDCG@10 | ")
    assert_same_weights(finished.workdir / "retriever", finished.workdir / kept)


def test_the_search_that_is_printed_finds_something(finished, capsys):
    (command,) = [line for line in finished.judged if "cocondenser search" in line]
    words = command.partition(": cocondenser ")[2].split()
    assert main([*words, "--query=a word", "--depth=2"]) == 0
    assert capsys.readouterr().out.startswith('"a word"\n')


def test_called_again_it_makes_nothing(finished, monkeypatch):
    monkeypatch.setattr(adapting, "build_store", pytest.fail)
    monkeypatch.setattr(resolve, "resolve_model", pytest.fail)
    monkeypatch.setattr(pretraining, "pretrain_model", pytest.fail)
    for name in ("encode_corpus", "rank_by_vectors", "write_bm25_run"):
        monkeypatch.setattr(comparison, name, pytest.fail)
    corpus, model = str(finished.corpus), str(finished.model)
    again = adapt(finished.workdir, corpus, model, Trial(finished.data), SETTINGS)
    first = {name: row["metrics"]["nDCG@10"] for name, row in results(finished.workdir).items()}
    assert [line[0] for line in again.table[1:]] == [*first]
    assert [line[1].split()[0] for line in again.table[1:]] == [f"{x:.3f}" for x in first.values()]
    assert again.summary in finished.judged


def test_another_corpus_is_refused(finished, capsys):
    words = ["adapt", f"--corpus={finished.corpus / '0.txt'}", f"--model={finished.model}"]
    assert main([*words, f"--workdir={finished.workdir}", *SETTINGS]) == 2
    assert f"{finished.workdir} was started with corpus_sha256=" in capsys.readouterr().err


INSTEAD = "sentence-transformers' own trainer, SentenceTransformerTrainer, trains such models"


@pytest.fixture(scope="module")
def mistakes(model_folder, tmp_path_factory):
    """A folder with models and data that cannot be taken."""
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "empty").mkdir()
    (folder / "log.txt").write_text("a word\nanother one\n")
    write_beir(folder / "strange", WORDS[:3], WORDS[:2], {"test": [0, 1]})
    write_qrels(folder / "strange" / "qrels" / "test.tsv", {"q0": {"x0": 1}, "q1": {"x1": 1}})
    shutil.copytree(folder / "strange", folder / "nothing")
    write_qrels(folder / "nothing" / "qrels" / "test.tsv", {"q0": {"p0": 0}, "q1": {"p1": 0}})
    shutil.copytree(model_folder, folder / "qwen3")
    config = read_object(folder / "qwen3" / "config.json") | {"model_type": "qwen3"}
    (folder / "qwen3" / "config.json").write_text(json.dumps(config))
    layers = [Transformer(str(model_folder)), Pooling(32, "max")]
    SentenceTransformer(modules=layers).save_pretrained(str(folder / "max"))
    return folder


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"corpus": "nowhere.txt"}, f"nowhere.txt does not exist: expected {ACCEPTED}"),
        (
            {"corpus": "."},
            "new is in the folder of the documents, ., and would be read as one of them: choose"
            " another place",
        ),
        (
            {"model": "no/such/model"},
            "no/such/model: no such folder, and not the name of a model on the hub",
        ),
        (
            {"model": "qwen3"},
            f"qwen3: model_type is 'qwen3'; expected {' or '.join(BACKBONES)} ({INSTEAD})",
        ),
        ({"model": "max"}, f"max: pools by max; expected cls or mean ({INSTEAD})"),
        ({"model": "empty"}, "empty has no config.json: expected the folder of a model"),
        (
            {"data": "empty"},
            "empty has no judgments of split 'test': expected qrels/test.tsv or qrels.test.tsv or"
            " msmarco-doctest-qrels.tsv (plain, .gz, .xz or .zst)",
        ),
        (
            {"data": "nowhere"},
            "nowhere does not exist: expected a folder of passages, queries and judgments",
        ),
        (
            {"data": "log.txt"},
            "log.txt has no judgments to test by: leave --data out, and compare the two models with"
            " `cocondenser compare`, which says what to judge",
        ),
        (
            {"data": "strange"},
            "strange has none of the 2 passages that its judgments of test find relevant: all"
            " metrics would be 0",
        ),
        ({"metric": "MRR@10"}, "--metric goes with --data (see cocondenser adapt --help)"),
        ({"workdir": "max"}, "max already exists: choose a new folder, or remove it first"),
        (
            {"model": "max", "workdir": "max/new"},
            "max/new lies in the folder of the model, max: choose another place",
        ),
        (
            {"dimensions": "33"},
            "{model}: the sizes of vectors are 33; expected whole numbers from 1 to 32, the largest"
            " first",
        ),
        (
            {"config.train.step": "3"},
            "no setting 'config.train.step': did you mean config.train.steps or config.train.dtype"
            " or config.train.epochs?",
        ),
        (
            {"config.data.length": "65"},
            "config.data.length 65 is longer than the 64 tokens that the model reads of a text",
        ),
        (
            {"config.train.chunk_size": "8", "config.data.batch_size": "16"},
            "config.train.chunk_size 8 does not divide the 4 spans of a device (32 spans / 8"
            " devices)",
        ),
        (
            {"config.train.kept_chunks": "99"},
            "config.train.kept_chunks is 99, but a device has 1 chunks",
        ),
        (
            {"query_prompt": "abcde " * 9, "config.data.length": "16"},
            f"config.data.length 16 is too short for the model's prompt {'abcde ' * 9!r}, of 27"
            " tokens; expected 37 or more",
        ),
        ({"config.warm_start": "max"}, "config.warm_start cannot be given: `adapt` sets it"),
        ({"config.data.store": "max"}, "config.data.store cannot be given: `adapt` sets it"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_made(
    changes, said, model_folder, corpus, mistakes, monkeypatch, capsys
):
    monkeypatch.chdir(mistakes)
    given = {"config.data.length": "64", "corpus": str(corpus), "model": str(model_folder)}
    given |= {"workdir": "new"} | changes
    assert main(["adapt", *(f"--{name}={value}" for name, value in given.items())]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == f"cocondenser: {said.format(model=model_folder)}"
    assert not (mistakes / "new").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"corpus": "nowhere.txt"},
        {"model": "no/such/model"},
        {"workdir": "max"},
        {"model": "max", "workdir": "max/new"},
        {"corpus": "."},
    ],
)
def test_wrong_places_are_found_before_anything_is_read(
    changes, model_folder, corpus, mistakes, monkeypatch
):
    monkeypatch.chdir(mistakes)
    monkeypatch.setattr(adapting, "_check_judged", pytest.fail)
    given = {"workdir": "new", "corpus": str(corpus), "model": str(model_folder)} | changes
    with pytest.raises(UserError):
        adapt(Path(given["workdir"]), given["corpus"], given["model"], Trial(Path("data")))


@pytest.mark.parametrize(
    ("changes", "override"),
    [
        ({"data": "log.txt"}, "train.steps=6"),
        ({"data": "nothing"}, "train.steps=6"),
        ({"model": "qwen3"}, "train.steps=6"),
        ({}, "train.step=6"),
        ({}, "data.length=65"),
    ],
)
def test_what_no_passage_shows_is_said_before_all_are_read(
    changes, override, model_folder, corpus, mistakes, monkeypatch
):
    monkeypatch.chdir(mistakes)
    monkeypatch.setattr(trials, "survey_passages", pytest.fail)
    given = {"data": "strange", "model": str(model_folder)} | changes
    trial = Trial(Path(given["data"]), corpus=corpus)
    with pytest.raises(UserError):
        adapt(Path("new"), str(corpus), given["model"], trial, [f"--config.{override}"])


def test_a_corpus_that_cannot_be_read_leaves_no_folder(model_folder, tmp_path, capsys):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"text": "abc"}\n{"text": 1\n')
    words = ["adapt", f"--corpus={corpus}", f"--model={model_folder}"]
    assert main([*words, f"--workdir={tmp_path / 'run'}", "--config.data.length=16"]) == 2
    assert f"{corpus}" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("text", [" ", "a"])
def test_a_corpus_without_a_span_leaves_no_folder(model_folder, tmp_path, capsys, text):
    corpus = write_records(tmp_path / "corpus.jsonl", [{"text": text}] * 2)
    words = ["adapt", f"--corpus={corpus}", f"--model={model_folder}"]
    assert main([*words, f"--workdir={tmp_path / 'run'}", "--config.data.length=16"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == f"cocondenser: {corpus}: no document has a span of 8 tokens"
    assert not (tmp_path / "run").exists()


@pytest.fixture
def publish(tmp_path, monkeypatch, capsys):
    """Runs `adapt` up to its store; returns its workdir."""

    def stop(*_, **__):
        raise UserError("no further")

    monkeypatch.setattr(adapting, "build_store", stop)
    write_records(tmp_path / "corpus.jsonl", [{"text": " ".join(WORDS)}])

    def run(model, *flags):
        words = ["adapt", f"--corpus={tmp_path}/corpus.jsonl", f"--model={model}"]
        words += [f"--workdir={tmp_path}/run", "--config.data.length=16"]
        assert main([*words, *flags]) == 2
        assert capsys.readouterr().err.endswith("no further\n")
        return tmp_path / "run"

    return run


def test_a_corpus_that_has_changed_since_is_refused_and_one_that_moved_is_not(
    model_folder, tmp_path, publish, capsys
):
    workdir = publish(model_folder)
    corpus = tmp_path / "corpus.jsonl"
    started = read_object(workdir / "started.json")
    assert started["corpus_sha256"] == documents_sha256(str(corpus))
    words = ["adapt", f"--model={model_folder}", f"--workdir={workdir}", "--config.data.length=16"]
    text = " ".join(WORDS)
    for record in ({"text": text[:-1]}, {"text": text, "title": "A"}, {"text": text, "_id": "7"}):
        write_records(corpus, [record])
        assert main([*words, f"--corpus={corpus}"]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert f"{workdir} was started with corpus_sha256='" in error
        assert read_object(workdir / "started.json") == started
    write_records(tmp_path / "moved.jsonl", [{"text": text}])
    assert main([*words, f"--corpus={tmp_path / 'moved.jsonl'}"]) == 2
    assert capsys.readouterr().err.endswith("no further\n")


def assert_same_vectors(folder, library):
    """Compares the library's vectors of a folder, with lengths where it compares by cosine."""
    published = SentenceTransformer(str(folder))
    for name in ("encode_query", "encode_document"):
        theirs, ours = (getattr(model, name)(TEXTS) for model in (library, published))
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert published.similarity_fn_name == library.similarity_fn_name


@pytest.mark.effect("adapt --pooling", "adapt --similarity", "adapt --query_prompt")
@pytest.mark.effect("adapt --passage_prompt", "adapt --dimensions")
@pytest.mark.parametrize("is_plain", [True, False])
def test_what_is_given_is_written_into_the_published_folder(
    model_folder, tmp_path, publish, is_plain
):
    library = SentenceTransformer(
        modules=[Transformer(str(model_folder)), Pooling(32, "cls")],
        prompts={"query": "hgf ", "document": "abc: "},
        similarity_fn_name="cosine",
        truncate_dim=8,
    )
    start = model_folder
    if not is_plain:
        start = tmp_path / "start"
        layers = [Transformer(str(model_folder)), Pooling(32, "mean")]
        SentenceTransformer(modules=layers, similarity_fn_name="dot").save_pretrained(str(start))
    flags = "--pooling=cls", "--similarity=cosine", "--query_prompt=hgf ", "--dimensions=8"
    workdir = publish(start, *flags, "--passage_prompt=abc: ")
    assert_same_vectors(workdir / "published", library)
    trained = open_model(workdir / "published").representation
    expected = SPELLINGS["cls"]._replace(similarity="cosine", sizes=(8,))
    assert trained._replace(prompts=(), max_length=None) == expected
    assert dict(trained.prompts) == {"query": "hgf ", "document": "abc: "}
    given = read_object(workdir / "started.json")["given"]
    assert Given(**given) == Given("cls", "cosine", "hgf ", "abc: ", dimensions=8)


def test_a_scale_that_is_given_is_trained_with_and_names_say_none(
    model_folder, tmp_path, monkeypatch, words
):
    layers = [Transformer(str(model_folder)), Pooling(32, "mean"), Normalize()]
    start = tmp_path / "e5-small-v2"
    SentenceTransformer(modules=layers).save_pretrained(str(start))
    texts = [{"text": " ".join(np.random.default_rng(i).choice(words, 14))} for i in range(40)]
    corpus = str(write_records(tmp_path / "texts.jsonl", texts))
    seen = []

    def stop(config, run, out):
        seen.append((config.model.scale, config.data.pairs, config.data.length))
        raise UserError("seen")

    monkeypatch.setattr(pretraining, "pretrain_model", stop)
    for name, flags in (("silent", []), ("given", ["--config.model.scale=5"])):
        with pytest.raises(UserError, match="seen"):
            adapt(tmp_path / name, corpus, str(start), None, flags)
    # Of one sentence each; as long as the model reads.
    assert seen == [(0.0, "crops", 64), (5.0, "crops", 64)]
    known = open_model(start)
    known = known._replace(representation=known.representation._replace(scale=100.0))
    monkeypatch.setattr(adapting, "open_model", lambda *_: known)
    with pytest.raises(UserError, match="seen"):
        adapt(tmp_path / "known", corpus, str(start))
    assert seen[2:] == [(100.0, "crops", 64)]


def test_training_is_compared_with_search(model_folder, monkeypatch):
    """Vocabulary and padding; tokens, without a prompt and behind both; and vectors."""
    compared = {}
    for owner, name in (
        (ModelConfig, "require_tokenizer"),
        (proposal, "require_same_tokens"),
        (proposal, "require_same_vectors"),
    ):
        note = lambda *given, name=name, **named: compared.setdefault(name, (*given, named))  # noqa: E731
        monkeypatch.setattr(owner, name, note)
    start = open_model(model_folder, Given(query_prompt="q: ", passage_prompt="p: "))
    shape, tokenizer = proposal.require_trainable(start)
    library = AutoTokenizer.from_pretrained(model_folder)
    sizes = (len(library), library.pad_token_id)
    assert compared["require_tokenizer"] == (shape, model_folder, *sizes, {})
    folder, own, search, *rest = compared["require_same_tokens"]
    assert (folder, own, rest) == (model_folder, tokenizer, [["", "p: ", "q: "], 64, {}])
    assert shape.longest_text == 64
    assert search("abc hgf") == library("abc hgf")["input_ids"]
    folder, served, used, config, params, named = compared["require_same_vectors"]
    assert (folder, config, named) == (model_folder, shape, {"program": "in JAX"})
    assert isinstance(served, SentenceTransformer)
    assert used.get_vocab() == library.get_vocab()
    words_VxH = params["embeddings"]["word"]["embedding"]
    expected = served[0].auto_model.embeddings.word_embeddings.weight.detach()
    np.testing.assert_array_equal(words_VxH, expected)


def test_longer_texts_than_search_reads_are_refused(model_folder):
    """Of a model whose network would read more: its limit is 32 of 64 tokens."""
    shape, tokenizer = proposal.require_trainable(open_model(model_folder))
    vectors = shape.representation._replace(max_length=32)
    shape = dataclasses.replace(shape, representation=vectors)

    def require(*overrides):
        config = proposal.settings_for(proposal.propose(), overrides, vectors, shape.longest_text)
        proposal.require_fitting(config, shape, tokenizer)

    require("--config.data.length=32")
    with pytest.raises(UserError, match=r"length 33 is longer than the 32 tokens that the model"):
        require("--config.data.length=33")


def test_a_model_that_reads_less_in_search_than_in_training_is_refused(model_folder, monkeypatch):
    compared = []
    monkeypatch.setattr(proposal, "require_same_tokens", lambda *given: compared.append(given))
    towers = proposal.towers
    for limit in (None, 64, 63):
        limited = lambda model, limit=limit: {  # noqa: E731
            task: Limited(tower, limit) for task, tower in towers(model).items()
        }
        monkeypatch.setattr(proposal, "towers", limited)
        start = open_model(model_folder)
        if limit != 63:
            proposal.require_trainable(start)
            continue
        with pytest.raises(UserError) as refused:
            proposal.require_trainable(start)
        assert str(refused.value) == (
            f"{model_folder} reads 63 tokens of a text, but would be trained on 64: expected the"
            " same in all of its files"
        )
    assert len(compared) == 2


class Limited(NamedTuple):
    """A module that says another limit than it has."""

    tower: Transformer
    max_seq_length: int | None

    @property
    def tokenizer(self):
        return self.tower.tokenizer


def test_devices_are_tried_before_anything_is_made(model_folder, corpus, tmp_path, monkeypatch):
    called = []

    def refuse():
        called.append("tried")
        raise UserError("no device")

    monkeypatch.setattr(devices, "prepare_libtpu", lambda: called.append("prepared"))
    monkeypatch.setattr(devices, "require_devices", refuse)
    with pytest.raises(UserError, match="no device"):
        adapt(tmp_path / "run", str(corpus), str(model_folder))
    assert called == ["prepared", "tried"]
    assert not (tmp_path / "run").exists()


def test_a_cpu_takes_what_was_measured():
    config = fit(6_000, 1, on_cpu=True)
    assert (config.data.batch_size, config.data.length, config.train.steps) == (32, 128, 120)
    assert (config.optimizer.learning_rate, config.train.dtype) == (3e-5, "float32")
    assert (config.data.pairs, config.train.objective) == ("sentence", "contrastive")
    assert config.train.chunk_size == 8


@pytest.mark.parametrize(("backend", "dtype"), [("cpu", "float32"), ("gpu", "bfloat16")])
def test_settings_are_proposed_for_the_devices_that_are_there(monkeypatch, backend, dtype):
    monkeypatch.setattr(proposal.jax, "default_backend", lambda: backend)
    monkeypatch.setattr(proposal, "count_devices", lambda: 3)
    proposed = proposal.propose(6_000)
    assert proposed == fit(6_000, 3, on_cpu=backend == "cpu")
    assert proposed.train.dtype == dtype


def test_an_accelerator_takes_larger_batches_where_a_corpus_has_a_hundred():
    small, large = (fit(n, 8, on_cpu=False) for n in (204_799, 204_800))
    assert (small.data.batch_size, small.train.chunk_size, small.train.steps) == (32, 64, 120)
    assert (large.data.batch_size, large.train.chunk_size, large.train.steps) == (2048, 64, 100)
    assert large.train.dtype == small.train.dtype == "bfloat16"


def test_a_small_corpus_is_read_eight_times_at_most():
    for n_spans, steps in ((100, 25), (480, 120), (400, 100)):
        assert fit(n_spans, 1, on_cpu=True).train.steps == steps


@pytest.mark.parametrize("pairs", ["sentence", "crops"])
def test_pairs_are_chosen_by_spans_of_the_whole_store(monkeypatch, pairs):
    """Those at its start may be of another kind: here, of one sentence or of several."""
    monkeypatch.setattr(proposal, "_SPANS_LOOKED_AT", 8)
    starts_NxL = np.zeros((40, 7), np.int8)
    starts_NxL[:, 0] = STARTS_SENTENCE
    # Of the eight looked at, four or three have several.
    of_several = slice(20, None) if pairs == "sentence" else slice(25, None)
    starts_NxL[of_several, 3] = STARTS_SENTENCE
    starts_NxL[:, 5:] = STARTS_SENTENCE  # a span of seven tokens has five of its own
    store = SimpleNamespace(
        n_spans=40, content_length=5, read_spans=lambda rows, n: (None, starts_NxL[rows, :n], None)
    )
    assert proposal.propose_for(store).data.pairs == pairs


@pytest.mark.parametrize("on_cpu", [True, False])
def test_every_proposal_is_allowed_and_fits_its_devices(on_cpu, monkeypatch):
    for n_devices in (1, 2, 3, 8, 32):
        monkeypatch.setattr(proposal, "count_devices", lambda n=n_devices: n)
        for n_spans in (0, 1, 9, 31, 100, 5_000, 20_001, 10_000_000):
            proposed = fit(n_spans, n_devices, on_cpu=on_cpu)
            config = proposal.settings_for(proposed, [], Representation(), 512)
            check(config, complete=False)
            spec = batches_of(config)
            check_batch(spec, config.train.chunk_size, 512, n_devices, kept_chunks=0)
            assert spec.batch_size <= max(n_spans * 9 // 10, n_devices)


@pytest.mark.parametrize(
    ("overrides", "chunk_size"),
    [
        ([], 8),
        (["--config.data.batch_size=16"], 4),  # rows of each of eight devices
        (["--config.data.batch_size=24"], 2),
        (["--config.train.chunk_size=4"], 4),
        (["--config.train.chunk_size=0"], 0),
        (["--config.train.chunk_size=auto"], "auto"),
        # Those are refused: nothing that is given is changed.
        (["--config.train.chunk_size=6"], 6),
        (["--config.train.chunk_size=8", "--config.data.batch_size=16"], 8),
        # A batch of 16 spans has no second row for each.
        (["--config.train.objective=mlm", "--config.data.batch_size=16"], 2),
    ],
)
def test_the_chunks_fit_the_batch_unless_they_are_chosen(overrides, chunk_size, monkeypatch):
    monkeypatch.setattr(proposal, "count_devices", lambda: 8)
    config = proposal.settings_for(fit(6_000, 8, on_cpu=True), overrides, Representation(), 512)
    assert config.train.chunk_size == chunk_size
