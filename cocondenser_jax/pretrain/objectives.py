"""The losses, as pure functions of arrays, and the objectives of pre-training made of them.

The losses return sums, so that a caller divides once.

Sums over what a device holds, divided by a count over all devices, do not depend on how the batch
is cut into chunks or spread over devices and hosts.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def masked_lm_sum(
    logits_BxMxV: Float[Array, "B M V"],
    labels_BxM: Int[Array, "B M"],
    weights_BxM: Float[Array, "B M"],
) -> Float[Array, ""]:
    """Returns the weighted sum of cross-entropies at the masked positions, a float32 scalar.

    Args:
      logits_BxMxV: predictions, any float type; the softmax is computed in float32.
      labels_BxM: the token ids that were masked.
      weights_BxM: 1 for slots that hold a masked token, 0 for unused ones.
    """
    # Flat, as they were multiplied: a TPU would copy them for a softmax by spans.
    logits_SxV = logits_BxMxV.reshape(-1, logits_BxMxV.shape[2]).astype(jnp.float32)
    return jnp.sum(_cross_entropy(logits_SxV, labels_BxM.reshape(-1)) * weights_BxM.reshape(-1))


def corpus_contrastive_sum(cls_SxD: Float[Array, "S D"], axis_name: str) -> Float[Array, ""]:
    """Returns the sum over this device's spans of the corpus-level contrastive loss.

    Equation 6 of Gao & Callan, arXiv 2108.05540: for span j of document i,
    L_co = -log exp<h_i1, h_i2> / sum over kl != ij of exp<h_ij, h_kl>, where kl runs over the spans
    of all devices of all hosts, which `axis_name` is mapped over. Rows 2i and 2i + 1 of `cls_SxD`,
    float32, are two spans of one document, and every device holds the same number of rows.
    """
    all_AxD, own_S = _gather(cls_SxD, axis_name)
    logits_SxA = _inner_products(cls_SxD, all_AxD)
    itself_SxA = own_S[:, None] == jnp.arange(all_AxD.shape[0])[None, :]
    logits_SxA = jnp.where(itself_SxA, -jnp.inf, logits_SxA)
    return jnp.sum(_cross_entropy(logits_SxA, own_S ^ 1))


def inverse_cloze_sum(cls_SxD: Float[Array, "S D"], axis_name: str) -> Float[Array, ""]:
    """Returns the sum over this device's sentences of the loss of the inverse cloze task.

    Equations 7 and 8 of Lee, Chang & Toutanova, arXiv 1906.00300: for sentence q_i taken out of
    text b_i, L = -log exp<q_i, b_i> / sum over k of exp<q_i, b_k>, where k runs over the texts of
    all devices of all hosts. Row 2i of `cls_SxD` is a sentence, row 2i + 1 its text; otherwise as
    `corpus_contrastive_sum`.
    """
    texts_AxD, own_I = _gather(cls_SxD[1::2], axis_name)
    return jnp.sum(_cross_entropy(_inner_products(cls_SxD[::2], texts_AxD), own_I))


class Objective(NamedTuple):
    """What is learned from what."""

    example: str  # as in `BatchSpec`
    predicts_tokens: bool  # whether tokens are masked and predicted
    has_head: bool  # whether a Condenser head predicts them, too
    # Vectors of a device's rows and the mapped axis to the sum of a loss, and for how many rows of
    # an example it is summed.
    contrast: Callable[[jax.Array, str], jax.Array] | None = None
    n_contrasted: int = 0


# The names of `config.train.objective`.
OBJECTIVES = {
    # Devlin et al., arXiv 1810.04805, without the next sentence.
    "mlm": Objective("span", predicts_tokens=True, has_head=False),
    # Gao & Callan, arXiv 2104.08253.
    "condenser": Objective("span", predicts_tokens=True, has_head=True),
    # Gao & Callan, arXiv 2108.05540.
    "cocondenser": Objective(
        "pair",
        predicts_tokens=True,
        has_head=True,
        contrast=corpus_contrastive_sum,
        n_contrasted=2,
    ),
    # Its ablation without masked tokens.
    "contrastive": Objective(
        "pair",
        predicts_tokens=False,
        has_head=False,
        contrast=corpus_contrastive_sum,
        n_contrasted=2,
    ),
    # Lee et al., arXiv 1906.00300.
    "ict": Objective(
        "cloze",
        predicts_tokens=False,
        has_head=False,
        contrast=inverse_cloze_sum,
        n_contrasted=1,
    ),
}


def _gather(
    cls_SxD: Float[Array, "S D"], axis_name: str
) -> tuple[Float[Array, "A D"], Int[Array, " S"]]:
    """Returns the vectors of all devices, and which of them are this one's."""
    n_local = cls_SxD.shape[0]
    all_AxD = jax.lax.all_gather(cls_SxD, axis_name, tiled=True)
    # The index over all devices of all hosts, never the one within a host.
    return all_AxD, jax.lax.axis_index(axis_name) * n_local + jnp.arange(n_local)


def _inner_products(
    left_SxD: Float[Array, "S D"], right_AxD: Float[Array, "A D"]
) -> Float[Array, "S A"]:
    # HIGHEST: bfloat16 has a spacing of 1.0 at logits of 200.
    return jnp.matmul(left_SxD, right_AxD.T, precision=jax.lax.Precision.HIGHEST)


def _cross_entropy(
    logits_SxV: Float[Array, "S V"], labels_S: Int[Array, " S"]
) -> Float[Array, " S"]:
    """Returns −log softmax of the logits, along their last axis, at the labels."""
    label_logits_S = jnp.take_along_axis(logits_SxV, labels_S[:, None], axis=1)[:, 0]
    return jax.nn.logsumexp(logits_SxV, axis=1) - label_logits_S
