"""Matrix products whose sums are float32."""

import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def float32_product(subscripts: str, left: jax.Array, right: jax.Array) -> jax.Array:
    """Returns `jnp.einsum` of two arrays of one dtype, summed and kept in float32.

    Every axis must occur in exactly two of the three arrays, and the subscripts must contain `->`.
    The gradient multiplies in that dtype too, like all other products. Without this rule the
    float32 cotangent would turn both of its products into float32 ones, which run at half the speed
    on a GPU and copy both arrays to float32. A TPU rounds the operands either way.
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
