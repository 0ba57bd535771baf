"""Compares the kernels of a network with XLA on a device, before a run uses them.

With a faulty compiler, or on a card that the kernels never ran on, a run could otherwise train a
wrong model without an error.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cocondenser_jax.errors import whole_message
from cocondenser_jax.model.attention import AttentionSettings, head_seeds
from cocondenser_jax.model.blocks import BLOCK
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model.dropout import dropout
from cocondenser_jax.model.encoder import attention_of, layer_norm
from cocondenser_jax.model.joint import attend_jointly, attend_jointly_by_xla
from cocondenser_jax.model.sum_norm import NormSettings, add_and_normalize

# A function of a check's arrays, by name, and of inputs without a gradient.
Function = Callable[[dict[str, jax.Array], Any], jax.Array]
# From queries, keys and values, biases, mask, seeds and settings, see `joint.attend_jointly`.
Attention = Callable[[Any, Any, Any, Any, AttentionSettings], Float[Array, "B L D"]]
# Relative to the norm of XLA's result. Interpreted in bfloat16, the gradients of queries differ by
# 0.0045, by blocks by 0.0086; XLA's own are 0.0072 from those of float32. Accelerators round the
# operands of float32 products, too.
_TOLERANCE = 0.02
_LONGEST = 512  # tokens
_NORM_LENGTH = 33  # tokens of each span, whose rows do not fill a program


class KernelCheck(NamedTuple):
    """A kernel and its XLA counterpart, on the same arrays."""

    kernel: Function
    xla: Function
    arrays: dict[str, jax.Array]  # by name; their gradients are compared
    others: Any
    cotangent: jax.Array


def attention_check(
    kernel: Attention,
    settings: AttentionSettings,
    shape: tuple[int, int],
    dtype: str,
    has_biases: bool,
) -> KernelCheck:
    """Returns the check of an attention kernel on spans of the full length and of shorter ones.

    Args:
      kernel: the attention.
      settings: of a layer.
      shape: tokens of the full length, and the size of a head.
      dtype: of the arrays.
      has_biases: whether queries, keys and values have biases.
    """
    rng = np.random.default_rng(0)
    length, size = shape
    lengths_B = np.array([length, length // 2, 3])
    mask_BxL = jnp.asarray(np.arange(length) < lengths_B[:, None])
    seeds_B = jnp.asarray(rng.integers(2**32, size=len(lengths_B), dtype=np.uint32))
    of_rows = len(lengths_B), length, settings.n_heads * size
    parts = "queries", "keys", "values"
    arrays = {name: _normal(rng, of_rows, dtype) for name in parts}
    if has_biases:
        arrays["biases"] = _normal(rng, (3 * of_rows[2],), "float32")

    def by(attention: Attention) -> Function:
        def compute(arrays: dict[str, jax.Array], others: Any) -> jax.Array:
            mask_BxL, seeds_BxN = others
            product_BxLx3D = jnp.concatenate([arrays[name] for name in parts], axis=-1)
            context_BxLxD = attention(
                product_BxLx3D, arrays.get("biases"), mask_BxL, seeds_BxN, settings
            )
            # The output of padding rows is never used.
            return jnp.where(mask_BxL[:, :, None], context_BxLxD, 0)

        return compute

    others = mask_BxL, head_seeds(seeds_B if settings.rate else None, settings.n_heads)
    cotangent_BxLxD = _normal(rng, of_rows, dtype)
    return KernelCheck(by(kernel), by(attend_jointly_by_xla), arrays, others, cotangent_BxLxD)


def norm_check(config: ModelConfig, dtype: str) -> KernelCheck:
    """Returns the check of the kernel of residual sums and their LayerNorm."""
    rng = np.random.default_rng(0)
    rate = config.hidden_dropout_prob
    shape = 3, _NORM_LENGTH, config.hidden_size
    arrays = {name: _normal(rng, shape, dtype) for name in ("residuals", "branches")}
    weights = ("scale", "bias") if config.backbone.biases else ("scale",)
    arrays |= {name: _normal(rng, shape[2:], "float32") for name in weights}
    seeds_BxL = jnp.asarray(rng.integers(2**32, size=shape[:2], dtype=np.uint32))

    def by_kernel(arrays: dict[str, jax.Array], seeds_BxL: Any) -> jax.Array:
        terms = arrays["residuals"], arrays["branches"]
        settings = NormSettings(config.layer_norm_eps, rate)
        return add_and_normalize(*terms, (arrays["scale"], arrays.get("bias")), seeds_BxL, settings)

    def by_xla(arrays: dict[str, jax.Array], seeds_BxL: Any) -> jax.Array:
        sums_BxLxD = arrays["residuals"] + dropout(arrays["branches"], rate, seeds_BxL)
        params = {name: arrays[name] for name in weights}
        norm = layer_norm(config, jnp.dtype(dtype))
        return cast(jax.Array, norm.apply({"params": params}, sums_BxLxD))

    return KernelCheck(by_kernel, by_xla, arrays, seeds_BxL, _normal(rng, shape, dtype))


def _normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> jax.Array:
    return jnp.asarray(rng.normal(size=shape), dtype)


def find_fault(check: KernelCheck) -> str:
    """Returns what is wrong with a kernel on this host's first device; "" if nothing is.

    Its output and gradient must equal XLA's up to rounding in the arrays' dtype. An exception from
    Pallas, Triton or Mosaic is a fault, too.
    """
    expected = with_gradient(check.xla, check)
    try:
        found = with_gradient(check.kernel, check)
    except Exception as error:  # each compiler has its own exceptions
        return f"it fails: {whole_message(error)}"
    differences = {name: _difference(found[name], expected[name]) for name in expected}
    worst = max(differences, key=lambda name: differences[name])
    if differences[worst] <= _TOLERANCE:
        return ""
    return (
        f"its {worst} differs from XLA's by {differences[worst]:.2g} of its norm, expected at most"
        f" {_TOLERANCE}"
    )


def with_gradient(function: Function, check: KernelCheck) -> dict[str, np.ndarray]:
    """Returns the output of a function of a check's arrays, and its gradients, by name."""

    @jax.jit
    def compute(arrays: Any, others: Any, cotangent: Any) -> tuple[jax.Array, Any]:
        output, pull_back = jax.vjp(lambda arrays: function(arrays, others), arrays)
        return output, pull_back(cotangent)[0]

    output, by_arrays = jax.device_get(compute(check.arrays, check.others, check.cotangent))
    found = {"output": output} | {f"gradient of {name}": x for name, x in by_arrays.items()}
    return {name: np.asarray(x, np.float32) for name, x in found.items()}


def _difference(found: np.ndarray, expected: np.ndarray) -> float:
    """Returns the norm of a difference over that of what is expected; infinity for NaN."""
    difference = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    return float(np.nan_to_num(difference, nan=np.inf, posinf=np.inf))


@functools.cache
def kernel_fault(config: ModelConfig, dtype: str, platform: str, lengths: tuple[int, ...]) -> str:
    """Returns which of a platform's kernels for a network is wrong, and why; "" if none is."""
    for name, check in _checks(config, dtype, platform, lengths):
        if fault := find_fault(check):
            return f"{name}: {fault}"
    return ""


def _checks(
    config: ModelConfig, dtype: str, platform: str, lengths: tuple[int, ...]
) -> Iterator[tuple[str, KernelCheck]]:
    """Yields checks of a platform's kernels, called as in the layers that compute all rows.

    Spans have each of the lengths, or end within a block like a longer length.
    """
    kernel = functools.partial(attend_jointly, platform=platform)
    size = config.hidden_size // config.num_attention_heads
    kinds = {attention_of(config, number) for number in range(config.num_hidden_layers)}
    for settings, length in itertools.product(kinds, sorted(set(map(_shortened, lengths)))):
        of_kind = attention_check(kernel, settings, (length, size), dtype, config.backbone.biases)
        yield f"attention, {length} tokens", of_kind
    if platform == "gpu" and not config.backbone.norm_first:
        yield "LayerNorm", norm_check(config, dtype)


def _shortened(length: int) -> int:
    """Returns a length that ends within a block like the given one but that fits XLA's memory."""
    return length if length <= _LONGEST else _LONGEST - -length % BLOCK
