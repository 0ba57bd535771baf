"""The two losses against transcriptions of their formulas in NumPy, float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cocondenser_jax.pretrain.objectives import (
    corpus_contrastive_sum,
    inverse_cloze_sum,
    masked_lm_sum,
)


def on_one_device(loss, cls_SxD):
    return jax.vmap(lambda x: loss(x, "d"), axis_name="d")(cls_SxD[None])[0]


def contrastive_by_the_formula(cls_SxD):
    h = cls_SxD.astype(np.float64)
    total = 0.0
    for a in range(len(h)):
        logits = h[a] @ h.T
        others = np.delete(logits, a)
        partner = logits[a + 1 if a % 2 == 0 else a - 1]
        total += np.log(np.sum(np.exp(others - others.max()))) + others.max() - partner
    return total


@pytest.mark.parametrize("squared_norm", [1.0, 800.0])
def test_contrastive_loss_is_the_formula(squared_norm):
    cls = np.random.default_rng(0).normal(size=(12, 16))
    cls *= np.sqrt(squared_norm) / np.linalg.norm(cls, axis=1, keepdims=True)
    cls = cls.astype(np.float32)
    ours = float(on_one_device(corpus_contrastive_sum, cls))
    assert ours == pytest.approx(contrastive_by_the_formula(cls), rel=2e-6)


def test_contrastive_loss_over_devices_is_that_of_one():
    cls = np.random.default_rng(1).normal(size=(32, 8)).astype(np.float32)
    per_device = jax.pmap(lambda x: corpus_contrastive_sum(x, "d"), axis_name="d")
    sums = per_device(cls.reshape(8, 4, 8))
    assert float(sums.sum()) == pytest.approx(contrastive_by_the_formula(cls), rel=1e-6)


def test_contrastive_gradient_over_devices_needs_no_scaling():
    cls = np.random.default_rng(2).normal(size=(32, 8)).astype(np.float32)
    whole = jax.grad(functools.partial(on_one_device, corpus_contrastive_sum))(cls)
    per_device = jax.pmap(jax.grad(lambda x: corpus_contrastive_sum(x, "d")), axis_name="d")
    parts = per_device(cls.reshape(8, 4, 8)).reshape(32, 8)
    np.testing.assert_allclose(parts, whole, rtol=1e-4, atol=1e-6)


def cloze_by_the_formula(cls_SxD):
    queries, texts = cls_SxD.astype(np.float64)[::2], cls_SxD.astype(np.float64)[1::2]
    exp = [[np.exp(q @ b) for b in texts] for q in queries]
    return -sum(np.log(row[i] / sum(row)) for i, row in enumerate(exp))


def test_inverse_cloze_loss_is_the_formula():
    cls = np.random.default_rng(4).normal(size=(16, 5)).astype(np.float32)
    expected = cloze_by_the_formula(cls)
    assert float(on_one_device(inverse_cloze_sum, cls)) == pytest.approx(expected, rel=2e-6)
    per_device = jax.pmap(lambda x: inverse_cloze_sum(x, "d"), axis_name="d")
    assert float(per_device(cls.reshape(8, 2, 5)).sum()) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_masked_lm_loss_is_the_formula(dtype):
    rng = np.random.default_rng(3)
    logits = jnp.asarray(3 * rng.normal(size=(4, 3, 11)), dtype)
    labels = rng.integers(0, 11, (4, 3))
    weights = np.array([[1, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 0]], np.float32)
    exact = np.asarray(logits, np.float64)
    expected = sum(
        weights[b, m] * (np.log(np.exp(exact[b, m]).sum()) - exact[b, m, labels[b, m]])
        for b in range(4)
        for m in range(3)
    )
    ours = float(masked_lm_sum(logits, jnp.asarray(labels), jnp.asarray(weights)))
    assert ours == pytest.approx(expected, rel=1e-6)


def test_spans_without_masks_give_zero_and_no_nan():
    logits = jnp.ones((2, 3, 7))
    labels, weights = jnp.zeros((2, 3), int), jnp.zeros((2, 3))
    value, grad = jax.value_and_grad(masked_lm_sum)(logits, labels, weights)
    assert float(value) == 0.0
    assert not np.asarray(grad).any()


def test_all_products_of_the_contrastive_loss_are_in_full_precision():
    """Else a TPU multiplies bfloat16 numbers; no processor here would."""
    loss = functools.partial(on_one_device, corpus_contrastive_sum)
    program = jax.make_jaxpr(jax.value_and_grad(loss))(jnp.ones((4, 3)))
    found = [e.params["precision"] for e in program.eqns if e.primitive.name == "dot_general"]
    assert len(found) == 3  # the logits, and a gradient for each side of them
    assert set(found) == {(jax.lax.Precision.HIGHEST,) * 2}
