"""Attention of the rows of a span to its tokens, between the linear maps.

Shapes as in `encoder.py`: B spans, L tokens of a span, Q rows, N heads, H size of a head.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, UInt32

from cocondenser_jax.model.dropout import Input, dropout, fold_in
from cocondenser_jax.model.products import float32_product


def head_seeds(seeds_B: UInt32[Input, " B"] | None, n_heads: int) -> UInt32[Array, "B N"] | None:
    """Returns a dropout seed for each head of each span, None for none."""
    return fold_in(seeds_B, jnp.arange(n_heads)[None])


def attend(  # noqa: PLR0913  # the inputs of attention, as a kernel takes them
    query_BxNxHxQ: Float[Array, "B N H Q"],
    key_BxNxHxL: Float[Array, "B N H L"],
    value_BxNxHxL: Float[Array, "B N H L"],
    visible_Bx1xQxL: Bool[Array, "B 1 _ L"],
    bias_BxNxQxL: Float32[Array, "_ N Q L"] | None,
    seeds_BxNxQ: UInt32[Array, "B N Q"] | None,
    rate: float,
) -> Float[Array, "B N H Q"]:
    """Returns `context_BxNxHxQ`: softmax(queries keys + bias) values, of what is visible.

    Scaled dot-product attention (Vaswani et al., arXiv 1706.03762, equation 1), of queries that are
    scaled already. Scores and softmax are float32.

    Args:
      query_BxNxHxQ: of the rows.
      key_BxNxHxL: of the tokens.
      value_BxNxHxL: of the tokens.
      visible_Bx1xQxL: whether a row attends to a token; each at least to one.
      bias_BxNxQxL: what the scores gain; None for nothing.
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
    """Returns `context_BxNxHxL` as `attend`, where a row sees the tokens near it.

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
