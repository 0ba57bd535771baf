"""The parts of every backbone: embeddings, layer, MLM projection.

Shape legend of the model: B spans, L tokens of a span, Q requested rows of a span, S either of the
two, D hidden size, E size of a vector, N attention heads, H size of a head, F intermediate size,
V vocabulary, M masked positions of a span, K buckets of distances.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int, Shaped, UInt32

from cocondenser_jax.model.attention import AttentionSettings, attend_rows, head_seeds
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model.dropout import Input, dropout, fold_in
from cocondenser_jax.model.joint import attend_jointly
from cocondenser_jax.model.products import float32_product
from cocondenser_jax.model.sum_norm import NormSettings, add_and_normalize

_FARTHEST = 128  # tokens: longer distances share one bucket of the relative bias


def take_rows(
    hidden_BxLxD: Float[Array, "B L D"], rows_BxQ: Int[Input, "B Q"] | None
) -> Float[Array, "B Q D"]:
    """Returns `hidden_BxQxD`: the rows of each span at the given positions, all for None."""
    if rows_BxQ is None:
        return hidden_BxLxD
    return jnp.take_along_axis(hidden_BxLxD, rows_BxQ[:, :, None], axis=1)


def dense(
    config: ModelConfig, features: int, dtype: jnp.dtype, name: str
) -> Callable[[jax.Array], jax.Array]:
    """A linear map with BERT's initialization, to be called on arrays of any rank.

    It multiplies flat matrices: on a CPU the gradient of a batched product is slower, and on a TPU
    the reshapes are free, unless the result is then split into attention heads (see `_attend`).
    """
    layer = nn.Dense(features, name=name, **_linear(config, dtype))
    return lambda x: layer(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], features)


def _linear(config: ModelConfig, dtype: jnp.dtype) -> dict[str, Any]:
    """Returns the arguments that all linear maps of a network share."""
    init = nn.initializers.normal(config.initializer_range)
    return {"use_bias": config.backbone.biases, "dtype": dtype, "kernel_init": init}


@jax.checkpoint
def gelu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """BERT's exact GELU, computed in float32, because `1 + erf` cancels for negative arguments.

    XLA evaluates erf several times faster than erfc. The gradient recomputes it instead of storing
    three float32 arrays of the inner layer.
    """
    x32 = x.astype(jnp.float32)
    return (0.5 * x32 * (1.0 + jax.lax.erf(x32 * math.sqrt(0.5)))).astype(x.dtype)


def layer_norm(config: ModelConfig, dtype: jnp.dtype, name: str | None = None) -> nn.LayerNorm:
    """LayerNorm; flax computes its statistics in float32 whatever `dtype` is."""
    bias = config.backbone.biases
    return nn.LayerNorm(epsilon=config.layer_norm_eps, use_bias=bias, dtype=dtype, name=name)


class SumNorm(nn.Module):
    """LayerNorm of a residual sum in a GPU kernel, with the parameters of `layer_norm`."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self,
        residual_BxLxD: Float[Array, "B L D"],
        branch_BxLxD: Float[Array, "B L D"],
        seeds_BxL: UInt32[Array, "B L"] | None,
    ) -> Float[Array, "B L D"]:
        """Returns LayerNorm(residual + dropout(branch))."""
        config = self.config
        size = (config.hidden_size,)
        scale_D = self.param("scale", nn.initializers.ones, size)
        bias_D = None
        if config.backbone.biases:
            bias_D = self.param("bias", nn.initializers.zeros, size)
        settings = NormSettings(config.layer_norm_eps, config.hidden_dropout_prob)
        return add_and_normalize(
            residual_BxLxD, branch_BxLxD, (scale_D, bias_D), seeds_BxL, settings
        )


class Embeddings(nn.Module):
    """The normalized sum of the family's embeddings: word, position, token type 0."""

    config: ModelConfig
    dtype: jnp.dtype

    def setup(self) -> None:
        """Creates the tables; the MLM projection shares the word embeddings."""
        config = self.config
        init = nn.initializers.normal(config.initializer_range)
        size = config.hidden_size

        def table(rows: int) -> nn.Embed:
            return nn.Embed(rows, size, dtype=self.dtype, embedding_init=init)

        self.word = table(config.vocab_size)
        if config.backbone.position_table:
            self.position = table(config.max_position_embeddings)
        if config.backbone.token_types:
            self.token_type = table(config.type_vocab_size)
        self.norm = layer_norm(config, self.dtype)

    def __call__(
        self, input_ids_BxL: Int[Input, "B L"], seeds_B: UInt32[Input, " B"] | None = None
    ) -> Float[Array, "B L D"]:
        """Returns `hidden_BxLxD`. Padding must be on the right: positions are consecutive."""
        hidden_BxLxD = self.word(input_ids_BxL)
        numbers_L = jnp.arange(input_ids_BxL.shape[1])
        same_in_every_text = []
        if self.config.backbone.position_table:
            same_in_every_text.append(self.position(numbers_L + self.config.position_offset))
        if self.config.backbone.token_types:
            same_in_every_text.append(self.token_type(jnp.zeros((1,), jnp.int32)))
        if same_in_every_text:
            hidden_BxLxD += functools.reduce(jnp.add, same_in_every_text)[None]
        rows_BxL = jnp.broadcast_to(numbers_L, input_ids_BxL.shape)
        seeds_BxL = fold_in(seeds_B, rows_BxL)
        return dropout(self.norm(hidden_BxLxD), self.config.hidden_dropout_prob, seeds_BxL)


def distance_buckets(distances_D: np.ndarray, n_buckets: int) -> np.ndarray:
    """Returns the bucket of each signed distance, in tokens, from a query to a key.

    As in T5 (Raffel et al., arXiv 1910.10683, section 2.1), bidirectional: half of the buckets are
    for keys after the query. Half of these hold a single distance each; the others grow
    geometrically up to 128 tokens.
    """
    n_each_way = n_buckets // 2
    n_exact = n_each_way // 2
    far_D = np.maximum(np.abs(distances_D), n_exact).astype(np.float32)
    growth_D = np.log(far_D / np.float32(n_exact)) / np.float32(math.log(_FARTHEST / n_exact))
    grown_D = n_exact + (growth_D * np.float32(n_each_way - n_exact)).astype(np.int32)
    near_D = np.abs(distances_D)
    buckets_D = np.where(near_D < n_exact, near_D, np.minimum(grown_D, n_each_way - 1))
    return buckets_D + np.where(distances_D > 0, n_each_way, 0)


class RelativeBias(nn.Module):
    """The bias of the attention logits for the distance of two tokens, per head.

    All layers share it (Song et al., arXiv 2004.09297).
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, length: int) -> Float32[Array, "N L L"]:
        """Returns `bias_NxLxL`, float32: from each token of a span to each."""
        config = self.config
        n_buckets = config.backbone.relative_bias
        n_heads = config.num_attention_heads
        init = nn.initializers.normal(config.initializer_range)
        table_KxN = self.param("table", init, (n_buckets, n_heads))
        # One entry for each distance, the negative ones last, as in Python's indices.
        distances_D = (np.arange(2 * length) + length) % (2 * length) - length
        bias_NxD = table_KxN[distance_buckets(distances_D, n_buckets)].T
        # Cut into rows one entry shorter than the repeated part, so each row begins one entry
        # earlier than the row above. The gradient then needs no scatter over all pairs of tokens.
        rows_NxS = jnp.tile(bias_NxD, (1, length))[:, : length * (2 * length - 1)]
        return rows_NxS.reshape(n_heads, length, 2 * length - 1)[:, :, :length]


def joined_zeros(config: ModelConfig) -> dict[str, jax.Array]:
    """Returns zeros for the joint map that a kernel reads instead of `query`, `key` and `value`."""
    size = config.hidden_size
    zeros = {"kernel": jnp.zeros((size, 3 * size))}
    return zeros | ({"bias": jnp.zeros(3 * size)} if config.backbone.biases else {})


def attention_of(config: ModelConfig, index: int | None) -> AttentionSettings:
    """Returns the settings of a layer's attention; its index is that of `TransformerLayer`."""
    is_local = config.attends_locally(index)
    base = config.local_rope_theta if is_local else config.global_rope_theta
    return AttentionSettings(
        n_heads=config.num_attention_heads,
        rate=config.attention_probs_dropout_prob,
        width=config.local_attention // 2 if is_local else None,
        base=base if config.backbone.rotary else 0.0,
    )


class TransformerLayer(nn.Module):
    """Self-attention and feed-forward, each with a residual sum and LayerNorm.

    `index` is that of a layer of the backbone, from 0, and None in the head. In families with
    local attention, it decides whether the layer is local. If LayerNorm comes first, layer 0 has
    none before its attention: the embeddings are already normalized.

    `attention` selects the implementation: `xla`, or the `gpu` or `tpu` kernel, which computes all
    rows. A layer with a kernel has a single matrix for queries, keys and values, see
    `layout.lay_out`.
    """

    config: ModelConfig
    dtype: jnp.dtype
    index: int | None
    attention: str

    @nn.compact
    def __call__(
        self,
        hidden_BxLxD: Float[Array, "B L D"],
        attention_mask_BxL: Shaped[Input, "B L"],
        seeds_B: UInt32[Input, " B"] | None = None,
        rows_BxQ: Int[Input, "B Q"] | None = None,
        bias_NxLxL: Float32[Array, "N L L"] | None = None,
    ) -> Float[Array, "B Q D"]:
        """Returns `hidden_BxQxD`, the layer's output at the requested rows, or at all for None.

        Keys and values always come from the whole span, so a row does not depend on which rows are
        requested. The mask is true (or 1) at tokens; `seeds_B` is one dropout seed per span
        (uint32), or None; `bias_NxLxL` is that of `RelativeBias`, in families that have one.
        """
        config = self.config
        norm = functools.partial(layer_norm, config, self.dtype)
        n_spans, length, _ = hidden_BxLxD.shape
        all_BxL = jnp.broadcast_to(jnp.arange(length), (n_spans, length))
        numbers_BxQ = all_BxL if rows_BxQ is None else rows_BxQ

        def add(
            residual_BxQxD: Float[Array, "B Q D"],
            branch_BxQxD: Float[Array, "B Q D"],
            site: int,
            name: str | None = None,
        ) -> Float[Array, "B Q D"]:
            """Returns the residual sum with dropout; with a name, through that LayerNorm."""
            seeds_BxQ = fold_in(fold_in(seeds_B, site), numbers_BxQ)
            if name and self.attention == "gpu":
                return SumNorm(config, name=name)(residual_BxQxD, branch_BxQxD, seeds_BxQ)
            sum_BxQxD = residual_BxQxD + dropout(
                branch_BxQxD, config.hidden_dropout_prob, seeds_BxQ
            )
            return norm(name)(sum_BxQxD) if name else sum_BxQxD

        read_BxLxD = hidden_BxLxD
        if config.backbone.norm_first and self.index != 0:
            read_BxLxD = norm("attention_norm")(read_BxLxD)
        if self.attention != "xla":
            assert rows_BxQ is None
            attended_BxQxD = self._attend_jointly(
                read_BxLxD, attention_mask_BxL, fold_in(seeds_B, 0)
            )
        else:
            bias_BxNxQxL = None
            if bias_NxLxL is not None:
                bias_BxNxQxL = bias_NxLxL[None]
                if rows_BxQ is not None:
                    bias_BxNxQxL = jnp.swapaxes(bias_NxLxL[:, rows_BxQ], 0, 1)
            attended_BxQxD = self._attend(
                read_BxLxD,
                rows_BxQ,
                attention_mask_BxL,
                fold_in(seeds_B, 0),
                bias_BxNxQxL,
            )
        residual_BxQxD = take_rows(hidden_BxLxD, rows_BxQ)
        if config.backbone.norm_first:
            attended_BxQxD = add(residual_BxQxD, attended_BxQxD, 1)
            inner_BxQxD = self._feed_forward(norm("mlp_norm")(attended_BxQxD))
            return add(attended_BxQxD, inner_BxQxD, 2)
        attended_BxQxD = add(residual_BxQxD, attended_BxQxD, 1, "attention_norm")
        return add(attended_BxQxD, self._feed_forward(attended_BxQxD), 2, "mlp_norm")

    def _attend(
        self,
        read_BxLxD: Float[Array, "B L D"],
        rows_BxQ: Int[Input, "B Q"] | None,
        attention_mask_BxL: Shaped[Input, "B L"],
        seeds_B: UInt32[Input, " B"] | None,
        bias_BxNxQxL: Float32[Array, "_ N Q L"] | None,
    ) -> Float[Array, "B Q D"]:
        """Returns `attended_BxQxD`: multi-head attention of rows to the tokens of their span.

        Queries, keys and values have the tokens as their last axis, so a TPU multiplies them
        without copies.
        """
        config = self.config
        n_spans = len(read_BxLxD)
        n_heads = config.num_attention_heads
        square = (config.hidden_size, config.hidden_size)
        options = _linear(config, self.dtype)

        def project(x_BxSxD: Float[Array, "B S D"], name: str) -> Float[Array, "B N H S"]:
            out_BxDxS = nn.Einsum(square, "bsd,de->bes", name=name, **options)(x_BxSxD)
            return out_BxDxS.reshape(n_spans, n_heads, config.hidden_size // n_heads, -1)

        context_BxNxHxQ = attend_rows(
            (
                project(take_rows(read_BxLxD, rows_BxQ), "query"),
                project(read_BxLxD, "key"),
                project(read_BxLxD, "value"),
            ),
            rows_BxQ,
            attention_mask_BxL,
            head_seeds(seeds_B, n_heads),
            attention_of(config, self.index),
            bias_BxNxQxL,
        )
        context_BxDxQ = context_BxNxHxQ.reshape(n_spans, config.hidden_size, -1)
        return nn.Einsum(square, "bes,ed->bsd", name="output", **options)(context_BxDxQ)

    def _attend_jointly(
        self,
        read_BxLxD: Float[Array, "B L D"],
        attention_mask_BxL: Shaped[Input, "B L"],
        seeds_B: UInt32[Input, " B"] | None,
    ) -> Float[Array, "B L D"]:
        """Returns `attended_BxLxD` as `_attend`, by a kernel, of one product of all three maps."""
        config = self.config
        size = config.hidden_size
        joined = self.param("joined", lambda _: joined_zeros(config))
        product_BxLx3D = jnp.einsum("bld,de->ble", read_BxLxD, joined["kernel"].astype(self.dtype))
        context_BxLxD = attend_jointly(
            product_BxLx3D,
            joined.get("bias"),
            attention_mask_BxL,
            head_seeds(seeds_B, config.num_attention_heads),
            attention_of(config, self.index),
            self.attention,
        )
        return dense(config, size, self.dtype, "output")(context_BxLxD)

    def _feed_forward(self, hidden_BxQxD: Float[Array, "B Q D"]) -> Float[Array, "B Q D"]:
        """Returns `out_BxQxD`."""
        config = self.config
        size = config.intermediate_size
        if config.backbone.gated:
            both_BxQxF2 = dense(config, 2 * size, self.dtype, "mlp_in")(hidden_BxQxD)
            inner_BxQxF, gate_BxQxF = jnp.split(both_BxQxF2, 2, axis=-1)
            inner_BxQxF = gelu(inner_BxQxF) * gate_BxQxF
        else:
            inner_BxQxF = gelu(dense(config, size, self.dtype, "mlp_in")(hidden_BxQxD))
        return dense(config, config.hidden_size, self.dtype, "mlp_out")(inner_BxQxF)


class MLMProjection(nn.Module):
    """Dense, GELU, LayerNorm, then the transposed word embeddings and a bias."""

    config: ModelConfig
    dtype: jnp.dtype

    @nn.compact
    def __call__(
        self, hidden_BxMxD: Float[Array, "B M D"], words_VxD: Float[Input, "V D"]
    ) -> Float32[Array, "B M V"]:
        """Returns float32 `logits_BxMxV` of rows, with `words_VxD` as the output matrix."""
        config = self.config
        hidden_BxMxD = gelu(dense(config, config.hidden_size, self.dtype, "dense")(hidden_BxMxD))
        hidden_BxMxD = layer_norm(config, self.dtype, "norm")(hidden_BxMxD)
        bias_V = self.param("bias", nn.initializers.zeros_init(), (config.vocab_size,))
        # Flat, because a TPU would pad the few rows of each span to a multiple of eight.
        flat_SxD = hidden_BxMxD.reshape(-1, config.hidden_size)
        # Summed in float32: at a bias of -14, bfloat16 has a spacing of 1/16.
        logits_SxV = float32_product("sd,vd->sv", flat_SxD, words_VxD.astype(self.dtype))
        logits_SxV += bias_V[None]
        return logits_SxV.reshape(*hidden_BxMxD.shape[:2], config.vocab_size)
