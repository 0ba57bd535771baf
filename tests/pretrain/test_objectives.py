"""The losses against transcriptions of their formulas in NumPy, float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cocondenser_jax.pretrain import objectives
from cocondenser_jax.pretrain.objectives import (
    bag_of_words_sum,
    corpus_contrastive_sum,
    inverse_cloze_sum,
    masked_lm_sum,
)


def of_documents(n_rows):
    """Origins of rows of which 2i and 2i + 1 are of document i, and all texts differ."""
    return np.stack([np.arange(n_rows) // 2, np.arange(n_rows)], axis=1).astype(np.int32)


def on_one_device(loss, cls_SxD, origins_Sx2=None, scale=1.0):
    origins_Sx2 = of_documents(len(cls_SxD)) if origins_Sx2 is None else origins_Sx2
    mapped = jax.vmap(lambda x, origins: loss(x, origins, "d", scale), axis_name="d")
    return mapped(cls_SxD[None], origins_Sx2[None])[0]


def on_eight_devices(function, cls_SxD):
    origins_Sx2 = of_documents(len(cls_SxD))
    parts = (x.reshape(8, -1, *x.shape[1:]) for x in (cls_SxD, origins_Sx2))
    return jax.pmap(function, axis_name="d")(*parts)


def contrastive_by_the_formula(cls_SxD, ignored=(), scale=1.0):
    """Equation 6; `ignored` are pairs of rows that are no negatives of each other."""
    h = cls_SxD.astype(np.float64)
    total = 0.0
    for a in range(len(h)):
        logits = scale * h[a] @ h.T
        without = [a] + [b for pair in ignored for b in pair if a in pair and b != a]
        others = np.delete(logits, without)
        positive = logits[a + 1 if a % 2 == 0 else a - 1]
        total += np.log(np.sum(np.exp(others - others.max()))) + others.max() - positive
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
    sums = on_eight_devices(lambda x, origins: corpus_contrastive_sum(x, origins, "d"), cls)
    assert float(sums.sum()) == pytest.approx(contrastive_by_the_formula(cls), rel=1e-6)


def test_contrastive_gradient_over_devices_needs_no_scaling():
    cls = np.random.default_rng(2).normal(size=(32, 8)).astype(np.float32)
    whole = jax.jit(jax.grad(functools.partial(on_one_device, corpus_contrastive_sum)))(cls)
    gradient = jax.grad(lambda x, origins: corpus_contrastive_sum(x, origins, "d"))
    parts = on_eight_devices(gradient, cls).reshape(32, 8)
    np.testing.assert_allclose(parts, whole, rtol=1e-4, atol=1e-6)


def cloze_by_the_formula(cls_SxD):
    queries, texts = cls_SxD.astype(np.float64)[::2], cls_SxD.astype(np.float64)[1::2]
    exp = [[np.exp(q @ b) for b in texts] for q in queries]
    return -sum(np.log(row[i] / sum(row)) for i, row in enumerate(exp))


def test_inverse_cloze_loss_is_the_formula():
    cls = np.random.default_rng(4).normal(size=(16, 5)).astype(np.float32)
    expected = cloze_by_the_formula(cls)
    assert float(on_one_device(inverse_cloze_sum, cls)) == pytest.approx(expected, rel=2e-6)
    sums = on_eight_devices(lambda x, origins: inverse_cloze_sum(x, origins, "d"), cls)
    assert float(sums.sum()) == pytest.approx(expected, rel=1e-6)


def test_texts_of_one_document_and_copies_are_no_negatives_of_each_other():
    cls = np.random.default_rng(6).normal(size=(8, 5)).astype(np.float32)
    origins = of_documents(8)
    origins[4:6, 0] = 0  # rows 0, 1, 4 and 5 are of document 0
    origins[7, 1] = origins[2, 1]  # rows 2 and 7 are the same text
    ignored = [(0, 4), (0, 5), (1, 4), (1, 5), (2, 7)]
    ours = float(on_one_device(corpus_contrastive_sum, cls, origins))
    assert ours == pytest.approx(contrastive_by_the_formula(cls, ignored), rel=2e-6)
    # Of sentences 0, 2, 4, 6 and texts 1, 3, 5, 7.
    queries, texts = cls.astype(np.float64)[::2], cls.astype(np.float64)[1::2]
    exp = np.exp(queries @ texts.T)
    exp[0, 2] = exp[2, 0] = exp[1, 3] = 0.0
    expected = -np.log(np.diag(exp) / exp.sum(axis=1)).sum()
    assert float(on_one_device(inverse_cloze_sum, cls, origins)) == pytest.approx(expected)


@pytest.mark.parametrize("loss", [corpus_contrastive_sum, inverse_cloze_sum])
def test_inner_products_are_scaled(loss):
    cls = np.random.default_rng(7).normal(size=(8, 5)).astype(np.float32)
    scaled = float(on_one_device(loss, cls, scale=4.0))
    assert scaled == pytest.approx(float(on_one_device(loss, 2.0 * cls)), rel=1e-6)


def test_bag_of_words_loss_is_the_formula():
    rng = np.random.default_rng(8)
    logits = 3 * rng.normal(size=(4, 11)).astype(np.float32)
    logits[:, 10] = -np.inf  # a word that only pads the vocabulary
    ids = np.array([[1, 5, 5, 2], [1, 7, 2, 0], [9, 3, 4, 3], [1, 2, 0, 0]])
    is_word = np.array([[0, 1, 1, 0], [0, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]], bool)
    bags = [{5}, {7}, {3, 4, 9}]
    expected = 0.0
    for row, bag in zip(logits.astype(np.float64), bags, strict=False):
        log_softmax = row - np.log(np.exp(row).sum())
        expected -= sum(log_softmax[word] for word in bag) / len(bag)
    arrays = jnp.asarray(logits), jnp.asarray(ids), jnp.asarray(is_word)
    sums, gradient = jax.value_and_grad(bag_of_words_sum)(*(x[:3] for x in arrays))
    assert float(sums) == pytest.approx(expected, rel=1e-6)
    softmax = np.exp(logits[0]) / np.exp(logits[0]).sum()
    np.testing.assert_allclose(gradient[0], softmax - (np.arange(11) == 5), atol=1e-6)
    # A span without a word is no division by zero.
    assert np.isfinite(bag_of_words_sum(*arrays))


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


def test_the_gradient_of_the_masked_lm_loss_is_softmax_less_one_hot():
    rng = np.random.default_rng(0)
    logits_BxMxV = rng.normal(size=(2, 3, 7)).astype(np.float32)
    labels_BxM, weights_BxM = rng.integers(7, size=(2, 3)), rng.random((2, 3)).astype(np.float32)
    arrays = jnp.asarray(logits_BxMxV), jnp.asarray(labels_BxM), jnp.asarray(weights_BxM)
    gradient = jax.grad(masked_lm_sum)
    softmax_BxMxV = np.exp(logits_BxMxV) / np.exp(logits_BxMxV).sum(2, keepdims=True)
    expected_BxMxV = weights_BxM[:, :, None] * (softmax_BxMxV - np.eye(7)[labels_BxM])
    np.testing.assert_allclose(gradient(*arrays), expected_BxMxV, rtol=1e-5, atol=1e-6)
    # JAX's own would scatter into zeros.
    assert "scatter" not in str(jax.make_jaxpr(gradient)(*arrays))


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


@pytest.mark.parametrize("loss", [corpus_contrastive_sum, inverse_cloze_sum])
def test_in_blocks_of_rows_loss_and_gradient_are_the_same(loss, monkeypatch):
    vectors = np.random.default_rng(2).normal(size=(32, 8)).astype(np.float32)
    origins = of_documents(32)
    origins[6:10] = origins[4:6].repeat(2, axis=0)  # copies are no negatives, also across blocks

    def whole(vectors):
        return on_one_device(loss, vectors, origins, 2.0)

    expected, by_vectors = jax.jit(jax.value_and_grad(whole))(vectors)
    one_text = jax.make_jaxpr(whole)(vectors)
    monkeypatch.setattr(objectives, "MOST_SCORES", 5 * 32)  # blocks of 4 rows of 32 scores, or of 8
    found, by_vectors_in_blocks = jax.jit(jax.value_and_grad(lambda x: whole(x)))(vectors)
    assert float(found) == pytest.approx(float(expected), rel=1e-6)
    np.testing.assert_allclose(by_vectors_in_blocks, by_vectors, rtol=1e-5, atol=1e-6)
    assert "scan" not in str(one_text)
    in_blocks = str(jax.make_jaxpr(lambda vectors: whole(vectors))(vectors))  # traced anew
    assert "scan" in in_blocks


def test_in_blocks_no_array_has_a_score_for_each_pair_of_rows(monkeypatch):
    monkeypatch.setattr(objectives, "MOST_SCORES", 2**12)
    vectors = jax.ShapeDtypeStruct((1024, 8), jnp.float32)
    origins = jnp.asarray(of_documents(1024))
    gradient = jax.jit(jax.grad(lambda x: on_one_device(corpus_contrastive_sum, x, origins)))
    needed = gradient.lower(vectors).compile().memory_analysis().temp_size_in_bytes
    assert needed < 1024 * 1024  # a byte for each pair
