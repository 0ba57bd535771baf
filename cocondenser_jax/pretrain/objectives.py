"""The two losses, as pure functions of arrays. Both return sums, so that a caller divides once.

Sums over what a device holds, divided by a count over all devices, do not depend on how the batch
is cut into chunks or spread over devices and hosts.
"""

import jax
import jax.numpy as jnp


def masked_lm_sum(
    logits_BxMxV: jax.Array, labels_BxM: jax.Array, weights_BxM: jax.Array
) -> jax.Array:
    """Returns the weighted sum of cross-entropies at the masked positions, a float32 scalar.

    Args:
      logits_BxMxV: predictions, any float type; the softmax is computed in float32.
      labels_BxM: the token ids that were masked.
      weights_BxM: 1 for slots that hold a masked token, 0 for unused ones.
    """
    logits_BxMxV = logits_BxMxV.astype(jnp.float32)
    label_logits_BxM = jnp.take_along_axis(logits_BxMxV, labels_BxM[:, :, None], axis=2)[:, :, 0]
    losses_BxM = jax.nn.logsumexp(logits_BxMxV, axis=-1) - label_logits_BxM
    return jnp.sum(losses_BxM * weights_BxM)


def corpus_contrastive_sum(cls_SxD: jax.Array, axis_name: str | None = None) -> jax.Array:
    """Returns the sum over this device's spans of the corpus-level contrastive loss.

    Equation 6 of Gao & Callan, arXiv 2108.05540: for span j of document i,
    L_co = -log exp<h_i1, h_i2> / sum over kl != ij of exp<h_ij, h_kl>, where kl runs over the spans
    of all devices of all hosts.

    Args:
      cls_SxD: float32 CLS vectors; rows 2i and 2i + 1 are two spans of one document. Every device
        holds the same number of rows.
      axis_name: the mapped axis over devices; None where there is one device.
    """
    n_local = cls_SxD.shape[0]
    if axis_name is None:
        all_AxD, first = cls_SxD, jnp.zeros((), jnp.int32)
    else:
        all_AxD = jax.lax.all_gather(cls_SxD, axis_name, tiled=True)
        # The index over all devices of all hosts, never the one within a host.
        first = jax.lax.axis_index(axis_name) * n_local
    own_S = first + jnp.arange(n_local)
    # HIGHEST: bfloat16 has a spacing of 1.0 at logits of 200.
    logits_SxA = jnp.matmul(cls_SxD, all_AxD.T, precision=jax.lax.Precision.HIGHEST)
    itself_SxA = own_S[:, None] == jnp.arange(all_AxD.shape[0])[None, :]
    logits_SxA = jnp.where(itself_SxA, -jnp.inf, logits_SxA)
    partner_logits_S = jnp.take_along_axis(logits_SxA, (own_S ^ 1)[:, None], axis=1)[:, 0]
    return jnp.sum(jax.nn.logsumexp(logits_SxA, axis=1) - partner_logits_S)
