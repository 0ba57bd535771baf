"""The products that are kept in float32, and what their gradients multiply."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cocondenser_jax.model.products import float32_product

SCORES, LOGITS = "bnhq,bnhl->bnql", "sd,vd->sv"  # of attention, and of words


def factors(subscripts, dtype):
    """Returns two arrays that can be multiplied, and the cotangent of their product."""
    sizes = {"b": 2, "n": 3, "h": 8, "q": 5, "l": 7, "s": 6, "d": 8, "v": 9}
    rng = np.random.default_rng(0)
    names = subscripts.replace("->", ",").split(",")
    arrays = [rng.normal(size=[sizes[axis] for axis in name]) for name in names]
    left, right, cotangent = (jnp.asarray(x, jnp.float32) for x in arrays)
    return left.astype(dtype), right.astype(dtype), cotangent


def gradient(subscripts, left, right, cotangent):
    _, pull_back = jax.vjp(lambda a, b: float32_product(subscripts, a, b), left, right)
    return pull_back(cotangent)


@pytest.mark.parametrize("subscripts", [SCORES, LOGITS])
def test_a_product_and_its_gradient_are_those_of_einsum(subscripts):
    left, right, cotangent = factors(subscripts, jnp.float32)
    expected, pull_back = jax.vjp(lambda a, b: jnp.einsum(subscripts, a, b), left, right)
    np.testing.assert_array_equal(float32_product(subscripts, left, right), expected)
    for ours, theirs in zip(
        gradient(subscripts, left, right, cotangent), pull_back(cotangent), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("subscripts", [SCORES, LOGITS])
def test_in_bfloat16_the_sum_is_float32_and_no_gradient_multiplies_float32(subscripts):
    left, right, cotangent = factors(subscripts, jnp.bfloat16)
    product = float32_product(subscripts, left, right)
    exact = np.einsum(subscripts, np.asarray(left, np.float64), np.asarray(right, np.float64))
    assert product.dtype == jnp.float32
    np.testing.assert_allclose(product, exact, rtol=1e-5, atol=1e-5)  # bfloat16 would miss by 1e-2
    jaxpr = jax.make_jaxpr(lambda *arrays: gradient(subscripts, *arrays))(left, right, cotangent)
    read = {
        str(x.aval.dtype)
        for equation in jaxpr.eqns
        if equation.primitive.name == "dot_general"
        for x in equation.invars
    }
    assert read == {"bfloat16"}
    rounded = np.asarray(cotangent.astype(jnp.bfloat16), np.float64)
    left_axes, right_axes, out_axes = subscripts.replace("->", ",").split(",")
    by_left, by_right = gradient(subscripts, left, right, cotangent)
    expected = np.einsum(f"{out_axes},{right_axes}->{left_axes}", rounded, np.float64(right))
    np.testing.assert_allclose(np.float64(by_left), expected, rtol=1e-2, atol=1e-2)
    expected = np.einsum(f"{out_axes},{left_axes}->{right_axes}", rounded, np.float64(left))
    np.testing.assert_allclose(np.float64(by_right), expected, rtol=1e-2, atol=1e-2)
