"""The gradient cache on a toy encoder, against one gradient of the whole loss."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cocondenser_jax.pretrain.grad_cache import loss_gradient
from cocondenser_jax.pretrain.objectives import corpus_contrastive_sum


def contrast(reps):
    rows = jnp.arange(len(reps))
    origins = jnp.stack([rows // 2, rows], axis=1)  # of each pair a document, and all texts differ
    loss = jax.vmap(lambda x: corpus_contrastive_sum(x, origins, "d"), axis_name="d")
    return loss(reps[None])[0], jnp.mean(reps, axis=0)


def encode(params, chunk):
    return jnp.tanh(chunk @ params["in"]) @ params["out"]


def forward(params, chunk):
    reps = encode(params, chunk)
    own = jnp.sum(jnp.cos(chunk @ params["in"]))
    return reps, 0.3 * own, {"own": own}


def whole_loss(params, inputs, contrastive):
    reps, own, _ = forward(params, inputs)
    return own + (contrast(reps)[0] if contrastive else 0.0)


def test_representations_of_several_axes_stay_whole():
    """A vector for each token: the loss gets them as a single pass would."""
    rng = np.random.default_rng(0)
    params = {"in": rng.normal(size=(3, 4)), "out": rng.normal(size=(4, 5))}
    chunks = rng.normal(size=(2, 4, 6, 3)).astype(np.float32)  # 2 chunks of 4 texts of 6 tokens

    def best_matches(reps_SxLxD):
        matches_SxS = jnp.einsum("aid,bjd->abij", reps_SxLxD, reps_SxLxD).max(3).sum(2)
        return -jnp.mean(jnp.diagonal(jax.nn.log_softmax(matches_SxS))), ()

    def alone(params, chunk):
        return encode(params, chunk), jnp.zeros(()), {}

    functions = {"forward": alone, "encode": encode, "contrast": best_matches}
    value, _, _, grads = jax.jit(functools.partial(loss_gradient, **functions))(params, chunks)
    whole = jax.value_and_grad(
        lambda params: best_matches(encode(params, chunks.reshape(8, 6, 3)))[0]
    )
    expected_value, expected = jax.jit(whole)(params)
    assert float(value) == pytest.approx(float(expected_value), rel=1e-5)
    for name in params:
        np.testing.assert_allclose(grads[name], expected[name], rtol=1e-4, atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(
    n_chunks=st.integers(1, 6),
    pairs_per_chunk=st.integers(1, 3),
    size=st.integers(1, 5),
    contrastive=st.booleans(),
    n_kept=st.integers(0, 7),
    seed=st.integers(0, 1000),
)
def test_any_cut_gives_the_gradient_of_the_whole(
    n_chunks, pairs_per_chunk, size, contrastive, n_kept, seed
):
    rng = np.random.default_rng(seed)
    params = {
        "in": rng.normal(size=(3, 4)).astype(np.float32),
        "out": rng.normal(size=(4, size)).astype(np.float32),
    }
    chunks = rng.normal(size=(n_chunks, 2 * pairs_per_chunk, 3)).astype(np.float32)
    inputs = chunks.reshape(-1, 3)

    functions = {"forward": forward, "encode": encode}
    functions |= {"contrast": contrast if contrastive else None, "n_kept": n_kept}
    cached = jax.jit(functools.partial(loss_gradient, **functions))
    value, others, sums, grads = cached(params, chunks)

    @jax.jit
    def whole(params):
        reps, _, own = forward(params, inputs)
        contrasted = contrast(reps) if contrastive else (0.0, ())
        return jax.grad(whole_loss)(params, inputs, contrastive), own, contrasted

    expected, own, (contrasted, mean) = whole(params)
    for ours, theirs in zip(jax.tree.leaves(grads), jax.tree.leaves(expected), strict=True):
        error = np.linalg.norm(ours - theirs) / max(np.linalg.norm(theirs), 1e-3)
        assert error <= 1e-5
    assert float(sums["own"]) == pytest.approx(float(own["own"]), rel=1e-5, abs=1e-5)
    assert float(value) == pytest.approx(float(contrasted), rel=1e-5, abs=1e-5)
    np.testing.assert_allclose(others, mean, rtol=1e-5, atol=1e-5)
