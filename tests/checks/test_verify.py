"""Verifying a checkpoint: agreement is seen, and so is the smallest difference."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM

from checks import verify
from checks.reference import full_labels
from checks.verify import main, verify_checkpoint
from cocondenser_jax import cli
from cocondenser_jax.configs import default
from cocondenser_jax.convert.to_torch import export_folder
from cocondenser_jax.corpus.batches import BatchSpec, make_batch
from cocondenser_jax.corpus.build import build_store
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.files.whole import write_json
from cocondenser_jax.model.condenser import init_params
from cocondenser_jax.pretrain import step as step_module
from cocondenser_jax.pretrain.checkpoint import load_run
from cocondenser_jax.pretrain.devices import batch_gradient
from cocondenser_jax.pretrain.loop import train
from cocondenser_jax.pretrain.step import LossSettings
from cocondenser_jax.representation import Dense, Representation
from tests.world import read_records, write_records, write_run, write_store

pytestmark = pytest.mark.usefixtures("one_length")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two steps, with a head of two layers and the late MLM."""
    folder = tmp_path_factory.mktemp("verify")
    rng = np.random.default_rng(0)
    words = [f"{a}{b}" for a in ("ka", "lo", "mi", "ru") for b in ("ten", "vas", "dor", "pel")]
    texts = [
        ". ".join(" ".join(rng.choice(words, rng.integers(3, 12))) for _ in range(5)) + "."
        for _ in range(12)
    ]
    store = write_store(folder, texts, max_length=24, vocab_size=90)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_module, "LENGTH_FRACTIONS", (1,))
        train(experiment(store), folder / "run")
    return folder / "run"


def experiment(store):
    config = default.get_config().unlock()
    config.data.update({"store": str(store), "batch_size": 8, "length": 24})
    config.model.update({"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2})
    config.model.update({"intermediate_size": 32, "max_position_embeddings": 24, "skip_from": 1})
    config.train.update({"steps": 2, "chunk_size": 0, "mlm_weight": 0.5})
    config.checkpoint.every = 1
    return config.lock()


@pytest.fixture
def folder(run, tmp_path):
    """The run, exported."""
    config, params, _ = load_run(run)
    export_folder(params, config, run / "tokenizer", tmp_path / "model", {})
    return tmp_path / "model"


def test_all_implementations_agree_on_a_real_batch(run, folder):
    rows = {row.name: row for row in verify_checkpoint(run)}
    assert all(row.passes for row in rows.values())
    assert rows["loss"].direct == pytest.approx(
        0.5 * (rows["head mlm loss"].direct + rows["late mlm loss"].direct)
        + rows["contrastive loss"].direct,
        rel=1e-5,
    )
    assert rows["gradient"].direct > 0
    *_, worst = rows
    assert worst.startswith("gradient, worst: ")

    # Transformers alone has the same loss and the same vectors.
    config = experiment(run.parent / "store")
    spec = BatchSpec(seed=0, batch_size=8, length=24)
    batch = make_batch(open_store(run.parent / "store"), spec, 0)
    lm = AutoModelForMaskedLM.from_pretrained(folder).eval()
    with torch.no_grad():
        out = lm(
            input_ids=torch.tensor(batch.input_ids_SxL),
            attention_mask=torch.tensor(batch.attention_mask_SxL).long(),
            labels=full_labels(batch),
            output_hidden_states=True,
        )
    assert config.seed == 0
    assert out.loss.item() == pytest.approx(rows["late mlm loss"].direct, rel=1e-5)
    norm = float(out.hidden_states[-1][:, 0].norm())
    assert norm == pytest.approx(rows["vectors"].direct, rel=1e-5)


def test_two_passes_are_compared_with_one(run, monkeypatch):
    """Not a program with itself: one side is in two chunks, the other whole."""
    chunk_sizes = []

    def spy(model_config, settings, *rest):
        chunk_sizes.append(settings.chunk_size)
        return batch_gradient(model_config, settings, *rest)

    monkeypatch.setattr(verify, "batch_gradient", spy)
    verify_checkpoint(run, n_documents=6)
    assert chunk_sizes == [6, 0]


def test_a_model_without_a_head_is_compared_too(run, tmp_path):
    config = experiment(run.parent / "store").unlock()
    config.train.update({"objective": "mlm", "steps": 1})
    train(config.lock(), tmp_path / "run")
    rows = {row.name: row for row in verify_checkpoint(tmp_path / "run")}
    assert all(row.passes for row in rows.values())
    assert rows["late mlm loss"].pytorch > 0
    assert "head mlm loss" not in rows


def test_dense_layers_and_sizes_are_compared_too(run, tmp_path):
    config, params, record = load_run(run)
    dense = (
        Dense(16, 20),
        Dense(20, 12, bias=False, activation="torch.nn.modules.linear.Identity"),
    )
    vectors = Representation("mean", dense, similarity="cosine", scale=5.0, sizes=(10, 4))
    config = dataclasses.replace(config, representation=vectors)
    params = {**init_params(config, 0), **params}
    other = tmp_path / "other"
    write_run(other, config, params, run / "tokenizer")
    write_json(other / "run.json", record | {"model": config.to_dict()})
    export_folder(params, config, run / "tokenizer", tmp_path / "model", {})
    given = {"pytorch_folder": tmp_path / "model"}
    rows = {row.name: row for row in verify_checkpoint(other, **given)}
    assert all(row.passes for row in rows.values())
    plain = {row.name: row for row in verify_checkpoint(run)}
    assert rows["contrastive loss"].direct != pytest.approx(plain["contrastive loss"].direct)
    weights = tmp_path / "model" / "3_Dense" / "model.safetensors"
    save_file({"linear.weight": load_file(weights)["linear.weight"] * 1.01 + 0.01}, weights)
    assert not all(row.passes for row in verify_checkpoint(other, **given))


def test_an_older_checkpoint_on_other_documents(run, tmp_path):
    texts = read_records(run.parent / "text.jsonl")
    write_records(tmp_path / "text.jsonl", reversed(texts))
    store = tmp_path / "store"
    build_store(str(tmp_path / "text.jsonl"), str(run / "tokenizer"), store, max_length=24)
    command = [f"--run_dir={run}", "--step=1", f"--store={store}"]
    command += ["--documents=3", f"--json_out={tmp_path}/rows.json"]
    assert main(command) == 0
    rows = {row["name"]: row for row in json.loads((tmp_path / "rows.json").read_text())}

    def loss(step, store):
        config, params, _ = load_run(run, step)
        still = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
        batch = make_batch(open_store(store), BatchSpec(seed=0, batch_size=3, length=24), 0)
        settings = LossSettings(mlm_weight=0.5)
        losses, _ = batch_gradient(dataclasses.replace(config, **still), settings, params, batch)
        return float(losses["loss"])

    found = rows["loss"]["direct"]
    assert found == pytest.approx(loss(1, store), rel=1e-6)
    for other in (loss(2, store), loss(1, run.parent / "store")):
        assert abs(found - other) > 1e-5 * found


def test_a_changed_weight_is_noticed(run, folder, capsys):
    command = [f"--run_dir={run}", f"--pytorch_folder={folder}"]
    assert main(command) == 0
    assert "TOO LARGE" not in capsys.readouterr().out

    tensors = load_file(folder / "model.safetensors")
    tensors["bert.encoder.layer.1.output.dense.weight"][0, 0] += 0.05
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert main(command) == 1
    printed = capsys.readouterr().out
    assert "TOO LARGE" in printed
    # The gradient of what the changed weight multiplies.
    assert "gradient, worst: bert.encoder.layer.1.intermediate.dense.weight" in printed

    (folder / "model.safetensors").write_bytes(b"no weights")
    assert main(command) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_another_model_is_refused(run, folder, capsys):
    (folder / "condenser.json").write_text('{"n_head_layers": 2, "skip_from": 2, "late_mlm": true}')
    assert main([f"--run_dir={run}", f"--pytorch_folder={folder}"]) == 2
    assert "skip_from is 2, but 1 in " in capsys.readouterr().err


def test_mistakes_are_one_line(run, tmp_path, capsys):
    assert main([f"--run_dir={tmp_path}"]) == 2
    assert "is not a run folder" in capsys.readouterr().err
    verify_run = [f"--run_dir={run}"]
    assert main([*verify_run, f"--store={tmp_path}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main([*verify_run, f"--pytorch_folder={tmp_path}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main([*verify_run, "--documents=13"]) == 2
    assert "13 documents: expected 2 to 12" in capsys.readouterr().err


@pytest.mark.effect("verify --store")
def test_a_store_alone_is_compared_with_its_checksums(run, tmp_path, capsys):
    store = shutil.copytree(run.parent / "store", tmp_path / "store")
    assert cli.main(["verify", f"--store={store}"]) == 0
    tokens = store / "tokens.bin"
    content = bytearray(tokens.read_bytes())
    content[-1] ^= 1
    tokens.write_bytes(content)
    assert cli.main(["verify", f"--store={store}"]) == 2
    assert f"{tokens} has changed" in capsys.readouterr().err
    assert cli.main(["verify"]) == 2
    assert "--store" in capsys.readouterr().err


@pytest.mark.parametrize("side", ["two_pass_error", "pytorch_error"])
def test_one_side_that_differs_is_enough(side):
    same = verify.Row("loss", 1.0, 1.0, 1.0, two_pass_error=0.0, pytorch_error=0.0)
    assert same.passes
    assert not same._replace(**{side: 0.01}).passes


def test_a_run_without_the_late_mlm_is_compared_too(run, tmp_path):
    config = experiment(run.parent / "store").unlock()
    config.model.late_mlm = False
    config.train.steps = 1
    train(config.lock(), tmp_path / "run")
    rows = {row.name: row for row in verify_checkpoint(tmp_path / "run")}
    assert all(row.passes for row in rows.values())
    assert "late mlm loss" not in rows
