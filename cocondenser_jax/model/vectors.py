"""Operations on pooled vectors, as functions of arrays: N vectors of D dimensions.

All compute in float32. `representation.Representation` names those that a model has.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from cocondenser_jax.representation import Similarity

# Those of `representation.ACTIVATIONS`.
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "Identity": lambda x: x,
    "Tanh": jnp.tanh,
    "ReLU": jax.nn.relu,
    "GELU": partial(jax.nn.gelu, approximate=False),
}


def to_unit_length(vectors_NxD: Float[Array, "N D"]) -> Float[Array, "N D"]:
    """Scales vectors to length 1; a zero vector stays zero."""
    squares_Nx1 = jnp.sum(jnp.square(vectors_NxD), axis=1, keepdims=True)
    return vectors_NxD * jax.lax.rsqrt(jnp.maximum(squares_Nx1, 1e-24))


def cut(vectors_NxD: Float[Array, "N D"], size: int, similarity: Similarity) -> Float[Array, "N E"]:
    """Truncates vectors to E = `size` dimensions, and normalizes them again if the model does.

    This is how Matryoshka representations are used (Kusupati et al., arXiv 2205.13147).
    """
    if size == vectors_NxD.shape[1]:
        return vectors_NxD
    vectors_NxE = vectors_NxD[:, :size]
    return to_unit_length(vectors_NxE) if similarity == "cosine" else vectors_NxE
