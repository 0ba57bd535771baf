"""Training on pairs of a store: what a step reads, and how a run ends."""

import json
import math
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from cocondenser_jax.corpus.batches import Batch, BatchSpec, held_out_batch, make_batch
from cocondenser_jax.corpus.build import build_store
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import write_json
from cocondenser_jax.model_folder.folder import read_representation
from cocondenser_jax.retriever.train import pairs
from cocondenser_jax.retriever.train.pair_losses import PairLossSettings
from cocondenser_jax.retriever.train.pairs import (
    Adam,
    Network,
    PairSettings,
    Probe,
    collate,
    pair_trainer,
    rate_by_step,
    train_pairs,
)
from cocondenser_jax.retriever.train.trainer import TrainerSettings
from tests.other_families import write_model
from tests.world import make_texts, read_metrics, write_records

FAMILIES = ("distilbert", "deberta-v2", "qwen3", "gemma3_text", "t5")
MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
N_STEPS = 3
SPEC = BatchSpec(seed=3, batch_size=4, length=80, example="crops", masked=False, held_out=4)
PROMPTS = {"query": "Instruct: find the text\nQuery:", "document": "text: "}


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """Gives a function from a family to a model's folder and a store of its tokens."""
    made = {}
    texts = make_texts(40, n_sentences=3)

    def make(family):
        if family not in made:
            folder = tmp_path_factory.mktemp(family)
            # The prompts' own words make the tokenizer know them.
            known = [*texts, *PROMPTS.values()]
            model = write_model(family, known, folder, prompts=PROMPTS)
            write_records(folder / "texts.jsonl", ({"text": text} for text in texts))
            build_store(str(folder / "texts.jsonl"), str(model), folder / "store", max_tokens=40)
            made[family] = model, open_store(folder / "store")
        return made[family]

    return make


def network_of(folder, **changes):
    own = read_representation(folder)._replace(**changes)
    return Network(folder, own, hidden_dropout=0.0, attention_dropout=0.0, lora_rank=0)


def settings_of(model, workdir, **changes):
    trainer = TrainerSettings(
        workdir=workdir,
        seed=0,
        log_every=1,
        tracker="none",
        batch_size=SPEC.batch_size,
        loader_workers=0,
        epochs=1,
        max_steps=N_STEPS,
        precision="float32",
        learning_rate=1e-3,
        warmup_ratio=0.1,
        weight_decay=0.01,
        checkpoint_every=1,
        record={},
    )
    own = PairSettings(
        network=network_of(model),
        batches=SPEC,
        loss=PairLossSettings("contrastive", 3),
        adam=Adam(0.9, 0.999, 1e-8, 1.0),
        trainer=trainer,
        probe=Probe(2, lambda vectors: {"rows": float(len(vectors))}),
        keep=2,
    )
    return own._replace(**changes)


def decoded(model, batch):
    """The texts of a batch without prompts, of which none was cut."""
    rows = zip(batch.input_ids_SxL, batch.attention_mask_SxL, strict=True)
    assert batch.attention_mask_SxL.sum(axis=1).max() <= 40
    decode = model.tokenizer.decode
    return [decode(ids[mask], skip_special_tokens=True).strip() for ids, mask in rows]


@pytest.mark.parametrize(
    ("family", "pooling"),
    [
        *((family, {}) for family in FAMILIES),
        *(("distilbert", {"pooling_mode": mode}) for mode in MODES),
        *(("distilbert", {"pooling_mode": mode, "include_prompt": False}) for mode in MODES),
        ("gemma3_text", {"include_prompt": False}),
        ("t5", {"include_prompt": False}),
    ],
    ids=str,
)
def test_the_first_loss_is_that_of_the_librarys_vectors(worlds, family, pooling, tmp_path):
    folder, store = worlds(family)
    folder = shutil.copytree(folder, tmp_path / "start")
    of_pooling = folder / "1_Pooling" / "config.json"
    of_pooling.write_text(json.dumps(json.loads(of_pooling.read_text()) | pooling))
    spec = SPEC._replace(query_prompt=PROMPTS["query"], passage_prompt=PROMPTS["document"])
    result = train_pairs(settings_of(folder, tmp_path / "run", batches=spec), store)
    losses = [line["loss"] for line in read_metrics(tmp_path / "run") if "loss" in line]
    assert len(losses) == N_STEPS
    assert result == tmp_path / "run" / "model"

    model = SentenceTransformer(str(folder))
    texts = decoded(model, make_batch(store, SPEC, 0))
    queries, passages = model.encode_query(texts[::2]), model.encode_document(texts[1::2])
    vectors = np.stack([queries, passages], axis=1).reshape(len(texts), -1)
    scores = 20 * vectors @ vectors.T
    total = 0.0
    for i, row in enumerate(scores):
        others = [x for j, x in enumerate(row) if j != i]
        total += math.log(np.exp(others).sum()) - row[i ^ 1]
    assert losses[0] == pytest.approx(total / len(scores), rel=1e-4)


def test_the_rate_rises_from_the_first_step_and_falls_to_the_last():
    rates = [rate_by_step(step, 4, 10) for step in range(11)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    np.testing.assert_allclose(rates[4:], [1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0])
    assert [rate_by_step(step, 0, 2) for step in range(2)] == [1.0, 0.5]


def test_inputs_are_sorted_by_length_and_know_their_places():
    lengths = np.array([3, 7, 2, 5])
    mask = np.arange(9) < lengths[:, None]
    ids = np.where(mask, np.arange(4)[:, None] + 10, 0).astype(np.int32)
    origins = np.array([[0, 1], [0, 2], [1, 3], [1, 4]], np.int32)
    batch = Batch.of_texts(ids, mask)._replace(origins_Sx2=origins)
    inputs = collate(batch)
    assert inputs["text_input_ids"].shape == (4, 7)
    assert inputs["text_attention_mask"].sum(1).tolist() == [2, 3, 5, 7]
    assert inputs["text_input_ids"][:, 0].tolist() == [12, 10, 13, 11]
    places = inputs["label"][:, 2]
    assert inputs["text_input_ids"][places, 0].tolist() == [10, 11, 12, 13]
    assert inputs["label"][:, :2].tolist() == origins.tolist()


def test_the_rates_of_dropout_are_those_that_are_given(worlds, tmp_path):
    folder, store = worlds("deberta-v2")
    network = network_of(folder)._replace(hidden_dropout=0.3, attention_dropout=0.2)
    trainer = pair_trainer(settings_of(folder, tmp_path, network=network), store)
    config = trainer.model[0].model.config
    rates = (config.hidden_dropout_prob, config.attention_probs_dropout_prob)
    assert rates == (0.3, 0.2)


def test_another_model_does_not_resume(worlds, tmp_path, monkeypatch):
    folder, store = worlds("distilbert")
    monkeypatch.setattr(pairs, "pair_trainer", lambda *_: None)
    monkeypatch.setattr(pairs.trainer, "run", lambda *_: None)
    train_pairs(settings_of(folder, tmp_path / "run"), store)
    train_pairs(settings_of(folder, tmp_path / "run"), store)
    other = shutil.copytree(folder, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    write_json(other / "config.json", config | {"dropout": 0.3})
    with pytest.raises(UserError, match=r"sha256\.model"):
        train_pairs(settings_of(other, tmp_path / "run"), store)


def test_the_settings_of_the_optimizer_are_those_that_are_given(worlds, tmp_path):
    folder, store = worlds("distilbert")
    adam = Adam(b1=0.8, b2=0.9, eps=1e-4, clip_norm=0.3)
    made = pair_trainer(settings_of(folder, tmp_path, adam=adam, keep=5), store)
    assert (made.args.max_grad_norm, made.args.save_total_limit) == (0.3, 5)
    made.create_optimizer_and_scheduler(N_STEPS)
    decays = {group["weight_decay"] for group in made.optimizer.param_groups}
    assert decays == {0.0, 0.01}
    for group in made.optimizer.param_groups:
        assert (group["betas"], group["eps"]) == ((0.8, 0.9), 1e-4)
        names = {id(p): name for name, p in made.model.named_parameters()}
        for parameter in group["params"]:
            is_plain = parameter.dim() > 1
            assert (group["weight_decay"] > 0) == is_plain, names.get(id(parameter))


def test_the_probe_sees_the_held_out_texts_in_their_order_and_without_dropout(worlds, tmp_path):
    folder, store = worlds("distilbert")
    seen = []

    def measure(vectors):
        seen.append(vectors)
        return {"rows": len(vectors)}

    network = network_of(folder)._replace(hidden_dropout=0.5)
    changes = {"network": network, "probe": Probe(2, measure)}
    result = train_pairs(settings_of(folder, tmp_path / "run", **changes), store)
    assert [x["step"] for x in read_metrics(tmp_path / "run") if "probe/rows" in x] == [2, N_STEPS]
    model = SentenceTransformer(str(result))
    texts = decoded(model, held_out_batch(store, SPEC))
    assert len(texts) == 8
    assert len(seen) == 2
    np.testing.assert_allclose(seen[-1], model.encode(texts, prompt=""), atol=1e-5)


def test_a_gradient_that_is_not_finite_ends_the_run(worlds, tmp_path):
    folder, store = worlds("distilbert")
    network = network_of(folder, scale=1e38)
    with pytest.raises(UserError, match=r"step 1 is not finite \(documents "):
        train_pairs(settings_of(folder, tmp_path / "run", network=network), store)
    assert not (tmp_path / "run" / "model").exists()


def test_a_run_that_ended_is_not_made_again_and_other_data_is_refused(worlds, tmp_path):
    folder, store = worlds("distilbert")
    settings = settings_of(folder, tmp_path / "run")
    result = train_pairs(settings, store)
    before = (result / "model.safetensors").stat().st_mtime_ns
    assert train_pairs(settings, store) == result
    assert (result / "model.safetensors").stat().st_mtime_ns == before
    result.rename(tmp_path / "taken")
    with pytest.raises(UserError, match="was started with"):
        train_pairs(settings, SimpleNamespace(sha256="another"))
