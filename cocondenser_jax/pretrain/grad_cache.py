"""The exact gradient of a loss over a batch too large for one forward pass.

Gradient cache: Gao et al., *Scaling deep contrastive learning batch size under memory limited
setup*, arXiv 2101.06983. This module is independent of the encoder and the loss.

The loss is  contrast(r_1 … r_C) + sum over chunks c of local(c), where r_c are the representations
of chunk c. The first pass computes all r_c and v_c = d contrast / d r_c; the second goes through
the chunks again and back-propagates local(c) + <v_c, r_c>; summed over chunks, this is the whole
gradient.

Some chunks need no second forward pass: where memory allows, their activations are kept until v_c
is known. They are then computed as one large chunk. If all are kept, there is one pass.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Params = Any
Chunk = Any  # a pytree of arrays with one leading axis: the examples of a chunk
Sums = dict[str, Float[Array, ""]]  # scalars that are summed over chunks

# Representations may have several axes, such as a vector for each token.
Encode = Callable[[Params, Chunk], Float[Array, "B ..."]]
OnChunk = Callable[[Callable[[Chunk], Any], Chunk], Any]
Contrast = Callable[[Float[Array, "S ..."]], tuple[Float[Array, ""], Any]]
Forward = Callable[[Params, Chunk], tuple[Float[Array, "B ..."], Float[Array, ""], Sums]]


def loss_gradient(  # noqa: PLR0913  # by keyword
    params: Params,
    chunks: Chunk,
    *,
    forward: Forward,
    encode: Encode,
    contrast: Contrast | None,
    on_chunk: OnChunk = lambda function, chunk: function(chunk),
    n_kept: int = 0,
) -> tuple[Float[Array, ""], Any, Sums, Params]:
    """Computes the gradient of `contrast` over all chunks plus the chunks' own losses.

    With a single chunk, one direct pass gives the same result with less work; without `contrast`
    there is no first pass.

    Args:
      params: the parameters to differentiate with respect to.
      chunks: a pytree whose arrays have the leading axes [chunks, examples of a chunk].
      forward: (params, chunk) to (representations [examples, size], the chunk's own loss, sums).
        These losses are summed over the chunks, so for a mean over the batch divide by the number
        of examples in the batch, not in the chunk.
      encode: (params, chunk) to the same representations, with the same dropout, and nothing else.
      contrast: representations of all chunks [chunks * examples, size] to a scalar and a second
        value, such as the loss's memory for the next batch, or `()`. It may gather from other
        devices; the gradient then includes their contributions to these representations.
      on_chunk: calls a function on one of several chunks; it may first change the chunk's arrays in
        ways that do not affect the result, such as dropping common padding.
      n_kept: how many chunks, counted from the end, keep their activations for their gradient.
        Keeping all is one direct pass; without `contrast` none needs to be kept.

    Returns:
      The value of `contrast` and its second return value (0 and `()` without it), the sums over
      chunks, and the gradient. The chunks' own losses are included only if `forward` also returns
      them among its sums.
    """
    n_chunks = jax.tree.leaves(chunks)[0].shape[0]
    if n_chunks == 1 or (contrast and n_kept >= n_chunks):
        return _direct_gradient(params, _joined(chunks), forward, contrast)
    value: Float[Array, ""] = jnp.zeros(())
    others: Any = ()
    cotangents_CxBxD: Float[Array, "C B ..."] | None = None
    grads = jax.tree.map(jnp.zeros_like, params)
    kept_sums: Sums | None = None
    if contrast:
        n_again = n_chunks - n_kept
        chunks, kept = (
            jax.tree.map(lambda x, part=part: x[part], chunks)
            for part in (slice(n_again), slice(n_again, None))
        )
        reps = []
        if n_kept:
            forward_kept = functools.partial(_forward_kept, forward, _joined(kept))
            kept_reps, pull_back, kept_sums = jax.vjp(forward_kept, params, has_aux=True)
            reps.append(kept_reps[0])
        encode_chunk = functools.partial(encode, params)
        reps_CxBxD = jax.lax.map(lambda chunk: on_chunk(encode_chunk, chunk), chunks)
        n_first = math.prod(reps_CxBxD.shape[:2])
        reps.insert(0, reps_CxBxD.reshape(n_first, *reps_CxBxD.shape[2:]))
        with_gradient = jax.value_and_grad(contrast, has_aux=True)
        (value, others), cotangents_AxD = with_gradient(_concatenated(reps))
        cotangents_CxBxD = cotangents_AxD[:n_first].reshape(reps_CxBxD.shape)
        if n_kept:
            (grads,) = pull_back((cotangents_AxD[n_first:], jnp.ones_like(kept_reps[1])))
    grads, sums = _add_gradients(grads, params, chunks, cotangents_CxBxD, forward, on_chunk)
    if kept_sums is not None:
        sums = jax.tree.map(jnp.add, sums, kept_sums)
    return value, others, sums, grads


def _direct_gradient(
    params: Params, chunk: Chunk, forward: Forward, contrast: Contrast | None
) -> tuple[Float[Array, ""], Any, Sums, Params]:
    """Computes `loss_gradient` for a single chunk."""

    def direct(params: Params) -> tuple[Float[Array, ""], tuple[Float[Array, ""], Any, Sums]]:
        reps_BxD, loss, sums = forward(params, chunk)
        contrasted, after = contrast(reps_BxD) if contrast else (jnp.zeros(()), ())
        return contrasted + loss, (contrasted, after, sums)

    grads, (contrasted, after, sums) = jax.grad(direct, has_aux=True)(params)
    return contrasted, after, sums, grads


def _forward_kept(
    forward: Forward, chunk: Chunk, params: Params
) -> tuple[tuple[Float[Array, "B ..."], Float[Array, ""]], Sums]:
    """Returns (representations, own loss) and sums."""
    reps_BxD, loss, sums = forward(params, chunk)
    return (reps_BxD, loss), sums


def _add_gradients(
    grads: Params,
    params: Params,
    chunks: Chunk,
    cotangents_CxBxD: Float[Array, "C B ..."] | None,
    forward: Forward,
    on_chunk: OnChunk,
) -> tuple[Params, Sums]:
    """Adds to `grads` those of the chunks' surrogates; returns also the sums over chunks.

    Vectors are accumulated as one array: one addition per bias, and one copy out of the branch for
    a chunk's length, would be a quarter of a chunk's launches on a GPU.
    """

    def surrogate(
        params: Params, chunk: Chunk, cotangents_BxD: Float[Array, "B ..."] | None
    ) -> tuple[Float[Array, ""], Sums]:
        reps_BxD, loss, sums = forward(params, chunk)
        return loss if cotangents_BxD is None else loss + jnp.vdot(cotangents_BxD, reps_BxD), sums

    def step(joined: list[jax.Array], xs: tuple[Chunk, Any]) -> tuple[list[jax.Array], Sums]:
        chunk, cotangents_BxD = xs

        def add(chunk: Chunk) -> tuple[list[jax.Array], Sums]:
            chunk_grads, sums = jax.grad(surrogate, has_aux=True)(params, chunk, cotangents_BxD)
            return jax.tree.map(jnp.add, joined, _join_vectors(chunk_grads)), sums

        return on_chunk(add, chunk)

    joined, sums_C = jax.lax.scan(step, _join_vectors(grads), (chunks, cotangents_CxBxD))
    return _split_vectors(joined, params), jax.tree.map(lambda x: jnp.sum(x, axis=0), sums_C)


def _join_vectors(tree: Params) -> list[jax.Array]:
    """Returns the matrices of a tree, followed by all its vectors as one array."""
    leaves = jax.tree.leaves(tree)
    vectors = [x.reshape(-1) for x in leaves if x.ndim < 2]
    return [x for x in leaves if x.ndim >= 2] + ([jnp.concatenate(vectors)] if vectors else [])


def _split_vectors(joined: list[jax.Array], like: Params) -> Params:
    """Inverts `_join_vectors`, with the structure of another tree."""
    leaves, structure = jax.tree.flatten(like)
    matrices, vector = iter(joined), joined[-1]
    end = 0
    found = []
    for x in leaves:
        if x.ndim < 2:
            found.append(vector[end : end + x.size].reshape(x.shape))
            end += x.size
        else:
            found.append(next(matrices))
    return jax.tree.unflatten(structure, found)


def _joined(chunks: Chunk) -> Chunk:
    """Joins several chunks into one."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), chunks)


def _concatenated(arrays: list[jax.Array]) -> Float[Array, "S ..."]:
    return arrays[0] if len(arrays) == 1 else jnp.concatenate(arrays)
