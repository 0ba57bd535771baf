"""The Condenser (Gao & Callan, arXiv 2104.08253): a backbone trained to put the text into CLS.

The backbone has two outputs: `early` is that of layer `skip_from`, `late` that of the last layer.
The head, a few more transformer layers over [CLS of late ; tokens of early], predicts the masked
tokens, so whatever the early layers do not represent must come through the CLS vector. After
pre-training the head is dropped, and the backbone is an ordinary BERT, or another of
`backbones.BACKBONES`. A family whose layers do not end in a LayerNorm has a final LayerNorm; here
it is also applied to the input and the output of the head. Where the layers share a bias for
relative positions, those of the head share it too.

The trained vector need not be that of [CLS]: `ModelConfig.representation` defines it, and the head
reads the pooled vector in place of [CLS]. Dense layers after the pooling, if any, apply only to the
vector.
"""

import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int, Shaped, UInt32

from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model.dropout import Input, fold_in
from cocondenser_jax.model.encoder import (
    Embeddings,
    MLMProjection,
    RelativeBias,
    TransformerLayer,
    layer_norm,
    take_rows,
)
from cocondenser_jax.model.vectors import ACTIVATIONS, cut, to_unit_length

# The sites of dropout are numbered through the network, from the embeddings to RetroMAE's decoder:
# each has its own masks.
EMBEDDINGS_SITE = 0


def site_of_layer(index: int) -> int:
    """Returns the site of a layer of the backbone."""
    return EMBEDDINGS_SITE + 1 + index


def site_of_head(config: ModelConfig, index: int) -> int:
    """Returns the site of a layer of the Condenser head."""
    return site_of_layer(config.num_hidden_layers + index)


def site_of_decoder(config: ModelConfig) -> int:
    """Returns the site of the embeddings that the weak decoder of RetroMAE reads."""
    return site_of_head(config, config.n_head_layers)


def whole_layers(config: ModelConfig) -> list[str]:
    """Returns the names of the layers that always compute every row of a span."""
    n_layers = config.num_hidden_layers
    is_read_whole = config.representation.pooling == "mean" or config.skip_from == n_layers
    n_whole = n_layers if is_read_whole else n_layers - 1
    layers = [f"layers_{i}" for i in range(n_whole)]
    return layers + [f"head_{i}" for i in range(config.n_head_layers - 1)]


class CondenserOutput(NamedTuple):
    """The outputs of one forward pass over B spans with M masked positions each."""

    # float32, the representation for retrieval, of `ModelConfig.vector_size` numbers.
    vectors_BxD: Float[Array, "B D"]
    # The head's predictions at the masked positions.
    head_logits_BxMxV: Float[Array, "B M V"] | None
    late_logits_BxMxV: Float[Array, "B M V"] | None  # the backbone's own, with `late_mlm`
    word_logits_BxV: Float[Array, "B V"] | None  # of the pooled vector, with `predicts_words`


class Condenser(nn.Module):
    """A backbone, a Condenser head and the MLM projection that they share.

    Only rows that are needed are computed: in the backbone's last layer, CLS, with `late_mlm` also
    the masked positions, and all rows for a mean; in the head's last layer, the masked positions.
    """

    config: ModelConfig
    dtype: jnp.dtype = jnp.dtype("float32")
    attention: str = "xla"  #: of the layers that compute all rows, see `TransformerLayer`
    predicts_words: bool = False  #: whether the MLM projection reads the pooled vector, too

    def setup(self) -> None:
        """Creates the modules; their names are the parameter names of a checkpoint."""
        config = self.config
        dtype = self.dtype
        self.embeddings = Embeddings(config, dtype)
        whole = whole_layers(config)

        def layer(name: str, index: int | None = None) -> TransformerLayer:
            attention = self.attention if name in whole else "xla"
            return TransformerLayer(config, dtype, index, attention)

        self.layers = [layer(f"layers_{i}", i) for i in range(config.num_hidden_layers)]
        self.head = [layer(f"head_{i}") for i in range(config.n_head_layers)]
        if config.backbone.relative_bias:
            self.relative_bias = RelativeBias(config)
        if config.backbone.final_norm:
            self.final_norm = layer_norm(config, dtype)
        self.mlm = MLMProjection(config, dtype)
        self.dense = [
            nn.Dense(
                layer.out_features,
                use_bias=layer.bias,
                kernel_init=nn.initializers.normal(config.initializer_range),
                precision=jax.lax.Precision.HIGHEST,  # the vector is float32, as are its scores
            )
            for layer in config.representation.dense
        ]

    def __call__(
        self,
        input_ids_BxL: Int[Input, "B L"],
        attention_mask_BxL: Shaped[Input, "B L"],
        masked_positions_BxM: Int[Input, "B M"],
        seeds_B: UInt32[Input, " B"] | None = None,
        decoded: tuple[Int[Input, "B L"], Int[Input, "B M"]] | None = None,
        prompt_lengths_B: Int[Input, " B"] | None = None,
    ) -> CondenserOutput:
        """Runs the whole forward pass.

        Args:
          input_ids_BxL: token ids, [CLS] first, masked, padded on the right.
          attention_mask_BxL: true at tokens, false at padding.
          masked_positions_BxM: positions to predict; unused slots may hold any position, and the
            loss must give their logits weight 0.
          seeds_B: one dropout seed per span (uint32); None for no dropout.
          decoded: ids of a harder-masked copy of the spans and its masked positions: the head reads
            its embeddings instead of `early`, and predicts its tokens, as the weak decoder of
            RetroMAE (arXiv 2205.12035).
          prompt_lengths_B: tokens up to the end of a span's prompt, [CLS] included, which some
            representations do not pool; None for no prompts.
        """
        config = self.config
        pooled_mask_BxL = self._pooled_mask(attention_mask_BxL, prompt_lengths_B)
        rows_BxQ = self._pooled_rows(pooled_mask_BxL)
        if config.late_mlm and rows_BxQ is not None:
            rows_BxQ = jnp.concatenate([rows_BxQ, masked_positions_BxM], axis=1)
        early_BxLxD, late_BxQxD = self._backbone(
            input_ids_BxL, attention_mask_BxL, seeds_B, rows_BxQ
        )
        pooled_BxD = self._pool(late_BxQxD, pooled_mask_BxL)
        head_positions_BxM = masked_positions_BxM
        if decoded is not None:
            decoder_ids_BxL, head_positions_BxM = decoded
            decoder_seeds_B = fold_in(seeds_B, site_of_decoder(config))
            early_BxLxD = self._final(self.embeddings(decoder_ids_BxL, decoder_seeds_B))

        cls_Bx1xD = pooled_BxD[:, None].astype(self.dtype)
        hidden_BxLxD = jnp.concatenate([cls_Bx1xD, early_BxLxD[:, 1:]], axis=1)
        bias_NxLxL = self._position_bias(input_ids_BxL.shape[1])
        for index, layer in enumerate(self.head):
            last = index == config.n_head_layers - 1
            hidden_BxLxD = layer(
                hidden_BxLxD,
                attention_mask_BxL,
                fold_in(seeds_B, site_of_head(config, index)),
                head_positions_BxM if last else None,
                bias_NxLxL,
            )
        words_VxD = self.embeddings.word.embedding
        head_logits_BxMxV = late_logits_BxMxV = word_logits_BxV = None
        if self.head:
            head_logits_BxMxV = self.mlm(self._final(hidden_BxLxD), words_VxD)
        if config.late_mlm:
            late_BxMxD = late_BxQxD[:, 1:]
            if rows_BxQ is None:
                late_BxMxD = take_rows(late_BxQxD, masked_positions_BxM)
            late_logits_BxMxV = self.mlm(late_BxMxD, words_VxD)
        if self.predicts_words:
            word_logits_BxV = self.mlm(cls_Bx1xD, words_VxD)[:, 0]
        logits = head_logits_BxMxV, late_logits_BxMxV, word_logits_BxV
        return CondenserOutput(self._finish(pooled_BxD), *logits)

    def encode(
        self,
        input_ids_BxL: Int[Input, "B L"],
        attention_mask_BxL: Shaped[Input, "B L"],
        seeds_B: UInt32[Input, " B"] | None = None,
        prompt_lengths_B: Int[Input, " B"] | None = None,
    ) -> Float[Array, "B D"]:
        """Returns `vectors_BxD` of `__call__` without computing head and MLM projection."""
        pooled_mask_BxL = self._pooled_mask(attention_mask_BxL, prompt_lengths_B)
        rows_BxQ = self._pooled_rows(pooled_mask_BxL)
        _, late_BxQxD = self._backbone(input_ids_BxL, attention_mask_BxL, seeds_B, rows_BxQ)
        return self._finish(self._pool(late_BxQxD, pooled_mask_BxL))

    def _pooled_mask(
        self,
        attention_mask_BxL: Shaped[Input, "B L"],
        prompt_lengths_B: Int[Input, " B"] | None,
    ) -> Shaped[Input, "B L"]:
        """Returns the mask restricted to the tokens that are pooled."""
        if self.config.representation.include_prompt or prompt_lengths_B is None:
            return attention_mask_BxL
        follows_BxL = jnp.arange(attention_mask_BxL.shape[1])[None] >= prompt_lengths_B[:, None]
        return attention_mask_BxL * follows_BxL

    def _pooled_rows(self, pooled_mask_BxL: Shaped[Input, "B L"]) -> Int[Array, "B 1"] | None:
        """Returns the rows of the last layer that are pooled; None for all."""
        representation = self.config.representation
        if representation.pooling == "mean":
            return None
        if representation.include_prompt:
            return jnp.zeros((len(pooled_mask_BxL), 1), jnp.int32)
        return jnp.argmax(pooled_mask_BxL, axis=1, keepdims=True).astype(jnp.int32)

    def _pool(
        self, late_BxQxD: Float[Array, "B Q D"], pooled_mask_BxL: Shaped[Input, "B L"]
    ) -> Float[Array, "B D"]:
        """Returns float32: the row of [CLS], the first that is pooled, or the mean over tokens."""
        late_BxQxD = late_BxQxD.astype(jnp.float32)
        if self.config.representation.pooling == "cls":
            return late_BxQxD[:, 0]
        weights_BxLx1 = pooled_mask_BxL[:, :, None].astype(jnp.float32)
        n_tokens_Bx1 = jnp.maximum(weights_BxLx1.sum(axis=1), 1.0)
        return (late_BxQxD * weights_BxLx1).sum(axis=1) / n_tokens_Bx1

    def _finish(self, pooled_BxD: Float[Array, "B D"]) -> Float[Array, "B E"]:
        """Returns the vectors: after the dense layers, of length 1 for a cosine, and cut."""
        representation = self.config.representation
        vectors_BxE = pooled_BxD
        for layer, described in zip(self.dense, representation.dense, strict=True):
            vectors_BxE = ACTIVATIONS[described.activation_name](layer(vectors_BxE))
        if representation.is_cosine:
            vectors_BxE = to_unit_length(vectors_BxE)
        return cut(vectors_BxE, self.config.vector_size, representation.similarity)

    def _backbone(
        self,
        input_ids_BxL: Int[Input, "B L"],
        attention_mask_BxL: Shaped[Input, "B L"],
        seeds_B: UInt32[Input, " B"] | None,
        rows_BxQ: Int[Input, "B Q"] | None,
    ) -> tuple[Float[Array, "B L D"], Float[Array, "B Q D"]]:
        """Returns `early_BxLxD` and `late_BxQxD` (all rows with `rows_BxQ=None`)."""
        skip_from = self.config.skip_from
        last = self.config.num_hidden_layers
        bias_NxLxL = self._position_bias(input_ids_BxL.shape[1])
        early_BxLxD = hidden_BxSxD = self.embeddings(
            input_ids_BxL, fold_in(seeds_B, EMBEDDINGS_SITE)
        )
        for index, layer in enumerate(self.layers):
            # A head that reads the late output needs all of its rows.
            rows = rows_BxQ if index + 1 == last != skip_from else None
            layer_seeds_B = fold_in(seeds_B, site_of_layer(index))
            hidden_BxSxD = layer(hidden_BxSxD, attention_mask_BxL, layer_seeds_B, rows, bias_NxLxL)
            if index + 1 == skip_from:
                early_BxLxD = hidden_BxSxD
        late_BxQxD = take_rows(hidden_BxSxD, rows_BxQ) if skip_from == last else hidden_BxSxD
        return self._final(early_BxLxD), self._final(late_BxQxD)

    def _position_bias(self, length: int) -> Float32[Array, "N L L"] | None:
        """Returns the bias that all layers add to attention's logits, in families that have one."""
        return self.relative_bias(length) if self.config.backbone.relative_bias else None

    def _final(self, hidden_BxSxD: Float[Array, "B S D"]) -> Float[Array, "B S D"]:
        """Applies the LayerNorm after the last layer, in families that have one."""
        return self.final_norm(hidden_BxSxD) if self.config.backbone.final_norm else hidden_BxSxD


def init_params(model_config: ModelConfig, seed: int) -> Any:
    """Returns new random parameters, float32, as a tree of arrays."""
    return _init(model_config, jax.random.key(seed))


@functools.partial(jax.jit, static_argnums=0)
def _init(model_config: ModelConfig, key: Array) -> Any:
    """Draws the parameters; at module level, so that its compiled form is cached."""
    one = jnp.zeros((1, 2), jnp.int32)
    return Condenser(model_config).init(key, one, one, one)["params"]
