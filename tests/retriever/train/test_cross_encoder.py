"""Fine-tuning a cross-encoder: the losses, one step of the optimizer, negatives, resuming."""

from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from sentence_transformers import CrossEncoder

from cocondenser_jax.configs import cross_encoder as cross_encoder_config
from cocondenser_jax.errors import UserError
from cocondenser_jax.model_folder.model import open_network
from cocondenser_jax.retriever.data.folder import (
    passage_text,
    read_candidates,
    read_corpus,
    read_queries,
    read_split,
)
from cocondenser_jax.retriever.data.trec import write_run
from cocondenser_jax.retriever.train import cross_encoder, trainer
from cocondenser_jax.retriever.train.bi_encoder import fill_row
from cocondenser_jax.retriever.train.tasks import finetune
from cocondenser_jax.retriever.train.training_data import (
    Epoch,
    RowCollator,
    TrainingData,
    to_judgments,
    training_pairs,
)
from tests.lines import whole
from tests.world import change_settings, read_metrics

N_QUERIES, POOL = 24, 9


@pytest.fixture(scope="module")
def run_file(beir, tmp_path_factory):
    """For each query its positive, which is no negative, and nine passages more."""
    path = tmp_path_factory.mktemp("runs") / "bm25.trec"
    run = {f"q{i}": {f"d{(i + j) % 60}": 10.0 - j for j in range(POOL + 1)} for i in range(24)}
    write_run(path, run)
    return path


@pytest.fixture
def config(model_folder, beir, run_file):
    config = cross_encoder_config.get_config()
    change_settings(
        config,
        {
            "model.folder": str(model_folder),
            "data.folder": str(beir),
            "data.negatives_run": str(run_file),
            "data.negatives_per_query": 2,
            "data.batch_size": 4,
            "model.max_length": 24,
            "optimizer.learning_rate": 1e-3,
            "log_every": 1,
        },
    )
    return config


@pytest.mark.effect(
    "cross_encoder model.folder", "cross_encoder data.folder", "cross_encoder loss.name"
)
@pytest.mark.effect("cross_encoder model.max_length")
@pytest.mark.parametrize("loss", ["softmax", "binary"])
def test_one_step_is_adamw_on_the_loss_of_all_groups(
    make_cross_encoder, beir, config, run_file, tmp_path, loss
):
    folder = make_cross_encoder(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    change_settings(
        config,
        {
            "model.folder": str(folder),
            "loss.name": loss,
            "data.batch_size": 24,
            "train.max_steps": 1,
            "optimizer.warmup_ratio": 0.0,
        },
    )
    config.optimizer.weight_decay = 0.5
    result = finetune(config, tmp_path / "run")

    # The same step by hand: pairs one by one, torch's autograd, Adam's first step.
    queries, qrels = read_split(beir, "train")
    passages = {p.id: passage_text(p) for p in read_corpus(beir)}
    found = read_candidates(run_file, qrels, passages, 200)
    data = TrainingData(
        pairs=training_pairs(qrels),
        judgments=to_judgments(qrels, teacher=None),
        queries=queries,
        passages=passages,
        candidates={query: " ".join(names) for query, names in found.items()},
        n_negatives=2,
        seed=42,
        checksums={},
    )
    names = ("query", "positive", "negative_1", "negative_2")
    plain = SimpleNamespace(valid_label_columns=[])
    rows = RowCollator(data, Epoch(), fill_row, plain).fill(data.pairs)
    groups = [[row[name] for name in names] for row in rows]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)

    def score(query, passage):
        pair = tokenizer(query, passage, truncation=True, max_length=24, return_tensors="pt")
        return model(**pair).logits[0, 0]

    losses = []
    for query, *texts in groups:
        scores = torch.stack([score(query, text) for text in texts])
        if loss == "softmax":
            losses.append(-(scores[0].exp() / scores.exp().sum()).log())
        else:
            chances = 1 / (1 + (-scores).exp())
            losses.append(-(chances[0].log() + (1 - chances[1:]).log().sum()) / 3)
    mean = torch.stack(losses).mean()
    mean.backward()
    assert result["loss"] == pytest.approx(mean.item(), rel=1e-5)

    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    assert read_metrics(tmp_path / "run")[0]["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    trained = safetensors.torch.load_file(tmp_path / "run" / "cross_encoder" / "model.safetensors")
    assert trained.keys() == before.keys()
    for name, parameter in model.named_parameters():
        gradient = parameter.grad * min(1.0, 1.0 / norm.item())
        decay = 0.0 if name.endswith("bias") or "LayerNorm" in name else 0.5
        expected = before[name] * (1 - 1e-3 * decay) - 1e-3 * gradient / (gradient.abs() + 1e-8)
        # Adam's first step is nearly the gradient's sign, which is noise where that is all but 0.
        clear = gradient.abs() > 1e-5
        np.testing.assert_allclose(trained[name][clear], expected[clear].detach(), atol=2e-6)


def test_every_epoch_has_its_negatives_of_the_querys_pool(config, monkeypatch, tmp_path, beir):
    steps = []
    preprocess = CrossEncoder.preprocess

    def spy(self, pairs, **kwargs):
        # Not what is tried when the model is loaded, nor the words that the library counts.
        if isinstance(pairs[0], tuple) and len(pairs) > 1:
            steps.append(list(pairs))
        return preprocess(self, pairs, **kwargs)

    monkeypatch.setattr(CrossEncoder, "preprocess", spy)
    change_settings(config, {"train.epochs": 3})
    finetune(config, tmp_path / "run")

    names = {passage_text(p): p.id for p in read_corpus(beir)}
    queries = {text: name for name, text in read_queries(beir).items()}
    assert len(steps) == 3 * 6
    negatives = {}
    for i, pairs in enumerate(steps):
        assert len(pairs) == 4 * 3
        for group in (pairs[j : j + 3] for j in range(0, 12, 3)):
            (query,) = {queries[query] for query, _ in group}
            number = int(query[1:])
            positive, *drawn = (names[passage] for _, passage in group)
            assert positive == f"d{number}"
            assert set(drawn) <= {f"d{(number + j) % 60}" for j in range(1, POOL + 1)}
            negatives.setdefault(query, []).append((i // 6, set(drawn)))
    assert all([epoch for epoch, _ in drawn] == [0, 1, 2] for drawn in negatives.values())
    changed = [d for d in negatives.values() if any(other != d[0][1] for _, other in d)]
    assert len(changed) > 0.8 * len(negatives)


@pytest.mark.effect("cross_encoder train.max_steps")
def test_the_result_is_a_folder_for_sentence_transformers(config, tmp_path, monkeypatch):
    change_settings(config, {"train.max_steps": 2})
    result = finetune(config, tmp_path / "run")
    assert (result["steps"], result["pairs"]) == (2, 24)
    assert not (tmp_path / "run" / "checkpoints").exists()
    folder = result["cross_encoder"]
    pair = "abcde fgh", "hgfed cba aaaaa bbbbb ccccc ddddd eeeee"
    ids = transformers.AutoTokenizer.from_pretrained(folder)(
        *pair, truncation=True, max_length=24, return_tensors="pt"
    )
    assert ids["input_ids"].shape == (1, 24)
    with torch.no_grad():
        model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
        logit = model(**ids).logits.item()
    assert CrossEncoder(folder).predict(pair) == pytest.approx(logit, rel=1e-5)
    monkeypatch.setattr(trainer, "run", None)  # said before training, not after
    with pytest.raises(
        UserError, match=whole("… already exists: choose a new folder, or remove it first")
    ):
        finetune(config, tmp_path / "run")


def test_an_interrupted_run_ends_as_if_it_had_not_been(config, resume):
    # Of 24 rows, three are left of an epoch.
    change_settings(config, {"train.epochs": 2, "data.batch_size": 7, "checkpoint.every": 2})
    assert resume(5, "cross_encoder") == (list(range(1, 7)), 6 - 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model.folder": "/nowhere"},
            whole("/nowhere: no such folder, and not the name of a model on the hub"),
        ),
        (
            {"data.negatives_run": "/nowhere"},
            whole("config.data.negatives_run is '/nowhere': there is no such file"),
        ),
        (
            {"data.batch_size": 25},
            whole("TMP has 24 rows to train on: too few for one step of config.data.batch_size=25"),
        ),
        (
            {"model.max_length": 65},
            whole("config.model.max_length=65: expected 8 to 64 tokens for TMP"),
        ),
    ],
)
def test_bad_settings_leave_nothing(config, tmp_path, change, message):
    change_settings(config, change)
    with pytest.raises(UserError, match=message):
        finetune(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_new_head_is_drawn_by_the_seed_of_the_run(config, tmp_path, monkeypatch):
    seeds = []

    def load(network, max_length, head_seed):
        seeds.append(head_seed)
        raise UserError("no further")

    monkeypatch.setattr(cross_encoder, "load_cross_encoder", load)
    config.seed = 7
    with pytest.raises(UserError, match="no further"):
        finetune(config, tmp_path / "run")
    assert seeds == [7]


def test_a_run_goes_on_from_the_same_model_only(config, tmp_path, monkeypatch):
    known = []

    def start(settings, n_pairs, checksums):
        known.append(checksums)
        raise UserError("no further")

    monkeypatch.setattr(trainer, "start_or_resume", start)
    with pytest.raises(UserError, match="no further"):
        finetune(config, tmp_path / "run")
    (checksums,) = known
    assert checksums["model"] == open_network(config.model.folder).sha256()
    assert len(checksums) > 1  # and of the data
