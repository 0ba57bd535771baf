"""Attention of the rows of a span to its tokens, between the linear maps.

Shapes as in `encoder.py`: B spans, L tokens of a span, Q rows, N heads, H size of a head.
"""

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
