"""The losses, as pure functions of arrays, and the objectives of pre-training made of them.

The losses return sums, so that a caller divides once.

Sums over what a device holds, divided by a count over all devices, do not depend on how the batch
is cut into chunks or spread over devices and hosts.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

# The largest block of a contrastive loss: 128 MiB of scores. The paper's batch has 2^24 on one
# device.
MOST_SCORES = 2**25


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
    # Flat, like the product that made them: a TPU would copy them for a softmax per span.
    logits_SxV = logits_BxMxV.reshape(-1, logits_BxMxV.shape[2]).astype(jnp.float32)
    return jnp.sum(_cross_entropy(logits_SxV, labels_BxM.reshape(-1)) * weights_BxM.reshape(-1))


def bag_of_words_sum(
    logits_BxV: Float[Array, "B V"], ids_BxL: Int[Array, "B L"], is_word_BxL: Bool[Array, "B L"]
) -> Float[Array, ""]:
    """Returns the sum over spans of the loss of bag-of-words prediction, a float32 scalar.

    Of a span whose distinct tokens are T, with one row of logits z for all of them (Ma et al.,
    arXiv 2401.11248): L = -1/|T| sum over x in T of log softmax(z)_x.

    Args:
      logits_BxV: what the vector of a span predicts, float32.
      ids_BxL: the tokens of the spans, unmasked.
      is_word_BxL: which of them are to be predicted.
    """
    rows_Bx1 = jnp.arange(ids_BxL.shape[0])[:, None]
    is_in_bag_BxV = jnp.zeros(logits_BxV.shape, bool).at[rows_Bx1, ids_BxL].max(is_word_BxL)
    # Logits of words that pad a vocabulary are -inf.
    sums_B = jnp.sum(jnp.where(is_in_bag_BxV, logits_BxV, 0.0), axis=1)
    n_words_B = jnp.maximum(jnp.sum(is_in_bag_BxV, axis=1), 1)
    return jnp.sum(jax.nn.logsumexp(logits_BxV, axis=1) - sums_B / n_words_B)


def corpus_contrastive_sum(
    vectors_SxD: Float[Array, "S D"],
    origins_Sx2: Int[Array, "S 2"],
    axis_name: str,
    scale: float = 1.0,
) -> Float[Array, ""]:
    """Returns the sum over this device's spans of the corpus-level contrastive loss.

    Equation 6 of Gao & Callan, arXiv 2108.05540: for span j of document i, L_co = -log exp s<h_i1,
    h_i2> / sum over kl != ij of exp s<h_ij, h_kl>, where kl runs over the spans of all devices of
    all hosts, which `axis_name` maps over. The paper has s = 1; the temperature of other papers is
    1 / s.

    Args:
      vectors_SxD: float32; rows 2i and 2i + 1 are a pair. Every device has the same number of rows.
      origins_Sx2: of each row, as in `Batch`; rows that share an origin are not negatives of each
        other.
      axis_name: of the mapped axis.
      scale: s.
    """
    all_AxD, own_S = _gather(vectors_SxD, axis_name)
    all_Ax2, _ = _gather(origins_Sx2, axis_name)

    def loss_sum(rows: tuple[jax.Array, jax.Array, jax.Array]) -> Float[Array, ""]:
        vectors_RxD, origins_Rx2, own_R = rows
        allowed_RxA = _may_compare(origins_Rx2, all_Ax2)
        logits_RxA = scale * _inner_products(vectors_RxD, all_AxD)
        return jnp.sum(_positive_loss(logits_RxA, allowed_RxA, own_R ^ 1))

    return _sum_over_rows(loss_sum, (vectors_SxD, origins_Sx2, own_S), all_AxD.shape[0])


def inverse_cloze_sum(
    vectors_SxD: Float[Array, "S D"],
    origins_Sx2: Int[Array, "S 2"],
    axis_name: str,
    scale: float = 1.0,
) -> Float[Array, ""]:
    """Returns the sum over this device's sentences of the loss of the inverse cloze task.

    Equations 7 and 8 of Lee, Chang & Toutanova, arXiv 1906.00300: for sentence q_i taken out of
    text b_i, L = -log exp s<q_i, b_i> / sum over k of exp s<q_i, b_k>, where k runs over the texts
    of all devices of all hosts. Row 2i of `vectors_SxD` is a sentence, row 2i + 1 its text;
    otherwise as `corpus_contrastive_sum`.
    """
    texts_AxD, own_I = _gather(vectors_SxD[1::2], axis_name)
    origins_Ax2, _ = _gather(origins_Sx2[1::2], axis_name)

    def loss_sum(rows: tuple[jax.Array, jax.Array, jax.Array]) -> Float[Array, ""]:
        sentences_RxD, origins_Rx2, own_R = rows
        logits_RxA = scale * _inner_products(sentences_RxD, texts_AxD)
        allowed_RxA = _may_compare(origins_Rx2, origins_Ax2)
        return jnp.sum(_positive_loss(logits_RxA, allowed_RxA, own_R))

    rows = vectors_SxD[::2], origins_Sx2[::2], own_I
    return _sum_over_rows(loss_sum, rows, texts_AxD.shape[0])


# The memory of a contrastive loss between steps: a tree of arrays, the same on every device.
Memory = Any
# Vectors and origins of a device's rows, the memory before a step, mapped axis and scale to the sum
# of a loss and the memory after the step. No gradient goes through a memory.
Contrast = Callable[
    [Float[Array, "S D"], Int[Array, "S 2"], Memory, str, float], tuple[Float[Array, ""], Memory]
]


def without_memory(loss_sum: Callable[..., Float[Array, ""]]) -> Contrast:
    """Returns the contrast whose sum is that of `loss_sum`, a function of all but the memory."""

    def contrast(
        vectors_SxD: Float[Array, "S D"],
        origins_Sx2: Int[Array, "S 2"],
        memory: Memory,
        axis_name: str,
        scale: float,
    ) -> tuple[Float[Array, ""], Memory]:
        return loss_sum(vectors_SxD, origins_Sx2, axis_name, scale), memory

    return contrast


class Objective(NamedTuple):
    """A pre-training objective: its examples and its losses."""

    example: str | None = None  # a name in `EXAMPLES`; None: what `config.data.pairs` names
    predicts_tokens: bool = False  # whether tokens are masked and predicted
    has_head: bool = False  # whether a Condenser head predicts them, too
    predicts_words: bool = False  # whether the vector predicts which words occur in its span
    n_copies: int = 1  # rows of a span: the head reads the embeddings of the second
    contrast: Contrast | None = None
    n_contrasted: int = 0  # rows of an example for which it is summed
    # From the size of the vectors to the memory before the first step.
    new_memory: Callable[[int], Memory] = lambda size: ()


# The names of `config.train.objective`.
OBJECTIVES = {
    # Devlin et al., arXiv 1810.04805, without the next sentence.
    "mlm": Objective(example="span", predicts_tokens=True),
    # Gao & Callan, arXiv 2104.08253.
    "condenser": Objective(example="span", predicts_tokens=True, has_head=True),
    # Xiao et al., arXiv 2205.12035, section 3.2: with `model.n_head_layers=1` its weak decoder.
    "retromae": Objective(
        example="copies",
        predicts_tokens=True,
        has_head=True,
        n_copies=2,
    ),
    # Ma et al., arXiv 2401.11248: bag-of-words prediction in place of a decoder.
    "bow": Objective(example="span", predicts_tokens=True, predicts_words=True),
    # Gao & Callan, arXiv 2108.05540.
    "cocondenser": Objective(
        predicts_tokens=True,
        has_head=True,
        contrast=without_memory(corpus_contrastive_sum),
        n_contrasted=2,
    ),
    # coCondenser with bag-of-words prediction in place of the head.
    "cobow": Objective(
        predicts_tokens=True,
        predicts_words=True,
        contrast=without_memory(corpus_contrastive_sum),
        n_contrasted=2,
    ),
    # coCondenser's ablation without masked tokens.
    "contrastive": Objective(contrast=without_memory(corpus_contrastive_sum), n_contrasted=2),
    # Lee et al., arXiv 1906.00300.
    "ict": Objective(example="cloze", contrast=without_memory(inverse_cloze_sum), n_contrasted=1),
}


def _gather(
    values_SxD: Shaped[Array, "S D"], axis_name: str
) -> tuple[Shaped[Array, "A D"], Int[Array, " S"]]:
    """Returns the rows of all devices, and the indices of this device's rows among them."""
    n_local = values_SxD.shape[0]
    all_AxD = jax.lax.all_gather(values_SxD, axis_name, tiled=True)
    # The index over all devices of all hosts, not the index within a host.
    return all_AxD, jax.lax.axis_index(axis_name) * n_local + jnp.arange(n_local)


def _sum_over_rows(
    loss_sum: Callable[[Any], Float[Array, ""]], rows: Any, n_columns: int
) -> Float[Array, ""]:
    """Returns the loss of rows that are compared with `n_columns` others each.

    More than `MOST_SCORES` scores are computed in blocks of rows and recomputed for the gradient,
    so that only one block is in memory.
    """
    n_rows = len(jax.tree.leaves(rows)[0])
    if n_rows * n_columns <= MOST_SCORES:
        return loss_sum(rows)
    sizes = [size for size in range(1, n_rows + 1) if n_rows % size == 0]
    block = max((size for size in sizes if size * n_columns <= MOST_SCORES), default=1)
    blocks = jax.tree.map(lambda x: x.reshape(-1, block, *x.shape[1:]), rows)
    return jnp.sum(jax.lax.map(jax.checkpoint(loss_sum), blocks))


def _may_compare(origins_Sx2: Int[Array, "S 2"], all_Ax2: Int[Array, "A 2"]) -> Bool[Array, "S A"]:
    """Returns, for each row, which rows of all devices differ from it in document and text."""
    return jnp.all(origins_Sx2[:, None] != all_Ax2[None], axis=2)


def _positive_loss(
    logits_SxA: Float[Array, "S A"], allowed_SxA: Bool[Array, "S A"], positives_S: Int[Array, " S"]
) -> Float[Array, " S"]:
    """Returns −log softmax at each row's positive, over the positive and the allowed negatives."""
    is_positive_SxA = positives_S[:, None] == jnp.arange(logits_SxA.shape[1])[None]
    logits_SxA = jnp.where(allowed_SxA | is_positive_SxA, logits_SxA, -jnp.inf)
    return _cross_entropy(logits_SxA, positives_S)


def _inner_products(
    left_SxD: Float[Array, "S D"], right_AxD: Float[Array, "A D"]
) -> Float[Array, "S A"]:
    # HIGHEST: bfloat16 has a spacing of 1.0 at logits of 200.
    return jnp.matmul(left_SxD, right_AxD.T, precision=jax.lax.Precision.HIGHEST)


@jax.custom_vjp
def _cross_entropy(
    logits_SxV: Float[Array, "S V"], labels_S: Int[Array, " S"]
) -> Float[Array, " S"]:
    """Returns −log softmax of the logits, along their last axis, at the labels.

    The gradient is softmax − one-hot, element by element: JAX's own gradient would first scatter
    the labels' part into an array of zeros as large as the logits, which a GPU writes and reads.
    """
    return _cross_entropy_forward(logits_SxV, labels_S)[0]


def _cross_entropy_forward(
    logits_SxV: Float[Array, "S V"], labels_S: Int[Array, " S"]
) -> tuple[Float[Array, " S"], tuple[Any, Int[Array, " S"]]]:
    sums_S, pull_back = jax.vjp(functools.partial(jax.nn.logsumexp, axis=1), logits_SxV)
    label_logits_S = jnp.take_along_axis(logits_SxV, labels_S[:, None], axis=1)[:, 0]
    return sums_S - label_logits_S, (pull_back, labels_S)


def _cross_entropy_backward(
    kept: tuple[Any, Int[Array, " S"]], cotangents_S: Float[Array, " S"]
) -> tuple[Float[Array, "S V"], None]:
    pull_back, labels_S = kept
    (softmax_SxV,) = pull_back(cotangents_S)
    is_label_SxV = labels_S[:, None] == jnp.arange(softmax_SxV.shape[1])[None]
    return softmax_SxV - jnp.where(is_label_SxV, cotangents_S[:, None], 0.0), None


_cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)
