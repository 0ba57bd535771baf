"""The gradient of a loss over a batch too large for one forward pass, exactly.

Gradient cache: Gao et al., *Scaling deep contrastive learning batch size under memory limited
setup*, arXiv 2101.06983. Nothing here knows what is encoded or which loss is meant.

The loss is  contrast(r_1 … r_C) + sum over chunks c of local(c), where r_c are the representations
of chunk c. The first pass computes all r_c and v_c = d contrast / d r_c; the second goes through
the chunks again and back-propagates local(c) + <v_c, r_c>, whose gradient is the whole one.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Params = Any
Chunk = Any  # a pytree of arrays with one leading axis: the examples of a chunk
Sums = dict[str, Float[Array, ""]]  # scalars to be added up over chunks

# Representations may have several axes: a vector for each token, say.
Encode = Callable[[Params, Chunk], Float[Array, "B ..."]]
OnChunk = Callable[[Callable[[Chunk], Any], Chunk], Any]
Contrast = Callable[[Float[Array, "S ..."]], tuple[Float[Array, ""], Any]]
Forward = Callable[[Params, Chunk], tuple[Float[Array, "B ..."], Float[Array, ""], Sums]]


def loss_gradient(
    params: Params,
    chunks: Chunk,
    *,
    forward: Forward,
    encode: Encode,
    contrast: Contrast | None,
    on_chunk: OnChunk = lambda function, chunk: function(chunk),
) -> tuple[Float[Array, ""], Any, Sums, Params]:
    """Computes the gradient of `contrast` over all chunks plus the chunks' own losses.

    With a single chunk, one direct pass does the same for less work; without `contrast` there is no
    first pass.

    Args:
      params: what to differentiate by.
      chunks: a pytree whose arrays have the leading axes [chunks, examples of a chunk].
      forward: (params, chunk) to (representations [examples, size], the chunk's own loss, sums).
        The own losses are added up over the chunks: a mean over a batch is a sum divided by the
        examples of the batch, not of the chunk.
      encode: (params, chunk) to the same representations, with the same dropout, and nothing else.
      contrast: representations of all chunks [chunks * examples, size] to a scalar, and anything
        else: what a loss remembers for the next batch, or `()`. It may gather from other devices;
        the gradient then holds their contributions to these representations.
      on_chunk: calls a function on one of several chunks, and may change the chunk's arrays first
        if no result changes, such as dropping common padding.

    Returns:
      The value of `contrast` and what else it returns (0 and `()` without), the sums added up over
      chunks, and the gradient. The chunks' own losses are in neither value nor sums, unless
      `forward` has them among its sums.
    """
    value: Float[Array, ""] = jnp.zeros(())
    others: Any = ()
    cotangents_CxBxD: Float[Array, "C B ..."] | None = None
    if jax.tree.leaves(chunks)[0].shape[0] == 1:
        chunk = jax.tree.map(lambda x: x[0], chunks)

        def direct(params: Params) -> tuple[Float[Array, ""], tuple[Float[Array, ""], Any, Sums]]:
            reps_BxD, loss, sums = forward(params, chunk)
            contrasted, after = contrast(reps_BxD) if contrast else (value, others)
            return contrasted + loss, (contrasted, after, sums)

        grads, (contrasted, after, sums) = jax.grad(direct, has_aux=True)(params)
        return contrasted, after, sums, grads

    if contrast:
        encode_chunk = functools.partial(encode, params)
        reps_CxBxD = jax.lax.map(lambda chunk: on_chunk(encode_chunk, chunk), chunks)
        flat = (-1, *reps_CxBxD.shape[2:])
        with_gradient = jax.value_and_grad(contrast, has_aux=True)
        (value, others), cotangents_AxD = with_gradient(reps_CxBxD.reshape(flat))
        cotangents_CxBxD = cotangents_AxD.reshape(reps_CxBxD.shape)

    def surrogate(
        params: Params, chunk: Chunk, cotangents_BxD: Float[Array, "B ..."] | None
    ) -> tuple[Float[Array, ""], Sums]:
        reps_BxD, loss, sums = forward(params, chunk)
        return loss if cotangents_BxD is None else loss + jnp.vdot(cotangents_BxD, reps_BxD), sums

    def step(grads: Params, xs: tuple[Chunk, Any]) -> tuple[Params, Sums]:
        chunk, cotangents_BxD = xs

        def add(chunk: Chunk) -> tuple[Params, Sums]:
            chunk_grads, sums = jax.grad(surrogate, has_aux=True)(params, chunk, cotangents_BxD)
            return jax.tree.map(jnp.add, grads, chunk_grads), sums

        return on_chunk(add, chunk)

    zeros = jax.tree.map(jnp.zeros_like, params)
    grads, sums_C = jax.lax.scan(step, zeros, (chunks, cotangents_CxBxD))
    return value, others, jax.tree.map(lambda x: jnp.sum(x, axis=0), sums_C), grads
