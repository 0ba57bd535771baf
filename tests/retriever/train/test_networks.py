"""Dropout of any family, and adapters, against transformers and plain algebra."""

import numpy as np
import pytest
import torch
from peft.tuners.lora import LoraLayer
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense

from cocondenser_jax.retriever.search.models import blend, load_retriever
from cocondenser_jax.retriever.train.networks import add_adapters, merge_adapters, set_dropout
from tests.other_families import write_model
from tests.world import make_texts

FAMILIES = ("distilbert", "deberta-v2", "qwen3", "gemma3_text", "t5")
TEXTS = ["red stone", "a blue river and a tree"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    texts = make_texts(20)
    return {name: write_model(name, texts, tmp_path_factory.mktemp(name)) for name in FAMILIES}


@pytest.mark.parametrize("family", FAMILIES)
def test_dropout_acts_in_training_alone(folders, family):
    model = load_retriever(folders[family])
    before = model.encode(TEXTS)
    set_dropout(model, 0.3, 0.2)
    np.testing.assert_allclose(model.encode(TEXTS), before, atol=1e-6)
    config = model[0].model.config
    names = {
        "distilbert": {"dropout": 0.3, "attention_dropout": 0.2},
        "deberta-v2": {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.2},
        "qwen3": {"attention_dropout": 0.2},
        "gemma3_text": {"attention_dropout": 0.2},
        "t5": {"dropout_rate": 0.3},
    }
    for name, rate in names[family].items():
        assert getattr(config, name) == rate
    features = model.preprocess(TEXTS)
    model.train()
    with torch.no_grad():
        one, other = (model(dict(features))["sentence_embedding"] for _ in range(2))
    assert not torch.allclose(one, other)
    set_dropout(model, 0.0, 0.0)
    model.train()
    with torch.no_grad():
        found = model(dict(features))["sentence_embedding"]
    np.testing.assert_allclose(found, before, atol=1e-6)


def trained_adapters(model):
    """Adds adapters, and gives them numbers as if they were trained."""
    adapted = add_adapters(model, rank=4, seed=0)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.normal_(0, 0.1, generator=generator)
    return adapted


@pytest.mark.parametrize("family", FAMILIES)
def test_merged_adapters_are_the_model_that_was_trained(folders, family, tmp_path):
    model = load_retriever(folders[family])
    before = model.encode(TEXTS)
    n_before = len([*model.parameters()])
    adapted = trained_adapters(model)
    trained = model.encode(TEXTS)
    assert np.abs(trained - before).max() > 0.01
    merge_adapters(adapted)
    assert len([*model.parameters()]) == n_before
    model.save_pretrained(str(tmp_path / "merged"), create_model_card=False)
    found = SentenceTransformer(str(tmp_path / "merged")).encode(TEXTS)
    np.testing.assert_allclose(found, trained, atol=1e-6)


def test_adapters_are_all_that_is_trained_and_start_at_the_model(folders):
    model = load_retriever(folders["qwen3"])
    before = model.encode(TEXTS)
    add_adapters(model, rank=4, seed=0)
    np.testing.assert_array_equal(model.encode(TEXTS), before)
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    assert trained == {name for name, _ in model.named_parameters() if "lora_" in name}
    assert len(trained) == 2 * 7 * 2  # two matrices for each of seven maps in two layers
    states = []
    for seed in (0, 0, 1):
        other = load_retriever(folders["qwen3"])
        add_adapters(other, rank=4, seed=seed)
        states.append(torch.cat([p.flatten() for p in other.parameters() if p.requires_grad]))
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


@pytest.mark.parametrize("rank", [1, 4])
def test_adapters_are_added_twice_whatever_their_rank(folders, rank):
    model = load_retriever(folders["qwen3"])
    add_adapters(model, rank, seed=0)
    layer = next(layer for layer in model.modules() if isinstance(layer, LoraLayer))
    down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    up.data.normal_()
    x = torch.randn(3, layer.in_features)
    torch.testing.assert_close(layer(x), layer.base_layer(x) + 2 * x @ down.T @ up.T)


def test_a_dense_layer_is_not_trained_beside_adapters(folders):
    model = load_retriever(folders["t5"])
    model.append(Dense(32, 16))
    add_adapters(model, rank=4, seed=0)
    assert {name.split(".")[0] for name, p in model.named_parameters() if p.requires_grad} == {"0"}


def test_a_blend_keeps_a_part_of_the_adapters(folders, tmp_path):
    original, model = (load_retriever(folders["qwen3"]) for _ in range(2))
    adapted = trained_adapters(model)
    for layer in model.modules():
        if isinstance(layer, LoraLayer):
            layer.scaling["default"] *= 0.25
    expected = model.encode(TEXTS)
    for layer in model.modules():
        if isinstance(layer, LoraLayer):
            layer.scaling["default"] *= 4
    merge_adapters(adapted)
    model.save_pretrained(str(tmp_path / "merged"), create_model_card=False)
    mixed = blend(original, load_retriever(tmp_path / "merged"), 0.25)
    np.testing.assert_allclose(mixed.encode(TEXTS), expected, atol=1e-6)
    assert np.abs(expected - original.encode(TEXTS)).max() > 0.001
