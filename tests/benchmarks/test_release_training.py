"""Training beside the authors' release, whose code is not here: plain PyTorch stands in for it."""

import copy
import json
import shutil

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM
from transformers.models.bert.modeling_bert import BertLayer

from benchmarks import release_training
from benchmarks.release_training import RUNS, Protocol
from checks.reference import contrastive_loss, mlm_sum, open_reference
from cocondenser_jax.cli import main
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.errors import UserError
from tests.world import make_texts, write_beir, write_records, write_store

pytestmark = pytest.mark.usefixtures("one_length")

PROTOCOL = Protocol(
    steps=4,
    documents=16,  # two on each of eight devices
    length=16,
    chunk_size=2,
    held_out=8,
    finetune_epochs=1,
    finetune_queries=2,
)
TOLERANCE = 1e-4  # of losses; those of neighboring batches differ by more than 0.01


@pytest.fixture(autouse=True)
def _commands_of_this_process(monkeypatch):
    def call(*words):
        assert main([*words]) == 0

    monkeypatch.setattr(release_training, "call", call)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = write_store(tmp_path_factory.mktemp("store"), make_texts(100, n_sentences=12))
    return open_store(folder)


@pytest.fixture(scope="module")
def start(store, tmp_path_factory):
    """A model of two layers with a Condenser head, as the release writes its own."""
    folder = tmp_path_factory.mktemp("start")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=store.vocab_size,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        initializer_range=0.2,  # so that vectors differ
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    lm = BertForMaskedLM(config)
    lm.save_pretrained(folder)
    layers = torch.nn.ModuleList(BertLayer(lm.config) for _ in range(2)).state_dict()
    torch.save({f"c_head.{name}": value for name, value in layers.items()}, folder / "model.pt")
    shutil.copytree(store.tokenizer_folder, folder, dirs_exist_ok=True)
    return folder


def plain_side(run, start, protocol):
    """Opens the model in plain PyTorch, and its step: what `open_side` does with the release."""
    model = open_reference(start)
    model.skip_from = release_training.SKIP_FROM
    model.save_pretrained = model.lm.save_pretrained

    def step(inputs):
        labels = inputs["labels"]
        n_masked = (labels >= 0).sum()
        output = model(inputs["input_ids"], inputs["attention_mask"].bool())
        head = mlm_sum(output.head_logits_BxLxV, labels) / n_masked
        late = mlm_sum(output.late_logits_BxLxV, labels) / n_masked
        terms = {"head_mlm_loss": head, "late_mlm_loss": late}
        loss = (run.mlm_weight or 1) * (head + late)
        if run.mlm_weight is not None:
            terms["contrastive_loss"] = contrastive_loss(output.vectors_BxD)
            loss = loss + terms["contrastive_loss"]
        loss.backward()
        return {name: value.item() for name, value in {"loss": loss, **terms}.items()}

    return model, step


@pytest.mark.parametrize("run", RUNS[::2], ids=lambda run: run.folder)
def test_both_sides_train_on_the_same_batches_by_the_same_rates(run, store, start, tmp_path):
    release_training.pretrain_both(run, start, store, PROTOCOL, tmp_path, plain_side)
    theirs = json.loads((tmp_path / "release.json").read_text())
    row = release_training.compare_terms(release_training.read_terms(tmp_path / "ours.run"), theirs)
    apart = [value for name, value in row.items() if name.endswith("largest difference")]
    apart = [value for value in apart if value != ""]
    assert len(apart) == (3 if run.mlm_weight is None else 4)
    assert max(apart) < TOLERANCE
    assert abs(theirs[0]["loss"] - theirs[1]["loss"]) > 100 * TOLERANCE
    texts = release_training.held_out_texts(store, PROTOCOL)
    assert len(texts[0]) == 2 * PROTOCOL.held_out
    sides = [release_training.encode(tmp_path / side, *texts) for side in ("ours", "release")]
    vectors = release_training.compare_vectors(*sides)
    assert vectors["1 - cosine, largest"] < 1e-5
    assert vectors["1 - cosine of different texts, mean"] > 1e-3


def test_a_training_that_was_killed_goes_on_as_if_it_had_not_been(monkeypatch, store, tmp_path):
    monkeypatch.setattr(release_training, "SAVE_EVERY", 2)
    torch.manual_seed(0)
    first = torch.nn.Linear(3, 1)
    monkeypatch.setattr(release_training, "as_release_reads", lambda batch: batch)

    def train(folder, stop_at=None):
        model = copy.deepcopy(first)
        asked = []

        def batch(number):
            asked.append(number)
            if number == stop_at:
                raise KeyboardInterrupt
            return torch.full((2, 3), number + 1.0)

        def step(inputs):
            loss = model(inputs).square().mean()
            loss.backward()
            return {"loss": loss.item()}

        rates = [0.1] * 7
        try:
            return release_training.train_release(model, step, batch, rates, folder), model
        finally:
            train.asked = asked

    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    expected, whole = train(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "killed", stop_at=5)
    terms, resumed = train(tmp_path / "killed")
    assert train.asked == [4, 5, 6]
    assert terms == expected
    assert len(terms) == 7
    torch.testing.assert_close(resumed.weight, whole.weight, rtol=0, atol=0)
    assert (whole.weight != first.weight).all()


def test_the_terms_of_the_release_are_noted_before_it_adds_to_them():
    class Release(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lm = torch.nn.Identity()

        def mlm_loss(self, value):
            return torch.tensor(value)

        def compute_contrastive_loss(self, value):
            return torch.tensor(value)

    class Output:
        def __init__(self, loss):
            self.loss = loss

    model = Release()
    terms = release_training.watch_terms(model)
    model.lm(Output(None))  # the first pass
    assert terms == {}
    model.compute_contrastive_loss(4.0)
    model.lm(Output(torch.tensor(3.0)))
    loss = model.mlm_loss(2.0)
    loss += 3.0
    assert terms == {"contrastive_loss": 4.0, "late_mlm_loss": 3.0, "head_mlm_loss": 2.0}


def test_the_largest_differences_are_those_of_the_steps_that_are_furthest_apart():
    ours = [{"loss": 5.0, "head_mlm_loss": 2.0} for _ in range(20)]
    theirs = copy.deepcopy(ours)
    theirs[4]["loss"] += 0.5
    theirs[19]["loss"] -= 0.25
    theirs[7]["head_mlm_loss"] -= 0.125
    row = release_training.compare_terms(ours, theirs)
    assert row["loss, largest difference"] == 0.5
    assert row["head's MLM, largest difference"] == 0.125
    assert row["loss, along the run"] == [0, 0, 0.5, 0, 0, 0, 0, 0, 0, 0.25]
    with pytest.raises(UserError, match=r"ours has 20 steps of .*, the release 19 of"):
        release_training.compare_terms(ours, theirs[1:])
    with pytest.raises(UserError, match=r"of \['head_mlm_loss'\]: expected the same"):
        release_training.compare_terms(ours, [{"head_mlm_loss": 2.0}] * 20)


def test_a_model_is_fine_tuned_and_searched_by_commands(start, tmp_path):
    passages = make_texts(12, n_sentences=2)
    queries = [" ".join(text.split()[:5]) for text in passages]
    splits = {"train": range(6), "test": range(6, 12)}
    data = write_beir(tmp_path / "data", passages, queries, splits)
    run = release_training.rank(start, data, PROTOCOL, tmp_path / "a")
    evaluated = release_training.evaluate(run, data, tmp_path / "evaluated.json", run)
    row = release_training.compare_metric("Recall@100", evaluated["comparisons"]["Recall@100"])
    assert row["Recall@100, ours"] == row["Recall@100, the release"] == 1.0
    assert row["Recall@100, difference (95 %)"] == "+0.0000 (+0.0000 to +0.0000)"


@pytest.fixture
def given(tmp_path):
    """The words of a call, and what they name."""
    for name in ("modeling.py", "trainer.py"):
        path = tmp_path / "Condenser" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    cache = tmp_path / "GradCache/src/grad_cache/grad_cache.py"
    cache.parent.mkdir(parents=True)
    cache.write_text("")
    for name in ("data", "finetune_data"):
        write_records(tmp_path / name / "corpus.jsonl", [{"_id": "1", "title": "", "text": "a"}])
    folders = {"condenser": "Condenser", "gradcache": "GradCache", "workdir": "work"}
    names = ("condenser", "gradcache", "data", "finetune_data", "workdir")
    return {name: tmp_path / folders.get(name, name) for name in names}


def refused(given, capsys, *words):
    """Returns the one line that a call ends with."""
    flags = [f"--{name}={path}" for name, path in given.items()]
    with pytest.raises(SystemExit) as end:
        release_training.main([*flags, *words])
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("condenser", "has no modeling.py"),
        ("gradcache", "has no src/grad_cache/grad_cache.py"),
        ("data", "has no corpus.jsonl"),
        ("finetune_data", "has no corpus.jsonl"),
    ],
)
def test_a_folder_that_is_not_there_is_refused(given, capsys, tmp_path, name, missing):
    given[name] = tmp_path / "absent"
    assert f"absent {missing}" in refused(given, capsys)
    assert not given["workdir"].exists()


def test_another_protocol_is_refused_in_the_same_folder(given, capsys, monkeypatch):
    monkeypatch.setattr(release_training, "make_store", _stop)
    with pytest.raises(KeyboardInterrupt):
        release_training.main([f"--{name}={path}" for name, path in given.items()])
    assert "steps=500, now it is 7: choose a new folder" in refused(given, capsys, "--steps=7")
    (given["data"] / "corpus.jsonl").write_text("other")
    assert "data=" in refused(given, capsys)


def _stop(*_):
    raise KeyboardInterrupt
