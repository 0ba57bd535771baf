"""Attention's kernels, interpreted, beside the function that XLA compiles."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cocondenser_jax.model import kernels
from cocondenser_jax.model.attention import attend, head_seeds
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model.dropout import fold_in
from cocondenser_jax.model.kernels import attend_jointly
from cocondenser_jax.model.layout import why_no_kernel
from tests.world import relative_error

N_HEADS = 4


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    call = functools.partial(kernels.pl.pallas_call, interpret=True)
    monkeypatch.setattr(kernels.pl, "pallas_call", call)


def by_xla(product_BxLx3D, bias_3D, mask_BxL, seeds_B, rate):
    """What the layer computes with three linear maps."""
    n_spans, length, size_3 = product_BxLx3D.shape
    size = size_3 // 3 // N_HEADS
    joined_BxLx3D = product_BxLx3D + bias_3D.astype(product_BxLx3D.dtype)[None, None]
    query, key, value = (
        part.reshape(n_spans, length, N_HEADS, size).transpose(0, 2, 3, 1)
        for part in jnp.split(joined_BxLx3D, 3, axis=-1)
    )
    rows_Bx1xL = jnp.broadcast_to(jnp.arange(length), (n_spans, length))[:, None]
    context = attend(
        query / jnp.sqrt(size).astype(query.dtype),
        key,
        value,
        mask_BxL[:, None, None],
        None,
        fold_in(head_seeds(seeds_B, N_HEADS), rows_Bx1xL),
        rate,
    )
    return context.transpose(0, 3, 1, 2).reshape(n_spans, length, N_HEADS * size)


@functools.partial(jax.jit, static_argnums=(0, 1))
def with_gradients(function, rate, product, bias, mask, seeds, cotangent):
    def attended(product, bias):
        return function(product, bias, mask, seeds, rate)

    context, pull_back = jax.vjp(attended, product, bias)
    return context, pull_back(cotangent)


# Of a GPU: whole blocks and cut ones. On a TPU a program has two heads of 64.
@pytest.mark.parametrize(
    ("platform", "length", "size", "dtype", "rate"),
    [
        ("gpu", 16, 16, "float32", 0.1),
        ("gpu", 28, 16, "float32", 0.0),
        ("gpu", 28, 32, "bfloat16", 0.1),
        ("tpu", 24, 64, "float32", 0.1),
        ("tpu", 24, 64, "bfloat16", 0.0),
    ],
)
def test_a_kernel_is_the_attention_of_xla(platform, length, size, dtype, rate):
    rng = np.random.default_rng(0)
    shape = (3, length, N_HEADS * size)
    product = jnp.asarray(rng.normal(size=(*shape[:2], 3 * shape[2])), dtype)
    bias = jnp.asarray(rng.normal(size=3 * shape[2]), jnp.float32)
    cotangent = jnp.asarray(rng.normal(size=shape), dtype)
    mask = jnp.arange(length)[None] < jnp.array([length, length // 2, 3])[:, None]
    seeds = jnp.array([1, 2, 3], jnp.uint32)

    def by_kernel(product, bias, mask, seeds, rate):
        seeds_BxN = head_seeds(seeds, N_HEADS) if rate else None
        return attend_jointly(product, bias, mask, seeds_BxN, (N_HEADS, rate), platform)

    arrays = product, bias, mask, seeds, cotangent
    context, gradients = with_gradients(by_kernel, rate, *arrays)
    expected, expected_gradients = with_gradients(by_xla, rate, *arrays)
    tolerance = 1e-6 if dtype == "float32" else 5e-3
    assert relative_error(np.float32(context), np.float32(expected)) <= tolerance
    assert context.dtype == product.dtype
    for ours, theirs in zip(gradients, expected_gradients, strict=True):
        assert ours.dtype == theirs.dtype
        if theirs.ndim == 1:  # XLA adds up a bias's gradient in bfloat16, the kernel in float32
            tolerance *= 2
        assert relative_error(np.float32(ours), np.float32(theirs)) <= tolerance


@pytest.mark.parametrize(
    ("changes", "platform", "length", "reason"),
    [
        ({}, "gpu", 128, ""),
        ({}, "tpu", 512, ""),
        ({}, "cpu", 128, "there is none for this device"),
        ({}, "gpu", 129, "on a GPU it takes up to 128 tokens, not 129"),
        ({}, "tpu", 513, "on a TPU it takes up to 512 tokens, not 513"),
        ({"model_type": "modernbert"}, "gpu", 128, "none for the positions of modernbert"),
        ({"model_type": "mpnet", "pad_token_id": 1}, "tpu", 128, "the positions of mpnet"),
        ({"num_attention_heads": 16}, "gpu", 128, "heads of 16, 32, 64 numbers, not 48"),
        ({"num_attention_heads": 16}, "tpu", 128, "16 heads of 48 do not fill its lanes"),
    ],
)
def test_it_is_said_why_there_is_no_kernel(changes, platform, length, reason):
    found = why_no_kernel(ModelConfig(**changes), platform, length)
    assert (reason in found) if reason else not found
