"""The parts of BERT and RoBERTa: embeddings, post-LayerNorm transformer layer, MLM projection.

Shape legend of the model: B spans, L tokens of a span, Q requested rows of a span,
D hidden size, N attention heads, H size of a head, F intermediate size, V vocabulary,
M masked positions of a span.
"""

import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model.dropout import dropout, fold_in


def take_rows(hidden_BxLxD: jax.Array, rows_BxQ: jax.Array) -> jax.Array:
    """Returns `hidden_BxQxD`: the rows of each span at the given positions."""
    return jnp.take_along_axis(hidden_BxLxD, rows_BxQ[:, :, None], axis=1)


def dense(
    config: ModelConfig, features: int, dtype: jnp.dtype, name: str
) -> Callable[[jax.Array], jax.Array]:
    """A linear map with BERT's initialisation, to be called on arrays of any rank.

    It multiplies flat matrices: on CPU the gradient of a batched product is half as fast, and
    elsewhere the reshapes cost nothing.
    """
    init = nn.initializers.normal(config.initializer_range)
    layer = nn.Dense(features, dtype=dtype, kernel_init=init, name=name)
    return lambda x: layer(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], features)


def gelu(x: jax.Array) -> jax.Array:
    """BERT's exact GELU, computed in float32, because `1 + erf` cancels for negative arguments.

    XLA evaluates erf several times faster than erfc.
    """
    x32 = x.astype(jnp.float32)
    return (0.5 * x32 * (1.0 + jax.lax.erf(x32 * math.sqrt(0.5)))).astype(x.dtype)


def layer_norm(config: ModelConfig, dtype: jnp.dtype, name: str) -> nn.LayerNorm:
    """LayerNorm; flax computes its statistics in float32 whatever `dtype` is."""
    return nn.LayerNorm(epsilon=config.layer_norm_eps, dtype=dtype, name=name)


class Embeddings(nn.Module):
    """Word + position + token type 0, normalised."""

    config: ModelConfig
    dtype: jnp.dtype

    def setup(self) -> None:
        """Creates the three tables; the word table is shared with the MLM projection."""
        config = self.config
        init = nn.initializers.normal(config.initializer_range)
        size = config.hidden_size

        def table(rows: int) -> nn.Embed:
            return nn.Embed(rows, size, dtype=self.dtype, embedding_init=init)

        self.word = table(config.vocab_size)
        self.position = table(config.max_position_embeddings)
        self.token_type = table(config.type_vocab_size)
        self.norm = nn.LayerNorm(epsilon=config.layer_norm_eps, dtype=self.dtype)

    def __call__(self, input_ids_BxL: jax.Array, seeds_B: jax.Array | None = None) -> jax.Array:
        """Returns `hidden_BxLxD`. Padding must be on the right: positions are consecutive."""
        positions_L = jnp.arange(input_ids_BxL.shape[1]) + self.config.position_offset
        constant_LxD = self.position(positions_L) + self.token_type(jnp.zeros((1,), jnp.int32))
        hidden_BxLxD = self.norm(self.word(input_ids_BxL) + constant_LxD[None])
        rows_BxL = jnp.broadcast_to(jnp.arange(input_ids_BxL.shape[1]), input_ids_BxL.shape)
        return dropout(hidden_BxLxD, self.config.hidden_dropout_prob, fold_in(seeds_B, rows_BxL))


class TransformerLayer(nn.Module):
    """Self-attention and feed-forward, each followed by a residual sum and LayerNorm."""

    config: ModelConfig
    dtype: jnp.dtype

    @nn.compact
    def __call__(
        self,
        hidden_BxLxD: jax.Array,
        attention_mask_BxL: jax.Array,
        seeds_B: jax.Array | None = None,
        rows_BxQ: jax.Array | None = None,
    ) -> jax.Array:
        """Returns `hidden_BxQxD`, the layer's output at all rows or at the requested ones.

        Args:
          hidden_BxLxD: the previous layer's output.
          attention_mask_BxL: true (or 1) at tokens, false at padding.
          seeds_B: one dropout seed per span (uint32), or None.
          rows_BxQ: positions of the requested rows; None for all. Keys and values are those of the
            whole span either way, so a row's values do not depend on which are requested.
        """
        config = self.config
        n_spans, length, _ = hidden_BxLxD.shape
        queries_BxQxD = hidden_BxLxD if rows_BxQ is None else take_rows(hidden_BxLxD, rows_BxQ)
        head_size = config.hidden_size // config.num_attention_heads

        def project(x_BxSxD: jax.Array, name: str) -> jax.Array:
            out_BxSxD = dense(config, config.hidden_size, self.dtype, name)(x_BxSxD)
            return out_BxSxD.reshape(n_spans, -1, config.num_attention_heads, head_size)

        def drop(x_BxQxD: jax.Array, site: int) -> jax.Array:
            seeds_BxQ = fold_in(fold_in(seeds_B, site), numbers_BxQ)
            return dropout(x_BxQxD, config.hidden_dropout_prob, seeds_BxQ)

        numbers_BxQ = jnp.broadcast_to(jnp.arange(length), (n_spans, length))
        if rows_BxQ is not None:
            numbers_BxQ = rows_BxQ
        query_BxQxNxH = project(queries_BxQxD, "query") / jnp.sqrt(head_size).astype(self.dtype)
        key_BxLxNxH = project(hidden_BxLxD, "key")
        value_BxLxNxH = project(hidden_BxLxD, "value")

        scores_BxNxQxL = jnp.einsum("bqnh,blnh->bnql", query_BxQxNxH, key_BxLxNxH)
        scores_BxNxQxL = jnp.where(
            attention_mask_BxL[:, None, None, :].astype(bool),
            scores_BxNxQxL.astype(jnp.float32),
            jnp.finfo(jnp.float32).min,
        )
        weights_BxNxQxL = jax.nn.softmax(scores_BxNxQxL, axis=-1).astype(self.dtype)
        seeds_BxN = fold_in(fold_in(seeds_B, 0), jnp.arange(config.num_attention_heads)[None])
        seeds_BxNxQ = fold_in(seeds_BxN, numbers_BxQ[:, None])
        weights_BxNxQxL = dropout(weights_BxNxQxL, config.attention_probs_dropout_prob, seeds_BxNxQ)
        context_BxQxNxH = jnp.einsum("bnql,blnh->bqnh", weights_BxNxQxL, value_BxLxNxH)
        context_BxQxD = context_BxQxNxH.reshape(n_spans, -1, config.hidden_size)

        attended_BxQxD = dense(config, config.hidden_size, self.dtype, "output")(context_BxQxD)
        attended_BxQxD = layer_norm(config, self.dtype, "attention_norm")(
            queries_BxQxD + drop(attended_BxQxD, 1)
        )

        inner_BxQxF = dense(config, config.intermediate_size, self.dtype, "mlp_in")(attended_BxQxD)
        inner_BxQxF = gelu(inner_BxQxF)
        mlp_BxQxD = dense(config, config.hidden_size, self.dtype, "mlp_out")(inner_BxQxF)
        return layer_norm(config, self.dtype, "mlp_norm")(attended_BxQxD + drop(mlp_BxQxD, 2))


class MaskedLMHead(nn.Module):
    """Dense, GELU, LayerNorm, then the transposed word embeddings and a bias (BERT, RoBERTa)."""

    config: ModelConfig
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, hidden_BxMxD: jax.Array, words_VxD: jax.Array) -> jax.Array:
        """Returns `logits_BxMxV` for the rows given, with `words_VxD` as the output matrix."""
        config = self.config
        hidden_BxMxD = gelu(dense(config, config.hidden_size, self.dtype, "dense")(hidden_BxMxD))
        hidden_BxMxD = layer_norm(config, self.dtype, "norm")(hidden_BxMxD)
        bias_V = self.param("bias", nn.initializers.zeros_init(), (config.vocab_size,))
        logits_BxMxV = jnp.einsum("bmd,vd->bmv", hidden_BxMxD, words_VxD.astype(self.dtype))
        return logits_BxMxV + bias_V.astype(self.dtype)[None, None]
