"""The masked-language-model projection."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model.encoder import dense, gelu, layer_norm


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
