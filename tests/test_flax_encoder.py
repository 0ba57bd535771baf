"""Vectors that Flax computes beside those of PyTorch: every family, both poolings, two towers."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import torch

from cocondenser_jax import flax_encoder
from cocondenser_jax.cli import main
from cocondenser_jax.convert.from_torch import load_folder, load_vectors
from cocondenser_jax.convert.to_torch import export_folder
from cocondenser_jax.corpus.same_tokens import TEXTS
from cocondenser_jax.errors import UserError
from cocondenser_jax.flax_encoder import run_in_flax
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.representation import Given
from cocondenser_jax.retriever.search.models import load_retriever
from tests.lines import refusal, whole
from tests.retrieval_data import read_vectors
from tests.world import relative_error, write_records, write_retriever

WORDS = "the span of a document is close to another early layers know words search".split()
N_PASSAGES = 37


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Passages of 1 to 40 words: several lengths, some longer than a model takes."""
    rng = np.random.default_rng(0)
    file = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    texts = (" ".join(rng.choice(WORDS, rng.integers(1, 41))) for _ in range(N_PASSAGES))
    rows = ({"_id": str(i), "title": "", "text": text} for i, text in enumerate(texts))
    return write_records(file, rows)


def encoded(model, corpus, out, *flags):
    command = ["encode", f"--model={model}", f"--corpus={corpus}", f"--out={out}"]
    assert main([*command, "--batch_size=11", "--shard_size=20", *flags]) == 0
    return read_vectors(out)


@pytest.mark.effect("encode --backend")
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_flax_gives_the_vectors_of_pytorch(research_folder, corpus, tmp_path, pooling):
    flags = (f"--pooling={pooling}", "--similarity=dot")
    theirs = encoded(research_folder, corpus, tmp_path / "torch", *flags)
    ours = encoded(research_folder, corpus, tmp_path / "jax", *flags, "--backend=jax")
    assert ours.shape == theirs.shape == (N_PASSAGES, 32)
    assert np.abs(theirs).max() > 0.5
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)
    assert not np.array_equal(ours, theirs)  # another program computed them


@pytest.mark.parametrize(
    ("pooling", "layers"),
    [("cls", [{"out_features": 32}, True]), ("mean", [{"out_features": 48, "bias": False}])],
)
def test_dense_layers_follow(research_folders, corpus, tmp_path, pooling, layers):
    folder = write_retriever(research_folders["bert"], tmp_path / "model", pooling, layers)
    theirs = encoded(folder, corpus, tmp_path / "torch")
    ours = encoded(folder, corpus, tmp_path / "jax", "--backend=jax")
    assert theirs.shape == (N_PASSAGES, layers[0]["out_features"])
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    assert not np.array_equal(ours, theirs)


def test_both_towers_are_computed(research_folders, tmp_path):
    config, params = load_folder(str(research_folders["bert"]))
    export_folder(params, config, research_folders["bert"], tmp_path / "one", {})
    two = load_retriever(tmp_path / "one", two_towers=True)
    two.save_pretrained(str(tmp_path / "two"))
    expected = load_retriever(tmp_path / "two").encode_query(["early layers"])
    model = load_retriever(tmp_path / "two")
    run_in_flax(model, open_model(tmp_path / "two"), batch_size=3)
    np.testing.assert_allclose(model.encode_query(["early layers"]), expected, rtol=0, atol=1e-4)
    model = load_retriever(tmp_path / "two")
    run_in_flax(model, open_model(tmp_path / "two"), batch_size=3, precision="bfloat16")
    error = relative_error(model.encode_query(["early layers"]), expected)
    assert 1e-3 < error < 3e-2


@pytest.mark.parametrize(("devices", "expected"), [("cpu", "float32"), ("tpu", "bfloat16")])
def test_the_devices_of_jax_decide_what_auto_is(research_folders, monkeypatch, devices, expected):
    auto, chosen = (load_retriever(research_folders["bert"]) for _ in range(2))
    folder = open_model(research_folders["bert"])
    monkeypatch.setattr(jax, "default_backend", lambda: devices)
    assert run_in_flax(auto, folder, batch_size=3, precision="auto") == expected
    assert run_in_flax(chosen, folder, batch_size=3, precision=expected) == expected
    texts = ["early layers", "the span of a document"]
    np.testing.assert_array_equal(auto.encode(texts), chosen.encode(texts))


@pytest.mark.parametrize(
    "changed", [{"hidden_act": "gelu_new"}, {"layer_norm_eps": 1e-3}, {"hidden_act": "relu"}]
)
def test_a_network_that_pytorch_reads_otherwise_is_refused(research_folders, tmp_path, changed):
    """The library obeys what a second file says of the network; its published files do not."""
    folder = tmp_path / "model"
    load_retriever(research_folders["bert"], given=Given("mean", "cosine")).save_pretrained(
        str(folder), create_model_card=False
    )
    run_in_flax(load_retriever(folder), open_model(folder), batch_size=3)
    path = folder / "sentence_bert_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"config_args": changed}))
    said = r"makes other vectors in JAX \(expected --backend=torch\) than it is searched with"
    with pytest.raises(UserError, match=said):
        run_in_flax(load_retriever(folder), open_model(folder), batch_size=3)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_prompt_is_not_pooled_where_the_model_leaves_it_out(research_folders, pooling):
    expected, flax = (
        load_retriever(research_folders["bert"], given=Given(pooling, "dot")) for _ in range(2)
    )
    for model in (expected, flax):
        model.set_pooling_include_prompt(False)
    run_in_flax(flax, open_model(research_folders["bert"]), batch_size=3)
    texts = ["early layers", "the span of a document is close to another"]
    for prompt in ("words know ", ""):
        theirs, ours = (m.encode(texts, prompt=prompt) for m in (expected, flax))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)


def test_a_prompt_is_pooled(research_folders):
    expected, flax = (
        load_retriever(research_folders["bert"], given=Given("mean", "dot")) for _ in range(2)
    )
    run_in_flax(flax, open_model(research_folders["bert"]), batch_size=3)
    texts = ["early layers", "the span of a document is close to another"]
    theirs, ours = (m.encode(texts, prompt="words know ") for m in (expected, flax))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)
    assert not np.allclose(expected.encode(texts), theirs, atol=1e-2)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_padding_may_stand_before_a_text(research_folders, pooling):
    """RoBERTa's positions in PyTorch begin at the first token, wherever that is."""
    folder = research_folders["roberta"]
    expected, flax = (load_retriever(folder, given=Given(pooling, "dot")) for _ in range(2))
    for model in (expected, flax):
        model.tokenizer.padding_side = "left"
    run_in_flax(flax, open_model(folder), batch_size=3)
    texts = ["early layers", "the span of a document is close to another"]
    theirs, ours = (model.encode(texts) for model in (expected, flax))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)
    np.testing.assert_allclose(theirs[0], expected.encode(texts[0]), rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", ["roberta", "bert"])
def test_a_text_with_the_token_of_padding_is_computed_alike_or_refused(research_folders, family):
    """PyTorch's RoBERTa gives this token no position of its own, wherever it is."""
    folder = research_folders[family]
    expected, flax = (load_retriever(folder, given=Given("mean", "dot")) for _ in range(2))
    run_in_flax(flax, open_model(folder), batch_size=3)
    text = f"early {flax.tokenizer.pad_token} layers"
    if family == "bert":
        np.testing.assert_allclose(flax.encode(text), expected.encode(text), rtol=0, atol=1e-4)
        return
    with pytest.raises(UserError, match="a text holds the token of padding"):
        flax.encode(text)


def test_pytorch_leaves_its_gpu_to_jax(research_folders, monkeypatch):
    folder = research_folders["bert"]
    model = load_retriever(folder)
    moved = []
    monkeypatch.setattr(model, "to", moved.append)  # a model is on a GPU where there is one
    run_in_flax(model, open_model(folder), batch_size=2)
    assert moved == ["cpu"]


def test_another_pooling_is_refused(research_folders, corpus, tmp_path, capsys):
    config, params = load_folder(str(research_folders["bert"]))
    folder = tmp_path / "model"
    export_folder(params, config, research_folders["bert"], folder, {})
    pooling = folder / "1_Pooling" / "config.json"
    modes = json.loads(pooling.read_text())
    modes |= {"pooling_mode_cls_token": False, "pooling_mode_max_tokens": True}
    pooling.write_text(json.dumps(modes))
    command = ["encode", f"--model={folder}", f"--corpus={corpus}", f"--out={tmp_path}/out"]
    assert main([*command, "--backend=jax"]) == 2
    assert refusal(capsys) == f"{folder} pools by max: with jax, expected cls or mean"


def test_positions_that_follow_another_padding_are_refused(research_folders, tmp_path):
    """transformers would count from the config's, and count the tokenizer's, too."""
    folder = Path(shutil.copytree(research_folders["roberta"], tmp_path / "roberta"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"pad_token_id": 0}))
    with pytest.raises(
        UserError,
        match=whole(
            "the tokenizer of TMP/roberta pads with 1, but pad_token_id of the model "
            "is 0, from which roberta counts positions"
        ),
    ):
        run_in_flax(load_retriever(folder), open_model(folder), batch_size=3)


@pytest.mark.parametrize(
    ("row", "error", "is_refused"),
    [(0, 0.0, False), (1, 5e-5, False), (2, 2e-4, True), (5, -2e-4, True), (3, np.nan, True)],
)
def test_vectors_that_are_apart_by_more_than_rounding_are_refused(
    model_folder, row, error, is_refused, monkeypatch
):
    model = load_retriever(model_folder, given=Given("mean", "dot"))
    expected_BxD = model.encode([*TEXTS])

    def encode(config, params, ids_BxL, mask_BxL):
        assert mask_BxL.any(axis=1).all()
        assert ids_BxL.shape == (len(TEXTS), 64)  # the longest text is as long as the model reads
        assert (np.diff(mask_BxL.astype(int), axis=1) <= 0).all()  # padded at the end
        features = {"input_ids": torch.tensor(ids_BxL), "attention_mask": torch.tensor(mask_BxL)}
        with torch.inference_mode():
            found_BxD = model(features)["sentence_embedding"].numpy().copy()
        found_BxD[row] *= 1 + error
        return found_BxD

    np.testing.assert_array_less(0.1, np.linalg.norm(expected_BxD, axis=1))
    monkeypatch.setattr(flax_encoder, "_encode", encode)
    compared = model_folder, model, model.tokenizer, *load_vectors(open_model(model_folder))
    if not is_refused:
        flax_encoder.require_same_vectors(*compared, "elsewhere")
        return
    text = TEXTS[row][:40]
    with pytest.raises(UserError, match="makes other vectors elsewhere than it is searched") as e:
        flax_encoder.require_same_vectors(*compared, "elsewhere")
    assert repr(text) in str(e.value)


def test_devices_that_are_not_there_are_one_line(research_folders, monkeypatch):
    folder = research_folders["bert"]
    model = load_retriever(folder)

    def fail(*_):
        raise RuntimeError("no such platform")

    monkeypatch.setattr(jax, "devices", fail)
    monkeypatch.setattr(jax, "default_backend", fail)
    with pytest.raises(UserError, match=": no such platform; expected a platform of this machine"):
        run_in_flax(model, open_model(folder), batch_size=2, precision="auto")


def test_vectors_are_compared_in_full_float32(model_folder, monkeypatch):
    """Else an accelerator rounds products to 16 bits, and every model would be refused."""
    model = load_retriever(model_folder, given=Given("mean", "dot"))
    precisions = []

    def encode(config, params, ids_BxL, mask_BxL):
        precisions.append(jax.config.jax_default_matmul_precision)
        features = {"input_ids": torch.tensor(ids_BxL), "attention_mask": torch.tensor(mask_BxL)}
        with torch.inference_mode():
            return model(features)["sentence_embedding"].numpy()

    monkeypatch.setattr(flax_encoder, "_encode", encode)
    compared = model_folder, model, model.tokenizer, *load_vectors(open_model(model_folder))
    flax_encoder.require_same_vectors(*compared, "elsewhere")
    assert precisions == ["highest"]
