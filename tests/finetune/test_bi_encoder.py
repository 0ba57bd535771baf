"""Fine-tuning: the loss, one step of the optimizer, the rows of a step, resuming."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from sentence_transformers import SentenceTransformer

from cocondenser_jax.collection.folder import passage_text, read_corpus, read_queries, read_split
from cocondenser_jax.collection.trec import read_run, write_run
from cocondenser_jax.configs import finetune as finetune_config
from cocondenser_jax.errors import UserError
from cocondenser_jax.finetune import bi_encoder, trainer
from cocondenser_jax.finetune.schedule import random_plan
from cocondenser_jax.finetune.tasks import finetune, resolve
from cocondenser_jax.finetune.training_data import Rows, draw_negatives, read_training
from cocondenser_jax.retrieval.models import load_retriever, passage_tokens, towers
from tests.world import read_metrics


@pytest.fixture
def config(model_folder, beir):
    config = finetune_config.get_config()
    config.update(
        model=str(model_folder),
        data=str(beir),
        negatives_per_query=0,
        batch_size=4,
        query_length=8,
        passage_length=16,
        log_every=1,
    )
    return config


@pytest.fixture(scope="module")
def run_file(beir, tmp_path_factory):
    """Ten passages for each query, its positive first."""
    path = tmp_path_factory.mktemp("runs") / "bm25.trec"
    run = {f"q{i}": {f"d{(i + j) % 60}": 10.0 - j for j in range(10)} for i in range(24)}
    write_run(path, run)
    return path


@pytest.mark.effect("retriever model", "retriever data", "retriever scale")
@pytest.mark.effect("retriever query_length", "retriever passage_length")
@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_one_step_is_adamw_on_the_loss_of_all_pairs(make_model, beir, config, tmp_path, scale):
    folder = make_model(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    config.update(model=str(folder), batch_size=24, max_steps=1, warmup_ratio=0.0)
    config.update(learning_rate=1e-3, weight_decay=0.5, scale=scale)
    result = finetune(config, tmp_path / "run")

    # The same step by hand: torch's autograd, Adam's first step and decoupled decay in plain sight.
    queries, qrels = read_split(beir, "train")
    passages = {p.id: passage_text(p) for p in read_corpus(beir)}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, add_pooling_layer=False)

    def embed(texts, length):
        batch = tokenizer(
            texts, padding=True, truncation=True, max_length=length, return_tensors="pt"
        )
        return model(**batch)[0][:, 0]

    positives = [passages[p] for grades in qrels.values() for p in grades]
    scores = scale * embed(list(queries.values()), 8) @ embed(positives, 16).T
    loss = -scores.log_softmax(1).diag().mean()
    loss.backward()
    assert result["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert read_metrics(tmp_path / "run")[0]["learning_rate"] == pytest.approx(1e-3)

    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    assert read_metrics(tmp_path / "run")[0]["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    trained = safetensors.torch.load_file(tmp_path / "run" / "retriever" / "model.safetensors")
    assert trained.keys() == before.keys()
    for name, parameter in model.named_parameters():
        gradient = parameter.grad * min(1.0, 1.0 / norm.item())
        decay = 0.0 if name.endswith("bias") or "LayerNorm" in name else 0.5
        expected = before[name] * (1 - 1e-3 * decay) - 1e-3 * gradient / (gradient.abs() + 1e-8)
        # Adam's first step is nearly the gradient's sign, which is noise where that is all but 0.
        clear = gradient.abs() > 1e-5
        np.testing.assert_allclose(trained[name][clear], expected[clear].detach(), atol=2e-6)


@pytest.mark.effect("retriever max_steps")
def test_the_retriever_is_a_folder_for_sentence_transformers(config, tmp_path, beir):
    config.update(max_steps=4, learning_rate=1e-3)
    result = finetune(config, tmp_path / "run")
    assert result["steps"] == 4
    assert result["pairs"] == 24
    model = SentenceTransformer(result["retriever"])
    assert model[1].pooling_mode == "cls"
    assert model.similarity_fn_name == "dot"
    assert (model[0].query_length, model[0].document_length) == (8, 16)
    assert [m["step"] for m in read_metrics(tmp_path / "run")] == [1, 2, 3, 4]
    assert not (tmp_path / "run" / "checkpoints").exists()
    # Nobody's training texts leave with the model.
    written = [path for path in (tmp_path / "run" / "retriever").rglob("*") if path.is_file()]
    content = b"".join(path.read_bytes() for path in written)
    assert not [text for text in read_queries(beir).values() if text.encode() in content]
    with pytest.raises(UserError, match="already exists"):
        finetune(config, tmp_path / "run")


@pytest.mark.effect("retriever batches")
@pytest.mark.parametrize("order", ["random", "sequential", "hard"])
def test_every_epoch_has_each_pair_once_and_its_own_negatives(
    config, run_file, monkeypatch, tmp_path, beir, order
):
    batches = []

    class Spy(Rows):
        def fill(self, pairs):
            batches.append(super().fill(pairs))
            return batches[-1]

    monkeypatch.setattr(bi_encoder, "Rows", Spy)
    config.update(epochs=3, batch_size=4, negatives_per_query=2, negatives_run=str(run_file))
    config.batches = order
    finetune(config, tmp_path / "run")

    names = {passage_text(p): p.id for p in read_corpus(beir)}
    queries = {text: name for name, text in read_queries(beir).items()}
    assert len(batches) == 3 * 6
    negatives, epochs = {}, [[], [], []]
    for i, batch in enumerate(batches):
        epochs[i // 6].append([])
        for row in batch:
            number = int(queries[row["query"]][1:])
            epochs[i // 6][-1].append(number)
            assert names[row["positive"]] == f"d{number}"
            drawn = {names[row["negative_1"]], names[row["negative_2"]]}
            # The run's first result is the positive, which is no negative.
            assert drawn <= {f"d{(number + j) % 60}" for j in range(1, 10)}
            negatives.setdefault(number, []).append((i // 6, drawn))
    changed = [d for d in negatives.values() if any(a != d[0][1] for _, a in d)]
    assert len(changed) > 0.8 * len(negatives)
    for epoch in epochs:
        assert sorted(number for batch in epoch for number in batch) == list(range(24))
    in_order = np.arange(24).reshape(6, 4).tolist()
    assert (epochs[0] == in_order, epochs[0] == epochs[1]) == ((order == "sequential"),) * 2
    if order == "hard":
        plan = np.load(tmp_path / "run" / "plans" / "epoch-0002.npz")["batches"]
        assert epochs[2] == plan.tolist()
    random = epochs[0] == random_plan(24, 4, seed=42).tolist()
    assert random == (order == "random")


@pytest.mark.parametrize("order", ["random", "hard"])
def test_an_interrupted_run_ends_as_if_it_had_not_been(
    config, run_file, monkeypatch, tmp_path, order
):
    config.update(
        batches=order,
        epochs=3,
        learning_rate=1e-3,
        negatives_per_query=1,
        negatives_run=str(run_file),
        checkpoint_every=4,
    )
    finetune(config, tmp_path / "whole")

    step_end = trainer._Metrics.on_step_end

    def interrupt(self, args, state, control, **kwargs):
        step_end(self, args, state, control, **kwargs)
        if state.global_step == 11:
            raise RuntimeError("killed")

    monkeypatch.setattr(trainer._Metrics, "on_step_end", interrupt)
    with pytest.raises(RuntimeError, match="killed"):
        finetune(config, tmp_path / "halves")
    assert not (tmp_path / "halves" / "retriever").exists()
    # A checkpoint that was being written when the process died.
    torn = tmp_path / "halves" / "checkpoints" / "checkpoint-10"
    torn.mkdir()
    monkeypatch.undo()
    config.seed += 1
    with pytest.raises(UserError, match="was started with seed=42, now it is 43"):
        finetune(config, tmp_path / "halves")
    config.seed -= 1
    steps = []
    monkeypatch.setattr(
        trainer._Metrics, "on_step_begin", lambda *args, **kwargs: steps.append(1), raising=False
    )
    finetune(config, tmp_path / "halves")
    assert len(steps) == 18 - 8

    whole, halves = read_metrics(tmp_path / "whole"), read_metrics(tmp_path / "halves")
    assert [m["step"] for m in halves] == list(range(1, 19))
    assert [m["loss"] for m in halves] == [m["loss"] for m in whole]
    weights = [tmp_path / run / "retriever" / "model.safetensors" for run in ("whole", "halves")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_bfloat16_is_close_and_not_the_same(config, tmp_path):
    losses = []
    for precision in ("float32", "auto", "bfloat16"):
        config.update(max_steps=1, precision=precision)
        losses.append(finetune(config, tmp_path / precision)["loss"])
    # Without a GPU, auto is float32.
    assert losses[0] == losses[1] != losses[2] == pytest.approx(losses[0], rel=0.02)


def test_a_run_shorter_than_a_log_has_a_loss(config, tmp_path):
    config.update(max_steps=3, log_every=2)
    result = finetune(config, tmp_path / "run")
    assert [m["step"] for m in read_metrics(tmp_path / "run")] == [2, 3]
    assert result["loss"] == read_metrics(tmp_path / "run")[-1]["loss"] > 0


def test_queries_without_candidates_get_negatives_of_the_whole_corpus(config, tmp_path):
    run = {"q0": {"d1": 2.0, "d2": 1.0}}
    write_run(tmp_path / "one.trec", run)
    config.update(negatives_per_query=2, negatives_run=str(tmp_path / "one.trec"))
    training = read_training(resolve(config, tmp_path).data)
    drawn = [set(), set()]
    for training.epoch in range(9):
        for q in (0, 1):
            drawn[q].update(draw_negatives(training, f"q{q}", f"d{q}"))
    assert drawn[0] == {"d1", "d2"}
    assert len(drawn[1]) > 9


@pytest.mark.effect("retriever teacher_run", "retriever loss")
def test_a_teacher_must_know_positives_and_some_negatives(config, beir, run_file, tmp_path):
    config.update(
        loss="soft_labels",
        negatives_per_query=2,
        negatives_run=str(run_file),
        teacher_run=str(tmp_path / "teacher.trec"),
        max_steps=2,
    )
    teacher = read_run(run_file)
    del teacher["q3"]["d3"]
    write_run(tmp_path / "teacher.trec", teacher)
    with pytest.raises(UserError, match=r"no score for 1 relevant .*: q3 d3; rerank --with_pos"):
        finetune(config, tmp_path / "run")
    teacher["q3"] = {"d3": 1.0}
    write_run(tmp_path / "teacher.trec", teacher)
    with pytest.raises(UserError, match="no score for any negative of 1 queries: q3"):
        finetune(config, tmp_path / "run")
    teacher["q3"]["d5"] = 0.0
    write_run(tmp_path / "teacher.trec", teacher)
    training = read_training(resolve(config, tmp_path).data, tmp_path / "teacher.trec")
    candidates = training.candidates
    assert candidates["q3"] == ["d5"]
    assert candidates["q4"] == [f"d{i}" for i in range(5, 14)]
    taught = finetune(config, tmp_path / "run")
    config.loss = "contrastive"
    assert taught["steps"] == 2
    assert taught["loss"] != pytest.approx(finetune(config, tmp_path / "other")["loss"], rel=0.01)


@pytest.mark.effect("retriever two_towers")
def test_two_towers_start_equal_and_diverge(config, tmp_path, beir):
    folders = []
    for two_towers in (False, True):
        config.update(two_towers=two_towers, max_steps=3, learning_rate=1e-2, warmup_ratio=0.0)
        folders.append(finetune(config, tmp_path / str(two_towers))["retriever"])
    losses = [read_metrics(tmp_path / run) for run in ("False", "True")]
    assert losses[0][0]["loss"] == pytest.approx(losses[1][0]["loss"], rel=1e-5)
    assert losses[0][2]["loss"] != pytest.approx(losses[1][2]["loss"], rel=1e-5)

    model = load_retriever(Path(folders[1]))
    text = next(iter(read_queries(beir).values()))
    assert not np.allclose(model.encode_query(text), model.encode_document(text), atol=1e-3)
    encoders = towers(model)
    assert encoders.keys() == {"query", "document"}
    assert encoders["query"].query_length == 8
    assert passage_tokens(model) == 16
    elsewhere = SentenceTransformer(folders[1])
    np.testing.assert_array_equal(elsewhere.encode_query(text), model.encode_query(text))
    # A second round trains both.
    config.update(model=folders[1], two_towers=False, max_steps=1)
    again = finetune(config, tmp_path / "second")["retriever"]
    assert towers(load_retriever(Path(again))).keys() == {"query", "document"}


# 12 steps: the last is not a multiple of 5, and is logged all the same.
@pytest.mark.parametrize(("chunk_size", "log_every"), [(0, 1), (1, 5)])
def test_two_processes_make_the_steps_of_one(
    make_model, config, run_file, tmp_path, chunk_size, log_every
):
    folder = make_model(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    settings = {
        "model": str(folder),
        "negatives_per_query": 1,
        "negatives_run": str(run_file),
        "batches": "hard",
        "chunk_size": chunk_size,
        "log_every": log_every,
        "epochs": 2,
        "learning_rate": 1e-3 if chunk_size else 1e-2,
        "checkpoint_every": 5,
        "eval_every": 0 if chunk_size else 6,
        "eval_split": "train",
    }
    config.update(settings)
    finetune(config, tmp_path / "one")

    flags = {**settings, **{k: config[k] for k in ("data", "batch_size")}}
    flags |= {k: config[k] for k in ("query_length", "passage_length")}
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
        + ["-m", "cocondenser_jax.cli", "finetune", f"--config={finetune_config.__file__}"]
        + [f"--workdir={tmp_path / 'two'}"]
        + [f"--config.{key}={value}" for key, value in flags.items()],
        check=True,
        capture_output=True,
        timeout=240,
    )
    one, two = read_metrics(tmp_path / "one"), read_metrics(tmp_path / "two")
    found = [[m.get("eval_loss") for m in run if "loss" not in m] for run in (one, two)]
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4)
    assert len(found[0]) == (0 if chunk_size else 2)
    one, two = ([m for m in run if "loss" in m] for run in (one, two))
    assert [m["step"] for m in two] == ([*range(1, 13)] if log_every == 1 else [5, 10, 12])
    np.testing.assert_allclose([m["loss"] for m in two], [m["loss"] for m in one], rtol=1e-4)
    norms = [[m["grad_norm"] for m in run] for run in (one, two)]
    np.testing.assert_allclose(norms[1], norms[0], rtol=1e-3)
    load_retriever(tmp_path / "two" / "retriever")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "/nowhere"}, "/nowhere: no such folder"),
        ({"data": "/nowhere"}, "/nowhere does not exist"),
        ({"split": "dev"}, "has no judgments of split 'dev'"),
        ({"negatives_per_query": 1}, "no config.negatives_run"),
        ({"batch_size": 25}, "has 24 rows to train on: too few .*batch_size=25"),
        ({"loss": "soft_labels"}, "config.loss is soft_labels: expected config.teacher_run"),
        ({"passage_length": 65}, "passage_length=65: expected 3 to 64"),
    ],
)
def test_bad_settings_leave_nothing(config, tmp_path, change, message):
    config.update(change)
    with pytest.raises(UserError, match=message):
        finetune(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_with_something_else_is_refused(config, tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match="already exists"):
        finetune(config, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_the_shipped_config_is_locked_and_the_papers():
    config = finetune_config.get_config()
    assert (config.batch_size, config.negatives_per_query, config.learning_rate) == (8, 7, 5e-6)
    with pytest.raises(AttributeError):
        config.learning_rat = 1.0


@pytest.mark.parametrize("variant", ["nq", "trivia"])
def test_the_variants_of_dpr_have_two_towers(config, variant, tmp_path):
    dpr = finetune_config.get_config(variant)
    settings = resolve(dpr, tmp_path)
    assert (settings.trainer.batch_size, settings.data.negatives_per_query) == (128, 1)
    assert (settings.trainer.epochs, settings.trainer.learning_rate) == (40, 1e-5)
    dpr.update(model=config.model, data=config.data, negatives_per_query=0, max_steps=1)
    dpr.update(batch_size=4, passage_length=16)
    retriever = finetune(dpr, tmp_path / "run")["retriever"]
    assert towers(load_retriever(Path(retriever))).keys() == {"query", "document"}
