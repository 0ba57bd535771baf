"""`adapt` on tiny texts: without judgments (killed once), with those of test, and of training."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest

from cocondenser_jax.cli import main
from cocondenser_jax.collection.trec import read_qrels
from cocondenser_jax.convert.from_torch import load_folder, read_shape
from cocondenser_jax.convert.to_torch import export_folder
from cocondenser_jax.corpus.batches import held_out_documents
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.pretrain.checkpoint import load_run
from cocondenser_jax.quickstart import adapt as adapting
from cocondenser_jax.quickstart import pipeline
from cocondenser_jax.quickstart.adapt import adapt, verdict
from cocondenser_jax.quickstart.report import ResultRow
from cocondenser_jax.retrieval.models import load_retriever, model_sha256

pytestmark = pytest.mark.timeout(900)  # the first test pays for all trainings
N_TEXTS, N_STEPS = 60, 6
SETTINGS = [f"--config.train.steps={N_STEPS}", "--config.data.length=16", "--config.log_every=1"]
SETTINGS += ["--config.checkpoint.every=1", "--config.probe.every=1"]
SETTINGS += ["--config.optimizer.learning_rate=0.01"]  # in so few steps, enough to be seen


class Finished(NamedTuple):
    """Three adaptations: work folders, and the first one's model folder and corpus.

    The second is of the same model and corpus, so it has the first one's pre-training. The third is
    of a model with a head.
    """

    model: Path
    headed: Path
    corpus: Path
    unlabelled: Path
    judged: Path
    trained: Path
    printed: dict[Path, str]


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def by_id(path):
    return {line["_id"]: line["text"] for line in lines(path)}


def kill_during_training(words, workdir):
    """Starts a command, and ends it with SIGKILL once a checkpoint is there."""
    process = subprocess.Popen([sys.executable, "-m", "cocondenser_jax.cli", *words])
    checkpoints = workdir / "pretraining" / "checkpoints"
    while not (checkpoints.is_dir() and any(p.name.isdigit() for p in checkpoints.iterdir())):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def copy_pretraining(finished, workdir, **changes):
    """Copies store, run and model of an adaptation, which go on as one that was asked otherwise."""
    for name in ("store", "pretraining", "model"):
        shutil.copytree(finished / name, workdir / name)
    run = workdir / "pretraining" / "run.json"
    run.write_text(run.read_text().replace(str(finished), str(workdir)))
    started = json.loads((finished / "started.json").read_text())
    (workdir / "started.json").write_text(json.dumps(started | changes))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, words):
    """A folder of text files, each of forty words in sentences."""
    folder, rng = tmp_path_factory.mktemp("texts"), np.random.default_rng(5)
    for number in range(N_TEXTS):
        # Words of its own make spans of a text belong together.
        own = rng.choice(words, 8)
        sentences = [" ".join(rng.choice(own, 4)) for _ in range(10)]
        (folder / f"{number}.txt").write_text(". ".join(sentences) + ".\n")
    return folder


@pytest.fixture(scope="module")
def judged_data(tmp_path_factory, beir):
    """The collection with judgments of test, and for training in `with-train`."""
    folder = tmp_path_factory.mktemp("data")
    for name in ("test-only", "with-train"):
        shutil.copytree(beir, folder / name)
        judgments = (beir / "qrels" / "train.tsv").read_text().splitlines(keepends=True)
        (folder / name / "qrels" / "test.tsv").write_text("".join(judgments[:1] + judgments[-8:]))
        (folder / name / "qrels" / "train.tsv").write_text("".join(judgments[:-8]))
    (folder / "test-only" / "qrels" / "train.tsv").unlink()
    return folder


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory,
    make_model,
    corpus,
    judged_data,
):
    folder = tmp_path_factory.mktemp("adapt")
    plain, model = make_model(), folder / "with-mean-pooling"
    load_retriever(plain, pooling="mean").save_pretrained(str(model), create_model_card=False)
    network, params = load_folder(str(plain), n_head_layers=1, skip_from=0, init_head_seed=0)
    export_folder(params, network, plain, headed := folder / "with-a-head", {})
    test_only, with_train = judged_data / "test-only", judged_data / "with-train"
    own = [f"--corpus={corpus}", f"--model={model}"]
    asked = {
        "unlabelled": own,
        "judged": [*own, f"--data={test_only}"],
        "trained": [f"--corpus={with_train}", f"--model={headed}", f"--data={with_train}"],
    }
    printed = {}
    for name, words in asked.items():
        workdir = folder / name
        command = ["adapt", *words, f"--workdir={workdir}", *SETTINGS]
        if name == "unlabelled":
            kill_during_training(command, workdir)
            assert not (workdir / "model").exists()
        if name == "judged":
            copy_pretraining(folder / "unlabelled", workdir, data=str(test_only))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdout", out := (folder / f"{name}.out").open("w"))
            assert main(command) == 0
            out.close()
        printed[workdir] = (folder / f"{name}.out").read_text()
    return Finished(model, headed, corpus, *(folder / name for name in asked), printed)


def results(workdir):
    return {row["name"]: row for row in json.loads((workdir / "results.json").read_text())}


def mean_reciprocal_rank(model, data, pooling):
    """Ranks all passages by inner product, with transformers alone."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    network = transformers.AutoModel.from_pretrained(model, add_pooling_layer=False)

    def vectors(texts):
        inputs = tokenizer(texts, padding=True, truncation=True, max_length=64, return_tensors="pt")
        with torch.no_grad():
            hidden = network(**inputs).last_hidden_state
        mask = inputs["attention_mask"][:, :, None]
        mean = (hidden * mask).sum(1) / mask.sum(1)
        return (hidden[:, 0] if pooling == "cls" else mean).numpy()

    passages = {
        line["_id"]: f"{line['title']} {line['text']}".strip()
        for line in lines(data / "corpus.jsonl")
    }
    queries, qrels = by_id(data / "queries.jsonl"), read_qrels(data / "qrels" / "test.tsv")
    names = [*passages]
    scores_QxN = vectors([queries[q] for q in qrels]) @ vectors([*passages.values()]).T
    reciprocal = 0.0
    for scores, judged in zip(scores_QxN, qrels.values(), strict=True):
        [relevant] = judged
        rank = 1 + int((scores > scores[names.index(relevant)]).sum())
        reciprocal += 1 / rank if rank <= 10 else 0.0
    return reciprocal / len(qrels)


@pytest.mark.effect("adapt --corpus", "adapt --model", "adapt --workdir")
def test_an_adaptation_that_was_killed_is_as_promised(finished):
    workdir = finished.unlabelled
    for name in ("model/model.safetensors", "retriever/modules.json", "index/index.faiss"):
        assert (workdir / name).is_file()
    logged = lines(workdir / "pretraining" / "metrics.jsonl")
    for kind in ("loss", "probe/partner_mrr"):  # none lost, none twice
        assert [x["step"] for x in logged if kind in x] == [*range(1, N_STEPS + 1)]
    _, params, facts = load_run(workdir / "pretraining")
    assert facts["step"] == N_STEPS
    jax.tree.map(np.testing.assert_array_equal, load_folder(str(workdir / "model"))[1], params)
    assert facts["data"]["source"] == str(finished.corpus)
    assert facts["config"]["warm_start"] == str(finished.model)
    start = load_folder(str(finished.model), init_head_seed=0)[1]
    pairs = zip(jax.tree.leaves(start), jax.tree.leaves(params), strict=True)
    assert all((np.asarray(a) != np.asarray(b)).any() for a, b in pairs if np.ndim(a) > 1)
    manifest = json.loads((workdir / "index" / "manifest.json").read_text())
    assert manifest["model_sha256"] == model_sha256(workdir / "retriever")
    page = (workdir / "report.html").read_text()
    assert "Adapting " in page
    assert page.count('<th scope="row">') == 3


def test_without_judgments_spans_of_held_out_documents_search_for_each_other(
    finished,
):
    data, store = finished.unlabelled / "data", open_store(finished.unlabelled / "store")
    held_out = held_out_documents(store, 512)
    assert len(held_out) == N_TEXTS // 10
    qrels = read_qrels(data / "qrels" / "test.tsv")
    passages, queries = by_id(data / "corpus.jsonl"), by_id(data / "queries.jsonl")

    def document(span):
        return int(np.searchsorted(store.first_span_D, int(span), side="right")) - 1

    assert {document(query) for query in qrels} == set(held_out.tolist())
    for query, judged in qrels.items():
        [relevant] = judged
        assert relevant != query
        assert document(relevant) == document(query)
        assert query not in passages
        source = (
            finished.corpus / store.document_id(document(query)).partition(":")[0]
        ).read_text()
        for text in (queries[query], passages[relevant]):
            assert text.replace(" .", ".").strip(". ") in source
    others = [d for d in range(store.n_documents) if d not in held_out]
    n_others = sum(int(store.first_span_D[d + 1] - store.first_span_D[d]) for d in others)
    assert len(passages) == len(held_out) + n_others


def test_the_rows_are_what_plain_transformers_finds(finished):
    rows = results(finished.unlabelled)
    data = finished.unlabelled / "data"
    assert [*rows] == ["BM25", "unadapted", "adapted"]
    for name, model, pooling in (
        ("unadapted", finished.model, "mean"),
        ("adapted", finished.unlabelled / "model", "cls"),
    ):
        expected = mean_reciprocal_rank(model, data, pooling)
        assert rows[name]["metrics"]["MRR@10"] == pytest.approx(expected), name
    assert rows["adapted"]["tokens"] > 0 == rows["unadapted"]["tokens"]
    assert all(row["seconds"] > 0 for row in rows.values())


@pytest.mark.effect("adapt --data")
def test_with_judgments_both_are_compared_on_them(finished, judged_data, capsys):
    rows = results(finished.judged)
    assert not (finished.judged / "data").exists()
    model = finished.judged / "model"
    expected = mean_reciprocal_rank(model, judged_data / "test-only", "cls")
    assert rows["adapted"]["metrics"]["MRR@10"] == pytest.approx(expected)
    assert not (finished.judged / "finetuning").exists()
    printed = finished.printed[finished.judged]
    assert "Adapting " in printed
    assert "test-only, without fine-tuning.\n" in printed
    command = printed[printed.index("cocondenser search") :].split()
    assert main([*command[1:-1], "--query=a word", "--top_k=2"]) == 0
    assert capsys.readouterr().out.startswith('"a word"\n')


def test_with_training_pairs_both_are_fine_tuned_in_the_same_way(finished):
    folders = finished.trained / "compare" / "unadapted", finished.trained
    before, after = (
        json.loads((folder / "finetuning" / "finetune.json").read_text()) for folder in folders
    )
    assert after.pop("model") == str(finished.trained / "model") != before.pop("model")
    assert before.pop("sha256")["model"] != after.pop("sha256")["model"]
    assert before == after
    assert (before["batch_size"], before["epochs"], before["split"]) == (16, 3, "train")
    assert "with-train, after the same fine-tuning.\n" in finished.printed[finished.trained]
    assert "<h2>Fine-tuning</h2>" in (finished.trained / "report.html").read_text()


def test_the_head_that_a_model_has_goes_on(finished):
    for workdir, expected in ((finished.trained, (1, 0)), (finished.unlabelled, (2, 1))):
        network, _, _ = load_run(workdir / "pretraining")
        assert (network.n_head_layers, network.skip_from) == expected


def test_another_head_than_the_models_is_refused_before_anything_is_made(
    finished, tmp_path, capsys
):
    new = tmp_path / "new"
    words = [f"--corpus={finished.corpus}", f"--model={finished.headed}", f"--workdir={new}"]
    assert main(["adapt", *words, "--config.model.n_head_layers=2"]) == 2
    expected = "its Condenser head has n_head_layers 1, but config.model.n_head_layers is 2\n"
    assert capsys.readouterr().err.endswith(expected)
    assert not new.exists()


def test_a_new_head_reads_the_middle_as_in_the_papers(make_model):
    for n_layers, middle in ((6, 3), (12, 6)):
        shape = read_shape(make_model(num_hidden_layers=n_layers))
        assert (shape.n_head_layers, shape.skip_from) == (0, middle)


def test_called_again_it_trains_nothing(finished, monkeypatch):
    monkeypatch.setattr(adapting, "build_store", pytest.fail)
    for name in ("pretrain", "finetune", "encode_corpus", "write_bm25_run"):
        monkeypatch.setattr(pipeline, name, pytest.fail)
    before = results(finished.unlabelled)
    again, _ = adapt(finished.unlabelled, str(finished.corpus), str(finished.model), None, SETTINGS)
    assert [row.metrics for row in again] == [row["metrics"] for row in before.values()]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"corpus": "nowhere.txt"}, "no file nowhere.txt"),
        ({"model": "gpt"}, "model_type is 'gpt2'; expected bert or roberta or"),
        ({"model": "empty"}, "cannot read empty/config.json"),
        ({"data": "empty"}, "empty has no judgments of split 'test': expected qrels/test.tsv"),
        ({"data": "nowhere"}, "nowhere does not exist: expected a folder of passages"),
        ({"workdir": "gpt"}, "gpt already exists: choose a new folder"),
        ({"config.train.step": "3"}, "'config.train.step': did you mean config.train.steps or "),
        ({"config.data.length": "65"}, "config.data.length 65 is longer than the model's 64 pos"),
        ({"config.train.chunk_size": "6"}, "config.train.chunk_size 6 does not divide the 8 spans"),
        ({"config.model.skip_from": "9"}, "skip_from is 9; expected a whole number from 0 to 2"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_made(
    changes,
    said,
    make_model,
    model_folder,
    corpus,
    tmp_path,
    monkeypatch,
    capsys,
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    shutil.copytree(model_folder, tmp_path / "gpt")
    config = json.loads((tmp_path / "gpt" / "config.json").read_text()) | {"model_type": "gpt2"}
    (tmp_path / "gpt" / "config.json").write_text(json.dumps(config))
    given = {"corpus": str(corpus), "model": str(model_folder), "workdir": "new"} | changes
    assert main(["adapt", *(f"--{name}={value}" for name, value in given.items())]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("cocondenser: ")
    assert said in error
    assert sorted(os.listdir()) == ["empty", "gpt"]
    assert os.listdir("empty") == []


def test_another_corpus_is_refused(finished, capsys):
    words = ["adapt", f"--corpus={finished.corpus / '0.txt'}", f"--model={finished.model}"]
    assert main([*words, f"--workdir={finished.unlabelled}", *SETTINGS]) == 2
    assert f"{finished.unlabelled} was started with corpus=" in capsys.readouterr().err


def rows_of(p_value, *mrr):
    values = zip(("BM25", "unadapted", "adapted"), mrr, strict=True)
    return [ResultRow(n, {"MRR@10": v}, {"MRR@10": p_value}, 0.0, 1.0) for n, v in values]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            rows_of(0.049, 0.6, 0.3, 0.4),
            "Adapting paid (MRR@10 0.400, unadapted 0.300, p = 0.049)",
        ),
        (
            rows_of(0.05, 0.2, 0.3, 0.4),
            "Adapting did not pay (MRR@10 0.400, unadapted 0.300, p = 0.05)",
        ),
        (
            rows_of(0.0002, 0.2, 0.5, 0.4),
            "Adapting did not pay (MRR@10 0.400, unadapted 0.500, p = 0.0002)",
        ),
    ],
)
def test_the_verdict_is_about_the_last_two_rows(rows, said):
    assert verdict(rows) == said
