"""A kernel of attention tried on a device, beside XLA, before a run computes with it.

A compiler that has a fault, or a card that the kernels were never run on, would train a wrong model
and say nothing.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped, UInt32

from cocondenser_jax.errors import whole_message
from cocondenser_jax.model.attention import AttentionSettings, head_seeds
from cocondenser_jax.model.blocks import BLOCK
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model.encoder import attention_of
from cocondenser_jax.model.joint import attend_jointly, attend_jointly_by_xla

# From the arrays of `Arrays`, but for the cotangent, and the settings, to `context_BxLxD`.
Attention = Callable[[Any, Any, Any, Any, AttentionSettings], Float[Array, "B L D"]]
# Of the norm of what XLA gives. Interpreted in bfloat16, the gradients of queries differ by 0.0045,
# by blocks by 0.0086; XLA's own are 0.0072 from those of float32. Accelerators round the operands
# of float32 products, too.
_TOLERANCE = 0.02
_LONGEST = 512  # tokens


class Arrays(NamedTuple):
    """What an attention is tried with: spans of a full length, and of less."""

    product_BxLx3D: Float[Array, "B L D3"]
    bias_3D: Float[Array, " D3"] | None
    mask_BxL: Shaped[Array, "B L"]
    seeds_BxN: UInt32[Array, "B N"] | None
    cotangent_BxLxD: Float[Array, "B L D"]


def draw_arrays(settings: AttentionSettings, size: int, length: int, dtype: str) -> Arrays:
    """Returns arrays for heads of `size` numbers, with scores that differ."""
    rng = np.random.default_rng(0)
    n_tokens_B = np.array([length, length // 2, 3])
    shape = len(n_tokens_B), length, settings.n_heads * size
    mask_BxL = np.arange(length) < n_tokens_B[:, None]
    seeds_B = jnp.asarray(rng.integers(2**32, size=len(n_tokens_B), dtype=np.uint32))
    return Arrays(
        product_BxLx3D=jnp.asarray(rng.normal(size=(*shape[:2], 3 * shape[2])), dtype),
        bias_3D=jnp.asarray(rng.normal(size=3 * shape[2]), jnp.float32),
        mask_BxL=jnp.asarray(mask_BxL),
        seeds_BxN=head_seeds(seeds_B if settings.rate else None, settings.n_heads),
        # Nobody reads what a row of padding sees.
        cotangent_BxLxD=jnp.asarray(rng.normal(size=shape) * mask_BxL[:, :, None], dtype),
    )


def find_fault(
    kernel: Attention, xla: Attention, arrays: Arrays, settings: AttentionSettings
) -> str:
    """Returns what is wrong with a kernel on the first device of this host, "" if nothing is.

    Its output and its gradient must be those of XLA, up to the rounding of the arrays' dtype. What
    Pallas, Triton or Mosaic raises is a fault, too.
    """
    expected = with_gradient(xla, arrays, settings)
    try:
        found = with_gradient(kernel, arrays, settings)
    except Exception as error:  # each compiler has its own
        return f"it fails: {whole_message(error)}"
    differences = {name: _difference(found[name], expected[name]) for name in expected}
    worst = max(differences, key=lambda name: differences[name])
    if differences[worst] <= _TOLERANCE:
        return ""
    return (
        f"its {worst} differs from XLA's by {differences[worst]:.2g} of its norm, expected at most"
        f" {_TOLERANCE}"
    )


def with_gradient(
    attention: Attention, arrays: Arrays, settings: AttentionSettings
) -> dict[str, np.ndarray]:
    """Returns the output of an attention and its gradients, by name, without rows of padding."""

    @jax.jit
    def compute(arrays: Arrays) -> tuple[jax.Array, ...]:
        def attend(product_BxLx3D: jax.Array, bias_3D: jax.Array | None) -> jax.Array:
            return attention(product_BxLx3D, bias_3D, arrays.mask_BxL, arrays.seeds_BxN, settings)

        context_BxLxD, pull_back = jax.vjp(attend, arrays.product_BxLx3D, arrays.bias_3D)
        return (context_BxLxD, *pull_back(arrays.cotangent_BxLxD))

    context_BxLxD, by_product_BxLx3D, by_bias_3D = jax.device_get(compute(arrays))
    context_BxLxD = np.float32(context_BxLxD) * np.asarray(arrays.mask_BxL)[:, :, None]
    query, key, value = np.split(np.float32(by_product_BxLx3D), 3, axis=-1)
    found: dict[str, np.ndarray] = {
        "output": context_BxLxD,
        "gradient of queries": query,
        "gradient of keys": key,
        "gradient of values": value,
    }
    if by_bias_3D is not None:
        found["gradient of biases"] = np.asarray(by_bias_3D, np.float32)
    return found


def _difference(found: np.ndarray, expected: np.ndarray) -> float:
    """Returns the norm of a difference over that of what is expected; infinity for NaN."""
    difference = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    return float(np.nan_to_num(difference, nan=np.inf, posinf=np.inf))


@functools.cache
def kernel_fault(config: ModelConfig, dtype: str, platform: str, lengths: tuple[int, ...]) -> str:
    """Returns what is wrong with a platform's kernel for a network, "" if nothing is.

    It is tried as the layers that compute all rows call it, on spans of each length, or of the last
    tokens of a longer one.
    """
    kernel = functools.partial(attend_jointly, platform=platform)
    size = config.hidden_size // config.num_attention_heads
    kinds = {attention_of(config, number) for number in range(config.num_hidden_layers)}
    for settings, length in itertools.product(kinds, sorted(set(map(_shortened, lengths)))):
        arrays = draw_arrays(settings, size, length, dtype)
        if not config.backbone.biases:
            arrays = arrays._replace(bias_3D=None)
        if fault := find_fault(kernel, attend_jointly_by_xla, arrays, settings):
            return f"at {length} tokens {fault}"
    return ""


def _shortened(length: int) -> int:
    """Returns a length that ends within a block as another does, and for which XLA has the room."""
    return length if length <= _LONGEST else _LONGEST - -length % BLOCK
