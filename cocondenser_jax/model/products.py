"""Matrix products whose sums are float32."""

import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def float32_product(subscripts: str, left: jax.Array, right: jax.Array) -> jax.Array:
    """Returns `jnp.einsum` of two arrays of one dtype, summed and kept in float32.

    It takes products whose every axis is in two of the three arrays, with `->`. The gradient
    multiplies in that dtype again, as every other product does. Without this rule the cotangent's
    float32 would make both of its products float32 ones: on a GPU at half the speed, and from
    copies of both arrays in float32. A TPU rounds what it multiplies either way.
    """
    return jnp.einsum(subscripts, left, right, preferred_element_type=jnp.float32)


def _float32_product_forward(
    subscripts: str, left: jax.Array, right: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return float32_product(subscripts, left, right), (left, right)


def _float32_product_backward(
    subscripts: str, factors: tuple[jax.Array, jax.Array], cotangent: jax.Array
) -> tuple[jax.Array, jax.Array]:
    left, right = factors
    left_axes, right_axes, out_axes = subscripts.replace("->", ",").split(",")
    rounded = cotangent.astype(left.dtype)
    return (
        jnp.einsum(f"{out_axes},{right_axes}->{left_axes}", rounded, right),
        jnp.einsum(f"{left_axes},{out_axes}->{right_axes}", left, rounded),
    )


float32_product.defvjp(_float32_product_forward, _float32_product_backward)
