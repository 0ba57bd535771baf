"""Entropies of attention: by hand, and against NumPy from the weights of small random models."""

import math

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from cocondenser_jax.errors import UserError
from papers.figures import attention
from papers.figures.attention import (
    cls_entropy,
    layer_entropies,
)

N_HEADS = 4
# What is computed again below has no rotary positions, and no layer that sees only what is near.
LIKE_BERT = pytest.mark.parametrize("model_type", ["bert", "roberta", "xlm-roberta"])
MAX_TOKENS = 24


@pytest.fixture
def model(research_folder, model_type):
    options = {} if model_type == "modernbert" else {"add_pooling_layer": False}
    return AutoModel.from_pretrained(research_folder, **options).eval()


@pytest.fixture
def tokenizer(research_folder):
    return AutoTokenizer.from_pretrained(research_folder)


def n_tokens(tokenizer, text, max_tokens):
    return min(len(tokenizer.tokenize(text)) + 2, max_tokens)


def entropies_by_numpy(model, tokenizer, text):
    """Entropies [layers, heads] of one text, from its hidden states and the projections."""
    state = {name: value.double().numpy() for name, value in model.state_dict().items()}
    inputs = tokenizer(text, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
    with torch.no_grad():
        states = model(**inputs, output_hidden_states=True).hidden_states
    entropies = []
    for layer, hidden in enumerate(states[:-1]):
        hidden_LxD = hidden[0].double().numpy()
        query, key = (
            (hidden_LxD @ state[f"{prefix}.weight"].T + state[f"{prefix}.bias"]).reshape(
                len(hidden_LxD), N_HEADS, -1
            )
            for prefix in (f"encoder.layer.{layer}.attention.self.{n}" for n in ("query", "key"))
        )
        for head in range(N_HEADS):
            scores_L = key[:, head] @ query[0, head] / math.sqrt(query.shape[-1])
            weights_L = np.exp(scores_L) / np.exp(scores_L).sum()
            entropies.append(-np.sum(weights_L * np.log(weights_L)))
    return np.reshape(entropies, (-1, N_HEADS))


def test_entropy_of_the_first_position_by_hand():
    weights_BxNxLxL = torch.full((1, 3, 4, 4), 0.25)  # the other positions must not matter
    weights_BxNxLxL[0, :, 0] = torch.tensor(
        [[0.5, 0.25, 0.25, 0.0], [0.25, 0.25, 0.25, 0.25], [0.0, 1.0, 0.0, 0.0]]
    )
    expected = [[1.5 * math.log(2), math.log(4), 0.0]]
    np.testing.assert_allclose(cls_entropy(weights_BxNxLxL), expected, rtol=1e-6)


@LIKE_BERT
def test_entropies_are_those_of_numpy(model, tokenizer, texts):
    lengths = {n_tokens(tokenizer, text, MAX_TOKENS) for text in texts}
    assert len(lengths) > 1  # so that some texts are padded
    expected = np.mean([entropies_by_numpy(model, tokenizer, text) for text in texts], axis=(0, 2))
    assert np.ptp(expected) > 1e-3
    found = layer_entropies(model, tokenizer, texts, MAX_TOKENS)
    np.testing.assert_allclose(found.entropy, expected, rtol=1e-5)


@LIKE_BERT
@pytest.mark.parametrize("max_tokens", [6, MAX_TOKENS])
def test_uniform_attention_has_the_entropy_log_length(model, tokenizer, texts, max_tokens):
    for name, parameter in model.named_parameters():
        if ".attention.self.query." in name:
            parameter.data.zero_()
    lengths = [n_tokens(tokenizer, text, max_tokens) for text in texts]
    found = layer_entropies(model, tokenizer, texts, max_tokens)
    assert found.uniform == pytest.approx(np.mean(np.log(lengths)))
    np.testing.assert_allclose(found.entropy, found.uniform, rtol=1e-6)


def test_neither_padding_nor_batches_nor_order_matter(
    model,
    tokenizer,
    texts,
    monkeypatch,
):
    together = layer_entropies(model, tokenizer, texts, MAX_TOKENS)
    alone = [layer_entropies(model, tokenizer, [text], MAX_TOKENS).entropy for text in texts]
    np.testing.assert_allclose(together.entropy, np.mean(alone, axis=0), rtol=1e-5)
    tokenizer.padding_side = "left"  # as some tokenizers are saved
    monkeypatch.setattr(attention, "_MAX_WEIGHTS", 2 * MAX_TOKENS**2)
    in_pairs = layer_entropies(model, tokenizer, texts[::-1], MAX_TOKENS)
    np.testing.assert_allclose(in_pairs.entropy, together.entropy, rtol=1e-5)


def test_batches_hold_every_row_and_bounded_attention(monkeypatch):
    rows = [[i] * length for i, length in enumerate((3, 40, 9, 10, 1, 5, 5))]
    monkeypatch.setattr(attention, "_MAX_WEIGHTS", 200)
    batches = list(attention._batches(rows))
    assert sorted(row for batch in batches for row in batch) == sorted(rows)
    # The longest row is beyond the bound, and therefore alone.
    assert [len(batch) for batch in batches] == [1, 2, 4]


def test_half_precision_weights_are_computed_with_in_single(model, tokenizer, texts):
    rounded = model.bfloat16().float()
    expected = layer_entropies(rounded, tokenizer, texts, MAX_TOKENS).entropy
    found = layer_entropies(model.bfloat16(), tokenizer, texts, MAX_TOKENS).entropy
    np.testing.assert_array_equal(found, expected)


def test_a_tokenizer_without_cls_is_refused(model, tokenizer):
    tokenizer.cls_token = tokenizer.mask_token
    with pytest.raises(UserError, match="puts no CLS token first"):
        layer_entropies(model, tokenizer, ["a text"], MAX_TOKENS)
