"""Windows of local attention, beside attention to all tokens with a mask."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cocondenser_jax.model import attention
from cocondenser_jax.model.attention import attend, attend_in_windows, head_seeds
from cocondenser_jax.model.condenser import Condenser, init_params
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model.dropout import fold_in
from tests.world import relative_error

WIDTH = 4


def inputs(length, rate, n_spans=2, n_heads=2, size=8):
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(n_spans, n_heads, size, length)) for _ in range(4)]
    mask = jnp.arange(length)[None] < jnp.array([length, length - 7])[:, None]
    seeds = None
    if rate:
        rows = jnp.broadcast_to(jnp.arange(length), (n_spans, length))[:, None]
        seeds = fold_in(head_seeds(jnp.array([3, 4], jnp.uint32), n_heads), rows)
    return [jnp.asarray(x, jnp.float32) for x in arrays], mask, seeds


def masked(query, key, value, mask, seeds, window):
    """What `attend_in_windows` computes, by a mask of all pairs of tokens."""
    width, rate = window
    rows = jnp.arange(query.shape[-1])
    near = jnp.abs(rows[:, None] - rows[None]) <= width
    visible = mask[:, None, None] & near[None, None]
    return attend(query, key, value, visible, None, seeds, rate)


# Whole blocks, and a cut one.
@pytest.mark.parametrize(("length", "rate"), [(20, 0.0), (22, 0.1)])
def test_windows_are_attention_with_a_mask_of_distances(length, rate):
    (query, key, value, cotangent), mask, seeds = inputs(length, rate)
    # What padding sees does not matter, and may be nothing within its window.
    cotangent = cotangent * mask[:, None, None]

    def with_gradients(function):
        def attended(*arrays):
            return function(*arrays, mask, seeds, (WIDTH, rate))

        def both(*arrays):
            context, pull_back = jax.vjp(attended, *arrays)
            return context * mask[:, None, None], *pull_back(cotangent)

        return jax.jit(both)(query, key, value)

    found, expected = with_gradients(attend_in_windows), with_gradients(masked)
    for ours, theirs in zip(found, expected, strict=True):
        assert relative_error(ours, theirs) <= 1e-6


def test_local_layers_that_compute_all_rows_use_windows(monkeypatch):
    """The last layer computes the rows of [CLS] and of the masked tokens, without windows."""
    config = ModelConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=4, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=32, n_head_layers=1, skip_from=2,
        model_type="modernbert", local_attention=2 * WIDTH, global_attn_every_n_layers=2,
    )  # fmt: skip
    rng = np.random.default_rng(1)
    ids = rng.integers(5, 20, size=(2, 22))
    mask = np.arange(22)[None] < np.array([22, 15])[:, None]
    positions, seeds = np.array([[1, 2], [3, 4]]), jnp.array([1, 2], jnp.uint32)
    params = init_params(config, 0)
    calls = []

    def gradient():
        def loss(params):
            out = Condenser(config).apply({"params": params}, ids, mask, positions, seeds)
            return jnp.sum(out.vectors_BxD**2) + jnp.sum(out.head_logits_BxMxV**2)

        return jax.jit(jax.grad(loss))(params)

    def spied(query, key, value, mask, seeds, window):
        calls.append(window)
        return masked(query, key, value, mask, seeds, window)

    ours = gradient()
    monkeypatch.setattr(attention, "attend_in_windows", spied)
    assert relative_error(ours, gradient()) <= 1e-5
    assert calls == [(WIDTH, config.attention_probs_dropout_prob)]  # of layers 1 and 3, that of 1


def test_no_array_has_a_number_for_each_pair_of_tokens():
    def needed(length):
        arrays, mask, _ = inputs(length, 0.0)

        def loss(query):
            context = attend_in_windows(query, *arrays[1:3], mask, None, (WIDTH, 0.0))
            return jnp.sum(context**2)

        gradient = jax.jit(jax.grad(loss))
        return gradient.lower(arrays[0]).compile().memory_analysis().temp_size_in_bytes

    assert needed(1024) < 1024 * 1024  # a byte for each pair of tokens


def test_a_window_of_no_neighbors_is_the_token_itself():
    """Half of a local attention of 1."""
    (query, key, value, _), mask, _ = inputs(22, 0.0)
    settings = attention.AttentionSettings(n_heads=2, width=0)
    found = attention.attend_rows((query, key, value), None, mask, None, settings)
    is_token = mask[:, None, None]
    np.testing.assert_allclose(found * is_token, value * is_token, rtol=1e-6)
