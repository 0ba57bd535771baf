"""Attention of all rows from a joint product of queries, keys and values, in a kernel or in XLA.

Shapes as in `attention.py`; D is the hidden size.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped, UInt32

from cocondenser_jax.model.attention import (
    AttentionSettings,
    attend_rows,
    rotary_speeds,
    rotate_pairs,
)
from cocondenser_jax.model.blocks import attend_in_blocks
from cocondenser_jax.model.dropout import Input
from cocondenser_jax.model.kernels import GPU_LENGTH, attend_whole


def attend_jointly(
    product_BxLx3D: Float[Array, "B L D3"],
    bias_3D: Float[Array, " D3"] | None,
    mask_BxL: Shaped[Input, "B L"],
    seeds_BxN: UInt32[Array, "B N"] | None,
    settings: AttentionSettings,
    platform: str,
) -> Float[Array, "B L D"]:
    """Returns `context_BxLxD`: attention of all tokens of each span to its unmasked tokens.

    Args:
      product_BxLx3D: queries, keys and values of all heads, without biases and unscaled.
      bias_3D: theirs; None for none.
      mask_BxL: true (or 1) at tokens.
      seeds_BxN: of dropout, see `attention.head_seeds`; None for none.
      settings: of the layer.
      platform: whose kernel: `gpu` or `tpu`.
    """
    is_short = product_BxLx3D.shape[1] <= GPU_LENGTH
    is_plain = not settings.base and settings.width is None
    if bias_3D is not None and (platform == "tpu" or (is_short and is_plain)):
        return attend_whole(product_BxLx3D, bias_3D, mask_BxL, seeds_BxN, settings, platform)
    n_spans, length, size_3 = product_BxLx3D.shape
    biased_BxLx3D = _with_bias(product_BxLx3D, bias_3D)
    parts_BxLx3xNxH = biased_BxLx3D.reshape(n_spans, length, 3, settings.n_heads, -1)
    scale = jnp.sqrt(parts_BxLx3xNxH.shape[-1]).astype(parts_BxLx3xNxH.dtype)
    query_BxLx1xNxH = parts_BxLx3xNxH[:, :, :1] / scale
    key_BxLx1xNxH, value_BxLx1xNxH = parts_BxLx3xNxH[:, :, 1:2], parts_BxLx3xNxH[:, :, 2:]
    if settings.base:
        query_BxLx1xNxH = _rotate(query_BxLx1xNxH, settings.base)
        key_BxLx1xNxH = _rotate(key_BxLx1xNxH, settings.base)
    joined_BxLx3xNxH = jnp.concatenate([query_BxLx1xNxH, key_BxLx1xNxH, value_BxLx1xNxH], axis=2)
    joined_BxLx3D = joined_BxLx3xNxH.reshape(n_spans, length, size_3)
    return attend_in_blocks(joined_BxLx3D, mask_BxL, seeds_BxN, settings)


def attend_jointly_by_xla(
    product_BxLx3D: Float[Array, "B L D3"],
    bias_3D: Float[Array, " D3"] | None,
    mask_BxL: Shaped[Input, "B L"],
    seeds_BxN: UInt32[Array, "B N"] | None,
    settings: AttentionSettings,
) -> Float[Array, "B L D"]:
    """Returns the same as `attend_jointly`, computed like three separate linear maps."""
    n_spans, length, size_3 = product_BxLx3D.shape
    joined_BxLx3D = _with_bias(product_BxLx3D, bias_3D)
    parts_BxLx3xNxH = joined_BxLx3D.reshape(n_spans, length, 3, settings.n_heads, -1)
    query_BxNxHxL, key_BxNxHxL, value_BxNxHxL = jnp.transpose(parts_BxLx3xNxH, (2, 0, 3, 4, 1))
    arrays = query_BxNxHxL, key_BxNxHxL, value_BxNxHxL
    context_BxNxHxL = attend_rows(arrays, None, mask_BxL, seeds_BxN, settings)
    return context_BxNxHxL.transpose(0, 3, 1, 2).reshape(n_spans, length, size_3 // 3)


def _with_bias(product_BxLx3D: jax.Array, bias_3D: jax.Array | None) -> jax.Array:
    if bias_3D is None:
        return product_BxLx3D
    return product_BxLx3D + bias_3D.astype(product_BxLx3D.dtype)[None, None]


def _rotate(x_BxLx1xNxH: jax.Array, base: float) -> jax.Array:
    """Rotates queries or keys as `attention.rotate` does."""
    length, half = x_BxLx1xNxH.shape[1], x_BxLx1xNxH.shape[-1] // 2
    angles_LxF = jnp.arange(length)[:, None] * rotary_speeds(half, base)[None]
    return rotate_pairs(x_BxLx1xNxH, angles_LxF[None, :, None, None], -1)
