"""Fine-tuning: the loss, one step of the optimizer, the rows of a step, resuming."""

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from sentence_transformers import SentenceTransformer

from cocondenser_jax.configs import finetune as finetune_config
from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.data.folder import (
    passage_text,
    read_corpus,
    read_queries,
    read_split,
)
from cocondenser_jax.retriever.data.trec import read_run, write_run
from cocondenser_jax.retriever.search.models import load_retriever, passage_tokens, towers
from cocondenser_jax.retriever.train import bi_encoder
from cocondenser_jax.retriever.train.samplers import random_batches
from cocondenser_jax.retriever.train.tasks import finetune, resolve
from cocondenser_jax.retriever.train.training_data import RowCollator, draw_negatives, read_training
from tests.lines import whole
from tests.world import change_settings, read_metrics


@pytest.mark.effect("retriever model.folder", "retriever data.folder", "retriever loss.scale")
@pytest.mark.effect("retriever model.query_length", "retriever model.passage_length")
@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_one_step_is_adamw_on_the_loss_of_all_pairs(make_model, beir, config, tmp_path, scale):
    folder = make_model(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    change_settings(
        config,
        {
            "model.folder": str(folder),
            "data.batch_size": 24,
            "train.max_steps": 1,
            "optimizer.warmup_ratio": 0.0,
        },
    )
    change_settings(
        config,
        {"optimizer.learning_rate": 1e-3, "optimizer.weight_decay": 0.5, "loss.scale": scale},
    )
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


@pytest.mark.effect("retriever train.max_steps")
def test_the_retriever_is_a_folder_for_sentence_transformers(config, tmp_path, beir):
    change_settings(config, {"train.max_steps": 4, "optimizer.learning_rate": 1e-3})
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
    with pytest.raises(
        UserError, match=whole("… already exists: choose a new folder, or remove it first")
    ):
        finetune(config, tmp_path / "run")


@pytest.mark.effect("retriever data.batches")
@pytest.mark.parametrize("order", ["random", "sequential", "hard"])
def test_every_epoch_has_each_pair_once_and_its_own_negatives(
    config, run_file, monkeypatch, tmp_path, beir, order
):
    batches = []

    class Spy(RowCollator):
        def fill(self, pairs):
            batches.append(super().fill(pairs))
            return batches[-1]

    monkeypatch.setattr(bi_encoder, "RowCollator", Spy)
    change_settings(
        config,
        {
            "train.epochs": 3,
            "data.batch_size": 4,
            "data.negatives_per_query": 2,
            "data.negatives_run": str(run_file),
        },
    )
    config.data.batches = order
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
        batches_MxB = np.load(tmp_path / "run" / "batches" / "epoch-0002.npz")["batches"]
        assert epochs[2] == batches_MxB.tolist()
    random = epochs[0] == random_batches(24, 4, seed=42, epoch=0).tolist()
    assert random == (order == "random")


# In random order, and killed at other moments: test_trainer.py.
def test_an_interrupted_run_with_hard_batches_ends_as_if_it_had_not_been(config, run_file, resume):
    change_settings(
        config,
        {
            "data.batches": "hard",
            "train.epochs": 3,
            "optimizer.learning_rate": 1e-3,
            "data.negatives_per_query": 1,
            "data.negatives_run": str(run_file),
            "checkpoint.every": 4,
        },
    )
    assert resume(11, "retriever") == (list(range(1, 19)), 18 - 8)


def test_bfloat16_is_close_and_not_the_same(config, tmp_path):
    losses = []
    for precision in ("float32", "auto", "bfloat16"):
        change_settings(config, {"train.max_steps": 1, "train.precision": precision})
        losses.append(finetune(config, tmp_path / precision)["loss"])
    # Without a GPU, auto is float32.
    assert losses[0] == losses[1] != losses[2] == pytest.approx(losses[0], rel=0.02)


def test_a_run_shorter_than_a_log_has_a_loss(config, tmp_path):
    change_settings(config, {"train.max_steps": 3, "log_every": 2, "checkpoint.every": 0})
    result = finetune(config, tmp_path / "run")
    assert [m["step"] for m in read_metrics(tmp_path / "run")] == [2, 3]
    assert result["loss"] == read_metrics(tmp_path / "run")[-1]["loss"] > 0


def test_queries_without_candidates_get_negatives_of_the_whole_corpus(config, tmp_path):
    run = {"q0": {"d1": 2.0, "d2": 1.0}}
    write_run(tmp_path / "one.trec", run)
    change_settings(
        config, {"data.negatives_per_query": 2, "data.negatives_run": str(tmp_path / "one.trec")}
    )
    training = read_training(resolve(config, tmp_path).data, tmp_path)
    drawn = [set(), set()]
    for epoch in range(9):
        for q in (0, 1):
            drawn[q].update(draw_negatives(training, epoch, f"q{q}", f"d{q}"))
    assert drawn[0] == {"d1", "d2"}
    assert len(drawn[1]) > 9


@pytest.mark.effect("retriever loss.teacher_run", "retriever loss.name")
def test_a_teacher_must_know_positives_and_some_negatives(config, beir, run_file, tmp_path):
    change_settings(
        config,
        {
            "loss.name": "soft_labels",
            "data.negatives_per_query": 2,
            "data.negatives_run": str(run_file),
            "loss.teacher_run": str(tmp_path / "teacher.trec"),
            "train.max_steps": 2,
        },
    )
    teacher = read_run(run_file)
    del teacher["q3"]["d3"]
    write_run(tmp_path / "teacher.trec", teacher)
    with pytest.raises(
        UserError,
        match=whole(
            "TMP/teacher.trec has no score for 1 relevant"
            " passages (query, passage): q3 d3; rerank --with_positives scores them too"
        ),
    ):
        finetune(config, tmp_path / "run")
    teacher["q3"] = {"d3": 1.0}
    write_run(tmp_path / "teacher.trec", teacher)
    with pytest.raises(
        UserError, match=whole("TMP/teacher.trec has no score for any negative of 1 queries: q3")
    ):
        finetune(config, tmp_path / "run")
    teacher["q3"]["d5"] = 0.0
    write_run(tmp_path / "teacher.trec", teacher)
    training = read_training(resolve(config, tmp_path).data, tmp_path, tmp_path / "teacher.trec")
    candidates = training.candidates
    assert candidates["q3"] == "d5"
    assert candidates["q4"].split() == [f"d{i}" for i in range(5, 14)]
    taught = finetune(config, tmp_path / "run")
    change_settings(config, {"loss.name": "contrastive", "loss.teacher_run": ""})
    assert taught["steps"] == 2
    assert taught["loss"] != pytest.approx(finetune(config, tmp_path / "other")["loss"], rel=0.01)


@pytest.mark.effect("retriever model.two_towers")
def test_two_towers_start_equal_and_diverge(config, tmp_path, beir):
    folders = []
    for two_towers in (False, True):
        change_settings(
            config,
            {
                "model.two_towers": two_towers,
                "train.max_steps": 3,
                "optimizer.learning_rate": 1e-2,
                "optimizer.warmup_ratio": 0.0,
            },
        )
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
    change_settings(
        config, {"model.folder": folders[1], "model.two_towers": False, "train.max_steps": 1}
    )
    again = finetune(config, tmp_path / "second")["retriever"]
    assert towers(load_retriever(Path(again))).keys() == {"query", "document"}


@pytest.mark.effect("retriever loss.sizes")
def test_vectors_of_several_sizes_are_trained_and_the_first_is_kept(model_folder, config, tmp_path):
    sizes = (24, 8)
    change_settings(config, {"loss.sizes": sizes, "train.max_steps": 1, "model.pooling": "mean"})
    several = finetune(config, tmp_path / "several")
    alone = []
    for size in sizes:
        change_settings(config, {"loss.sizes": (size,)})
        alone.append(finetune(config, tmp_path / f"{size}")["loss"])
    assert several["loss"] == pytest.approx(sum(alone), rel=1e-4)
    saved = SentenceTransformer(several["retriever"])
    assert saved.encode("a").shape == (sizes[0],)
    assert load_retriever(model_folder).encode("a").shape == (32,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model.folder": "/nowhere"},
            whole("/nowhere: no such folder, and not the name of a model on the hub"),
        ),
        (
            {"data.folder": "/nowhere"},
            whole("/nowhere does not exist: expected a folder of passages, queries and judgments"),
        ),
        (
            {"data.split": "dev"},
            whole("TMP has no judgments of split 'dev': it has qrels/train.tsv"),
        ),
        (
            {"data.negatives_per_query": 1},
            whole(
                "config.data.negatives_per_query is 1, but there is no "
                "config.data.negatives_run to draw them from: name a TREC run, or set it "
                "to 0"
            ),
        ),
        (
            {"data.batch_size": 25},
            whole("TMP has 24 rows to train on: too few for one step of config.data.batch_size=25"),
        ),
        *(
            (
                {"loss.name": "soft_labels"} | given,
                whole(
                    "config.loss.name is soft_labels: expected config.loss.teacher_run, a "
                    "TREC run of a cross-encoder's scores, and "
                    "config.data.negatives_per_query of at least 1"
                ),
            )
            for given in (
                {},
                {"loss.teacher_run": __file__},
                {"data.negatives_run": __file__, "data.negatives_per_query": 1},
            )
        ),
        (
            {"model.passage_length": 65},
            whole("config.model.passage_length=65: expected 3 to 64 tokens for TMP"),
        ),
        ({"loss.sizes": (64, 8)}, whole("TMP makes vectors of 32 dimensions: cannot keep 64")),
        (
            {"loss.sizes": (8, 16)},
            whole("config.loss.sizes is [8, 16]; expected the largest first"),
        ),
        ({"loss.sizes": (8, 8)}, whole("config.loss.sizes is [8, 8]; expected the largest first")),
        (
            {"loss.teacher_run": __file__},
            whole(
                "config.loss.teacher_run is '…', but config.loss.name is 'contrastive': "
                "expected soft_labels, or no teacher"
            ),
        ),
        (
            {"data.negatives_run": __file__},
            whole(
                "config.data.negatives_run is '…', but none is drawn: "
                "config.data.negatives_per_query is 0"
            ),
        ),
        (
            {"eval.run": __file__},
            whole(
                "config.eval.run is '…', but config.eval.every is 0: expected a number "
                "of steps between two evaluations"
            ),
        ),
    ],
)
def test_bad_settings_leave_nothing(config, tmp_path, change, message):
    change_settings(config, change)
    with pytest.raises(UserError, match=message):
        finetune(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_shipped_config_is_locked_and_the_papers():
    config = finetune_config.get_config()
    assert (config.data.batch_size, config.data.negatives_per_query) == (8, 7)
    assert config.optimizer.learning_rate == 5e-6
    with pytest.raises(AttributeError):
        config.optimizer.learning_rat = 1.0


@pytest.mark.parametrize("variant", ["nq", "trivia"])
def test_the_variants_of_dpr_have_two_towers(config, variant, tmp_path):
    dpr = finetune_config.get_config(variant)
    settings = resolve(dpr, tmp_path)
    assert (settings.trainer.batch_size, settings.data.negatives_per_query) == (128, 1)
    assert (settings.trainer.epochs, settings.trainer.learning_rate) == (40, 1e-5)
    change_settings(
        dpr,
        {
            "model.folder": config.model.folder,
            "data.folder": config.data.folder,
            "data.negatives_per_query": 0,
            "train.max_steps": 1,
        },
    )
    change_settings(dpr, {"data.batch_size": 4, "model.passage_length": 16})
    retriever = finetune(dpr, tmp_path / "run")["retriever"]
    assert towers(load_retriever(Path(retriever))).keys() == {"query", "document"}
