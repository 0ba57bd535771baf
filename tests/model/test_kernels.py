"""Attention's kernels, interpreted, beside the function that XLA compiles."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cocondenser_jax.model import blocks, joint, kernels
from cocondenser_jax.model.attention import AttentionSettings, head_seeds
from cocondenser_jax.model.condenser import Condenser, init_params
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model.joint import attend_jointly, attend_jointly_by_xla
from cocondenser_jax.model.layout import Layout, lay_out, why_no_kernel
from cocondenser_jax.pretrain.kernel_check import attention_check, norm_check, with_gradient
from tests.world import relative_error

N_HEADS = 4


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    call = functools.partial(kernels.pl.pallas_call, interpret=True)
    monkeypatch.setattr(kernels.pl, "pallas_call", call)


@functools.partial(jax.jit, static_argnums=(0, 1))
def with_gradients(function, settings, product, bias, mask, seeds, cotangent):
    def attended(product, bias):
        return function(product, bias, mask, seeds, settings)

    context, pull_back = jax.vjp(attended, product, bias)
    return context, pull_back(cotangent)


# Of a GPU: whole blocks and cut ones. On a TPU a program has two heads of 64. Without seeds
# nothing is dropped, whatever the rate.
@pytest.mark.parametrize(
    ("platform", "length", "size", "dtype", "drops"),
    [
        ("gpu", 16, 16, "float32", True),
        ("gpu", 28, 16, "float32", False),
        ("gpu", 28, 32, "bfloat16", True),
        ("tpu", 24, 64, "float32", True),
        ("tpu", 24, 64, "bfloat16", False),
        ("tpu", 8, 256, "float32", False),
    ],
)
def test_a_kernel_is_the_attention_of_xla(platform, length, size, dtype, drops):
    rng = np.random.default_rng(0)
    shape = (3, length, N_HEADS * size)
    product = jnp.asarray(rng.normal(size=(*shape[:2], 3 * shape[2])), dtype)
    bias = jnp.asarray(rng.normal(size=3 * shape[2]), jnp.float32)
    cotangent = jnp.asarray(rng.normal(size=shape), dtype)
    mask = jnp.arange(length)[None] < jnp.array([length, length // 2, 3])[:, None]
    seeds = jnp.array([1, 2, 3], jnp.uint32)

    arrays = product, bias, mask, head_seeds(seeds, N_HEADS) if drops else None, cotangent
    by_kernel = functools.partial(attend_jointly, platform=platform)
    settings = AttentionSettings(N_HEADS, 0.1)
    context, gradients = with_gradients(by_kernel, settings, *arrays)
    expected, expected_gradients = with_gradients(attend_jointly_by_xla, settings, *arrays)
    tolerance = 1e-6 if dtype == "float32" else 5e-3
    assert relative_error(np.float32(context), np.float32(expected)) <= tolerance
    assert context.dtype == product.dtype
    for ours, theirs in zip(gradients, expected_gradients, strict=True):
        assert ours.dtype == theirs.dtype
        if theirs.ndim == 1:  # XLA adds up a bias's gradient in bfloat16, the kernel in float32
            tolerance *= 2
        assert relative_error(np.float32(ours), np.float32(theirs)) <= tolerance
    # Rounding moves single numbers by more than a divisor that is not rounded moves all of them.
    context, expected = (np.float64(x).ravel() for x in (context, expected))
    assert context @ expected / (expected @ expected) == pytest.approx(1, abs=3e-4)


@pytest.mark.parametrize("has_biases", [True, False])  # without them, in blocks
@pytest.mark.parametrize(("platform", "size"), [("gpu", 16), ("tpu", 64)])
def test_large_scores_do_not_overflow(platform, size, has_biases):
    rng = np.random.default_rng(0)
    product = jnp.asarray(rng.normal(size=(1, 16, 3 * N_HEADS * size), scale=30), jnp.float32)
    bias = jnp.zeros(product.shape[2]) if has_biases else None
    arrays = product, bias, jnp.ones((1, 16), bool), None, AttentionSettings(N_HEADS, 0.0)
    context = attend_jointly(*arrays, platform=platform)
    assert relative_error(context, attend_jointly_by_xla(*arrays)) <= 1e-5


# Four blocks of 16, the last one cut; a window that ends within a block, and one that is narrow.
@pytest.mark.parametrize(
    ("length", "size", "dtype", "drops", "width", "base", "biases"),
    [
        (57, 32, "float32", True, None, 0.0, True),
        (64, 16, "float32", False, None, 1e4, False),
        (57, 16, "float32", True, 11, 1e4, False),
        (50, 16, "float32", True, 20, 0.0, True),
        (57, 32, "bfloat16", True, None, 1e4, True),
        (57, 32, "bfloat16", False, 18, 1e4, False),
    ],
)
def test_blocks_are_the_attention_of_xla(
    length, size, dtype, drops, width, base, biases, monkeypatch
):
    monkeypatch.setattr(blocks, "BLOCK", 16)
    monkeypatch.setattr(joint, "GPU_LENGTH", 16)
    settings = AttentionSettings(N_HEADS, 0.1, width, base)
    by_gpu = functools.partial(attend_jointly, platform="gpu")
    check = attention_check(by_gpu, settings, (length, size), dtype, biases)
    if not drops:
        check = check._replace(others=(check.others[0], None))
    found = with_gradient(check.kernel, check)
    for name, value in with_gradient(check.xla, check).items():
        # XLA's own gradient of queries is 0.0072 from that of float32.
        tolerance = 1e-6 if dtype == "float32" else 5e-3 if name == "output" else 1e-2
        assert relative_error(found[name], value) <= tolerance, name


# Columns that fill no power of two, and rows that fill no program.
@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize(
    ("dtype", "family"), [("float32", "bert"), ("float32", "modernbert"), ("bfloat16", "bert")]
)
def test_a_kernel_is_the_sum_and_layer_norm_of_xla(dtype, family, drops):
    """Also where the norm has no bias."""
    config = ModelConfig(family, vocab_size=16, hidden_size=48, hidden_dropout_prob=0.1)
    check = norm_check(config, dtype)
    if not drops:
        check = check._replace(others=None)
    found = with_gradient(check.kernel, check)
    for name, value in with_gradient(check.xla, check).items():
        assert relative_error(found[name], value) <= (1e-6 if dtype == "float32" else 5e-3), name


def test_a_window_skips_blocks():
    """Of a block in the middle the neighbors are computed, and none that the window misses."""
    assert [int(x) for x in blocks._near(jnp.int32(5), 64, 8192)] == [4, 7]
    assert [int(x) for x in blocks._near(jnp.int32(0), 64, 8192)] == [0, 2]
    assert [int(x) for x in blocks._near(jnp.int32(127), 64, 8192)] == [126, 128]
    assert [int(x) for x in blocks._near(jnp.int32(5), 65, 8192)] == [3, 8]
    assert [int(x) for x in blocks._near(jnp.int32(5), None, 8190)] == [0, 128]


@pytest.mark.parametrize(
    ("changes", "platform", "length", "reason"),
    [
        ({}, "gpu", 128, ""),
        ({}, "tpu", 512, ""),
        ({}, "cpu", 128, "there is none for this device"),
        ({}, "gpu", 8192, ""),
        ({"model_type": "modernbert"}, "gpu", 128, ""),
        ({}, "tpu", 513, "on a TPU it takes up to 512 tokens, not 513"),
        ({"model_type": "modernbert"}, "tpu", 128, "none for the positions of modernbert"),
        ({"model_type": "mpnet", "pad_token_id": 1}, "tpu", 128, "the positions of mpnet"),
        ({"model_type": "mpnet", "pad_token_id": 1}, "gpu", 128, "the positions of mpnet"),
        ({"num_attention_heads": 16}, "gpu", 128, "heads of 16, 32, 64 numbers, not 48"),
        ({"num_attention_heads": 16}, "tpu", 128, "16 heads of 48 do not fill its lanes"),
        ({"hidden_size": 192, "num_attention_heads": 3}, "tpu", 128, "3 heads of 64 do not fill"),
        ({"hidden_size": 384, "num_attention_heads": 3}, "tpu", 128, ""),
    ],
)
def test_it_is_said_why_there_is_no_kernel(changes, platform, length, reason):
    found = why_no_kernel(ModelConfig(**changes), platform, length)
    assert (reason in found) if reason else not found


def test_layers_by_kernels_drop_at_the_rates_of_those_by_xla():
    """Two rates: of hidden states, and of attention's weights."""
    config = ModelConfig(
        vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=16, skip_from=1,
        hidden_dropout_prob=0.4, attention_probs_dropout_prob=0.1,
    )  # fmt: skip
    params = init_params(config, 0)
    ids = np.random.default_rng(0).integers(5, 40, (2, 16)).astype(np.int32)
    mask, positions = np.ones((2, 16), bool), np.array([[1, 2], [3, 4]], np.int32)
    seeds = jnp.array([1, 2], jnp.uint32)

    def vectors(attention):
        laid = lay_out(config, Layout(attention), params)
        apply = jax.jit(Condenser(config, attention=attention).apply)
        return apply({"params": laid}, ids, mask, positions, seeds).vectors_BxD

    assert relative_error(vectors("gpu"), vectors("xla")) <= 1e-5


def test_a_gpus_program_has_a_power_of_two_rows_and_at_least_16():
    lengths = (1, 8, 16, 17, 28, 128)
    assert [kernels._gpu_rows(length) for length in lengths] == [16, 16, 16, 32, 32, 128]
