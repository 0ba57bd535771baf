"""Attention of the rows of a span to its tokens, between the linear maps.

Shapes as in `encoder.py`: B spans, L tokens of a span, Q rows, N heads, H size of a head.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int, Shaped, UInt32

from cocondenser_jax.model.dropout import Input, dropout, fold_in
from cocondenser_jax.model.products import float32_product


class AttentionSettings(NamedTuple):
    """The settings of a layer's attention."""

    n_heads: int
    rate: float = 0.0  # of dropout
    width: int | None = None  # of local attention: tokens that a row sees on each side; None: all
    base: float = 0.0  # of rotary positions, see `rotate`; 0: none


def head_seeds(seeds_B: UInt32[Input, " B"] | None, n_heads: int) -> UInt32[Array, "B N"] | None:
    """Returns a dropout seed for each head of each span, None for none."""
    return fold_in(seeds_B, jnp.arange(n_heads)[None])


def attend_rows(
    arrays: tuple[Float[Array, "B N H Q"], Float[Array, "B N H L"], Float[Array, "B N H L"]],
    rows_BxQ: Int[Input, "B Q"] | None,
    mask_BxL: Shaped[Input, "B L"],
    seeds_BxN: UInt32[Array, "B N"] | None,
    settings: AttentionSettings,
    bias_BxNxQxL: Float32[Array, "_ N Q L"] | None = None,
) -> Float[Array, "B N H Q"]:
    """Returns `context_BxNxHxQ`: attention of some rows of a span to all of its tokens, by XLA.

    Args:
      arrays: queries of the rows; keys and values of the tokens.
      rows_BxQ: their numbers; None for all tokens of a span.
      mask_BxL: true (or 1) at tokens.
      seeds_BxN: of dropout, see `head_seeds`; None for none.
      settings: of the layer.
      bias_BxNxQxL: see `attend`.
    """
    query_BxNxHxQ, key_BxNxHxL, value_BxNxHxL = arrays
    n_spans, _, size, length = key_BxNxHxL.shape
    positions_1xL = jnp.arange(length)[None]
    numbers_BxQ = jnp.broadcast_to(positions_1xL, (n_spans, length))
    if rows_BxQ is not None:
        numbers_BxQ = jnp.asarray(rows_BxQ)
    query_BxNxHxQ = query_BxNxHxQ / jnp.sqrt(size).astype(query_BxNxHxQ.dtype)
    if settings.base:
        query_BxNxHxQ = rotate(query_BxNxHxQ, numbers_BxQ, settings.base)
        key_BxNxHxL = rotate(key_BxNxHxL, positions_1xL, settings.base)
    mask_BxL = jnp.asarray(mask_BxL, bool)
    seeds_BxNxQ = fold_in(seeds_BxN, numbers_BxQ[:, None])
    arrays = query_BxNxHxQ, key_BxNxHxL, value_BxNxHxL
    width = settings.width
    if rows_BxQ is None and width and length > 3 * width:
        assert bias_BxNxQxL is None
        return attend_in_windows(*arrays, mask_BxL, seeds_BxNxQ, (width, settings.rate))
    visible_Bx1xQxL = mask_BxL[:, None, None, :]
    if width is not None:
        distances_BxQxL = jnp.abs(numbers_BxQ[:, :, None] - positions_1xL[:, None])
        visible_Bx1xQxL &= distances_BxQxL[:, None] <= width
    return attend(*arrays, visible_Bx1xQxL, bias_BxNxQxL, seeds_BxNxQ, settings.rate)


def rotate(
    x_BxNxHxS: Float[Array, "B N H S"], positions_BxS: Int[Input, "_ S"], base: float
) -> Float[Array, "B N H S"]:
    """Rotates each pair (i, i + H/2) of a head by its position times base^(-2i/H), in float32.

    Equation 34 of Su et al., arXiv 2104.09864, with the halves of a head as the pairs.
    """
    speeds_F = rotary_speeds(x_BxNxHxS.shape[2] // 2, base)
    return rotate_pairs(x_BxNxHxS, positions_BxS[:, None, None] * speeds_F[None, None, :, None], 2)


def rotate_pairs(x: jax.Array, angles: Input, axis: int) -> jax.Array:
    """Rotates pairs of elements that lie half an axis apart, in float32; one angle per pair."""
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    left, right = jnp.split(x.astype(jnp.float32), 2, axis=axis)
    turned = jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=axis)
    return turned.astype(x.dtype)


def rotary_speeds(half: int, base: float) -> Float32[Array, " F"]:
    """Returns the angle a position of each of the `half` pairs that `rotate` turns."""
    return base ** -(jnp.arange(half, dtype=jnp.float32) / half)


def attend(  # noqa: PLR0913  # the inputs of attention, as a kernel takes them
    query_BxNxHxQ: Float[Array, "B N H Q"],
    key_BxNxHxL: Float[Array, "B N H L"],
    value_BxNxHxL: Float[Array, "B N H L"],
    visible_Bx1xQxL: Bool[Array, "B 1 _ L"],
    bias_BxNxQxL: Float32[Array, "_ N Q L"] | None,
    seeds_BxNxQ: UInt32[Array, "B N Q"] | None,
    rate: float,
) -> Float[Array, "B N H Q"]:
    """Returns `context_BxNxHxQ`: softmax(queries keys + bias) values, over the visible tokens.

    Scaled dot-product attention (Vaswani et al., arXiv 1706.03762, equation 1); the queries are
    already scaled. Scores and softmax are float32.

    Args:
      query_BxNxHxQ: of the rows.
      key_BxNxHxL: of the tokens.
      value_BxNxHxL: of the tokens.
      visible_Bx1xQxL: whether a row attends to a token; each row attends to at least one.
      bias_BxNxQxL: added to the scores; None for no bias.
      seeds_BxNxQ: of the dropout of a row's weights, `head_seeds` with the row's position folded
        in; None for no dropout.
      rate: of the dropout.
    """
    scores_BxNxQxL = float32_product("bnhq,bnhl->bnql", query_BxNxHxQ, key_BxNxHxL)
    if bias_BxNxQxL is not None:
        scores_BxNxQxL += bias_BxNxQxL
    scores_BxNxQxL = jnp.where(visible_Bx1xQxL, scores_BxNxQxL, jnp.finfo(jnp.float32).min)
    weights_BxNxQxL = jax.nn.softmax(scores_BxNxQxL, axis=-1).astype(query_BxNxHxQ.dtype)
    weights_BxNxQxL = dropout(weights_BxNxQxL, rate, seeds_BxNxQ)
    return jnp.einsum("bnql,bnhl->bnhq", weights_BxNxQxL, value_BxNxHxL)


def attend_in_windows(
    query_BxNxHxL: Float[Array, "B N H L"],
    key_BxNxHxL: Float[Array, "B N H L"],
    value_BxNxHxL: Float[Array, "B N H L"],
    mask_BxL: Bool[Array, "B L"],
    seeds_BxNxL: UInt32[Array, "B N L"] | None,
    window: tuple[int, float],
) -> Float[Array, "B N H L"]:
    """Returns `context_BxNxHxL` as `attend` does, if a row attends only to nearby tokens.

    The rows are cut into K blocks of W, as many as a row sees on each side. A block is compared
    with the block before it, itself and the one after it: 3 W tokens, whatever the length.

    Args:
      query_BxNxHxL: of all tokens.
      key_BxNxHxL: of the tokens.
      value_BxNxHxL: of the tokens.
      mask_BxL: true at tokens.
      seeds_BxNxL: of the dropout of a row's weights; None for no dropout.
      window: W, and the rate of the dropout.
    """
    width, rate = window
    n_spans, n_heads, size, length = query_BxNxHxL.shape
    n_blocks = -(-length // width)
    n_more = n_blocks * width - length

    def blocks(x: Any) -> Any:
        padded = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, n_more)])
        return padded.reshape(*x.shape[:-1], n_blocks, width)

    def neighbors(x: Any) -> Any:
        around = jnp.pad(blocks(x), [(0, 0)] * (x.ndim - 1) + [(1, 1), (0, 0)])
        return jnp.concatenate([around[..., i : i + n_blocks, :] for i in range(3)], axis=-1)

    rows_KxW = jnp.arange(n_blocks * width).reshape(n_blocks, width)
    columns_KxC = rows_KxW[:, :1] - width + jnp.arange(3 * width)[None]
    near_KxWxC = jnp.abs(rows_KxW[:, :, None] - columns_KxC[:, None]) <= width
    visible_Bx1xKxWxC = neighbors(mask_BxL)[:, None, :, None] & near_KxWxC[None, None]
    scores_BxNxKxWxC = float32_product(
        "bnhkw,bnhkc->bnkwc", blocks(query_BxNxHxL), neighbors(key_BxNxHxL)
    )
    least = jnp.finfo(jnp.float32).min
    scores_BxNxKxWxC = jnp.where(visible_Bx1xKxWxC, scores_BxNxKxWxC, least)
    weights_BxNxKxWxC = jax.nn.softmax(scores_BxNxKxWxC, axis=-1).astype(query_BxNxHxL.dtype)
    seeds_BxNxKxW = None if seeds_BxNxL is None else blocks(seeds_BxNxL)
    columns = columns_KxC[None, None, :, None]
    weights_BxNxKxWxC = dropout(weights_BxNxKxWxC, rate, seeds_BxNxKxW, columns)
    context_BxNxHxKxW = jnp.einsum(
        "bnkwc,bnhkc->bnhkw", weights_BxNxKxWxC, neighbors(value_BxNxHxL)
    )
    return context_BxNxHxKxW.reshape(n_spans, n_heads, size, -1)[..., :length]
