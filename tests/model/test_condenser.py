"""What the two passes of the gradient cache rely on: rows, chunks and dropout do not interact."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from jaxtyping import TypeCheckError

from cocondenser_jax.errors import UserError
from cocondenser_jax.model import attention, encoder
from cocondenser_jax.model.condenser import (
    EMBEDDINGS_SITE,
    Condenser,
    site_of_decoder,
    site_of_head,
    site_of_layer,
)
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model.encoder import TransformerLayer, take_rows
from cocondenser_jax.representation import SPELLINGS, Dense, Representation

CONFIG = ModelConfig(
    vocab_size=90,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=48,
    max_position_embeddings=16,
    skip_from=1,
    initializer_range=0.2,  # wide enough for the attention to be anything but flat
)


@pytest.fixture(scope="module")
def batch():
    """Eight spans of 16 tokens, their attention mask, masked positions and dropout seeds."""
    rng = np.random.default_rng(0)
    ids_BxL = rng.integers(5, 90, (8, 16), dtype=np.int32)
    mask_BxL = np.arange(16)[None] < rng.integers(5, 17, (8, 1))
    positions_BxM = rng.integers(1, 5, (8, 3), dtype=np.int32)
    return ids_BxL, mask_BxL, positions_BxM, jnp.arange(8, dtype=jnp.uint32)


@pytest.fixture(scope="module")
def variables(batch):
    return jax.jit(Condenser(CONFIG).init)(jax.random.key(0), *batch[:3])


@functools.partial(jax.jit, static_argnames=("config", "method", "dtype"))
def run(config, variables, *args, method="__call__", dtype="float32"):
    network = Condenser(config, jnp.dtype(dtype), predicts_words=True)
    return network.apply(variables, *args, method=method)


@pytest.mark.parametrize(
    ("skip_from", "late_mlm", "representation"),
    [(1, True, "cls"), (1, False, "mean"), (2, True, "cls-cosine"), (2, True, "mean-cosine")],
)
def test_encode_is_the_vector_of_the_whole_forward_pass(
    batch, variables, skip_from, late_mlm, representation
):
    ids, mask, positions, seeds = batch
    config = dataclasses.replace(
        CONFIG, skip_from=skip_from, late_mlm=late_mlm, representation=SPELLINGS[representation]
    )
    whole = run(config, variables, ids, mask, positions, seeds).vectors_BxD
    alone = run(config, variables, ids, mask, seeds, method="encode")

    np.testing.assert_allclose(alone, whole, rtol=0, atol=2e-6)
    other_seeds = jnp.arange(8, 16, dtype=jnp.uint32)
    other = run(config, variables, ids, mask, other_seeds, method="encode")
    assert np.abs(alone - other).max() > 0.02  # dropout was on
    assert alone.dtype == jnp.float32


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_the_whole_forward_pass_too_leaves_out_prompts_that_are_not_pooled(
    batch, variables, pooling
):
    ids, mask, positions, _ = batch
    left_out = SPELLINGS[pooling]._replace(include_prompt=False)
    config = dataclasses.replace(CONFIG, late_mlm=True, representation=left_out)
    prompts = 2 + np.arange(8, dtype=np.int32) % 3  # [CLS] and one to three tokens
    whole = run(config, variables, ids, mask, positions, None, None, prompts).vectors_BxD
    alone = run(config, variables, ids, mask, None, prompts, method="encode")

    np.testing.assert_allclose(alone, whole, rtol=0, atol=2e-6)
    pooled = run(config, variables, ids, mask, positions).vectors_BxD
    assert np.abs(whole - pooled).max(axis=1).min() > 0.02


@pytest.mark.parametrize("chunk", [1, 4])
def test_a_span_does_not_depend_on_its_chunk(batch, variables, chunk):
    ids, mask, positions, seeds = batch
    whole = run(CONFIG, variables, ids, mask, positions, seeds)
    parts = [
        run(CONFIG, variables, *(x[start : start + chunk] for x in (ids, mask, positions, seeds)))
        for start in range(0, 8, chunk)
    ]
    for ours, theirs in zip(whole, map(jnp.concatenate, zip(*parts, strict=True)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


def test_matrices_are_drawn_with_the_initializer_range(batch):
    config = dataclasses.replace(CONFIG, representation=Representation(dense=(Dense(32, 40),)))
    params = jax.jit(Condenser(config).init)(jax.random.key(0), *batch[:3])["params"]
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = path[-1].key
        if leaf.ndim == 2:
            tolerance = 4 / np.sqrt(2 * leaf.size)  # four standard deviations
            assert float(leaf.std()) == pytest.approx(CONFIG.initializer_range, tolerance), path
        else:
            np.testing.assert_array_equal(leaf, float(name == "scale"), err_msg=str(path))


def test_padding_is_never_read(batch, variables):
    ids, mask, positions, _ = batch
    other_ids = np.where(mask, ids, 7)
    ours = run(CONFIG, variables, ids, mask, positions)
    theirs = run(CONFIG, variables, other_ids, mask, positions)
    assert not np.array_equal(ids, other_ids)
    for x, y in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(x, y)


def test_without_late_mlm_the_rest_is_the_same(batch, variables):
    ids, mask, positions, _ = batch
    both = run(CONFIG, variables, ids, mask, positions)
    config = dataclasses.replace(CONFIG, late_mlm=False)
    head_only = run(config, variables, ids, mask, positions)

    assert head_only.late_logits_BxMxV is None
    np.testing.assert_allclose(head_only.vectors_BxD, both.vectors_BxD, rtol=0, atol=2e-6)
    np.testing.assert_allclose(
        head_only.head_logits_BxMxV, both.head_logits_BxMxV, rtol=0, atol=1e-5
    )


def test_bfloat16_computes_near_float32_and_returns_float32_vectors(batch, variables):
    ids, mask, positions, _ = batch
    exact = run(CONFIG, variables, ids, mask, positions)
    rough = run(CONFIG, variables, ids, mask, positions, dtype="bfloat16")
    assert rough.vectors_BxD.dtype == jnp.float32
    assert rough.head_logits_BxMxV.dtype == jnp.float32
    error = np.linalg.norm(rough.vectors_BxD - exact.vectors_BxD) / np.linalg.norm(
        exact.vectors_BxD
    )
    assert 1e-4 < error < 3e-2  # bfloat16 has 8 bits, and was used


def has_more_bits_than_bfloat16(x):
    return bool((x.astype(jnp.bfloat16).astype(jnp.float32) != x).any())


def test_bfloat16_adds_the_bias_of_the_words_in_float32(batch, variables):
    """A new model's bias is the log frequency: at -14, bfloat16 has a spacing of 1/16."""
    ids, mask, positions, _ = batch

    def logits(bias):
        params = dict(variables["params"])
        params["mlm"] = params["mlm"] | {"bias": jnp.full((90,), bias)}
        changed = {"params": params}
        return run(CONFIG, changed, ids, mask, positions, dtype="bfloat16").head_logits_BxMxV

    np.testing.assert_allclose(logits(-13.99) - logits(-14.0), 0.01, atol=1e-5)
    assert has_more_bits_than_bfloat16(logits(0.0))


def test_bfloat16_compares_tokens_in_float32(batch, variables, monkeypatch):
    ids, mask, positions, _ = batch
    scores = []
    softmax = jax.nn.softmax

    def spy(x, axis):
        scores.append(x)
        return softmax(x, axis=axis)

    monkeypatch.setattr(jax.nn, "softmax", spy)
    Condenser(CONFIG, jnp.dtype("bfloat16")).apply(variables, ids, mask, positions)
    assert len(scores) == CONFIG.num_hidden_layers + CONFIG.n_head_layers
    for scores_BxNxQxL in scores:
        assert scores_BxNxQxL.dtype == jnp.float32
        assert has_more_bits_than_bfloat16(scores_BxNxQxL[scores_BxNxQxL > -1e9])


def test_asked_rows_equal_those_of_the_whole_output(batch):
    _, mask, _, seeds = batch
    rng = np.random.default_rng(2)
    hidden = jnp.asarray(rng.standard_normal((8, 16, 32)), jnp.float32)
    rows = rng.integers(0, 16, (8, 5))
    layer = TransformerLayer(CONFIG, jnp.dtype("float32"), index=None, attention="xla")
    variables = jax.jit(layer.init)(jax.random.key(0), hidden, mask)
    apply = jax.jit(layer.apply)
    whole = apply(variables, hidden, mask, seeds)
    asked = apply(variables, hidden, mask, seeds, rows)
    np.testing.assert_allclose(asked, take_rows(whole, rows), rtol=0, atol=2e-6)


def test_every_site_row_and_head_has_a_dropout_seed_of_its_own(batch, variables):
    seen = []

    def spy(x, rate, seeds):
        jax.debug.callback(lambda s: seen.append(np.asarray(s)), seeds)
        return x

    ids, mask, _, seeds = batch
    positions = np.tile(np.array([1, 2, 4], np.int32), (3, 1))
    with pytest.MonkeyPatch.context() as patch:
        for module in (encoder, attention):
            patch.setattr(module, "dropout", spy)
        decoded = ids[:3], positions
        run(CONFIG, variables, ids[:3], mask[:3], positions, seeds[:3], decoded)
        jax.effects_barrier()
    n_heads = CONFIG.num_attention_heads
    # Embeddings and those of the weak decoder, then two sites and the heads' weights in each layer.
    # The last of the backbone runs for [CLS] and the masked positions only, and that of the
    # Condenser head for the latter.
    rows = 16 + 16 + (2 + n_heads) * (16 + 4 + 16 + 3)
    drawn = np.concatenate([s.ravel() for s in seen])
    assert len(drawn) == len(set(drawn.tolist())) == 3 * rows


def test_attention_weights_are_dropped_at_a_rate_of_their_own(batch, variables, monkeypatch):
    rates = {3: set(), 4: set()}  # by the number of axes: hidden_BxLxD, weights_BxNxQxL

    def spy(x, rate, seeds):
        rates[x.ndim].add(rate)
        return x

    for module in (encoder, attention):
        monkeypatch.setattr(module, "dropout", spy)
    config = dataclasses.replace(CONFIG, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.3)
    jax.eval_shape(functools.partial(Condenser(config).apply, variables), *batch)
    assert rates == {3: {0.2}, 4: {0.3}}


def test_dropout_does_not_depend_on_the_padding(batch, variables):
    ids, mask, positions, seeds = batch
    mask = mask & (np.arange(16) < 12)
    positions = positions % 12
    long = run(CONFIG, variables, ids, mask, positions, seeds)
    short = run(CONFIG, variables, ids[:, :12], mask[:, :12], positions, seeds)
    for ours, theirs in zip(short, long, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"skip_from": 3}, "skip_from is 3; expected a whole number from 0 to 2"),
        ({"n_head_layers": -1}, "n_head_layers is -1; expected a whole number from 0 to 1,000"),
        ({"n_head_layers": 0, "late_mlm": False}, "without a Condenser head needs late_mlm"),
        ({"num_hidden_layers": 1 << 31}, "num_hidden_layers is 2147483648; expected"),
        ({"type_vocab_size": -1}, "type_vocab_size is -1; expected"),
        ({"hidden_size": "32"}, "hidden_size is '32'; expected"),
        ({"pad_token_id": 10**6}, "pad_token_id is 1000000; expected"),
        ({"hidden_dropout_prob": 1}, "hidden_dropout_prob is 1; expected a number from 0 to 0.99"),
        ({"layer_norm_eps": float("nan")}, "layer_norm_eps is nan; expected a number from 1e-30"),
        ({"layer_norm_eps": 1 << 31}, "layer_norm_eps is 2147483648; expected"),
        ({"global_rope_theta": 0.5}, "global_rope_theta is 0.5; expected a number from 1 to"),
        ({"max_position_embeddings": 2}, "expected a whole number from 3 to 10,000,000"),
        ({"hidden_size": True}, "hidden_size is True; expected a whole number"),
        ({"representation": "cls"}, "representation is 'cls'; expected a Representation"),
        ({"representation": Representation("max")}, "pooling is 'max'; expected cls or mean"),
        (
            {"representation": Representation(similarity="euclidean")},
            "similarity is 'euclidean'; expected dot or cosine",
        ),
        (
            {"representation": Representation(dense=(Dense(32, 8), Dense(16, 8)))},
            "a Dense layer makes 8 numbers of 16, but the vectors before it have 8",
        ),
        (
            {"representation": Representation(dense=(Dense(32, 0),))},
            "a Dense layer makes 0 numbers of 32",
        ),
        (
            {"representation": Representation(dense=(Dense(32, 8, activation="torch.nn.Mish"),))},
            r"a Dense layer ends in torch\.nn\.Mish; expected Identity, Tanh, ReLU, GELU of",
        ),
        (
            {"representation": Representation(sizes=(33,))},
            "the sizes of vectors are 33; expected whole numbers from 1 to 32, the largest first",
        ),
        (
            {"representation": Representation(dense=(Dense(32, 8),), sizes=(16, 8))},
            "the sizes of vectors are 16, 8; expected whole numbers from 1 to 8",
        ),
        ({"representation": Representation(sizes=(8, 16))}, "8, 16; expected whole numbers from"),
        ({"representation": Representation(sizes=(8, 8))}, "8, 8; expected whole numbers from 1"),
        ({"late_mlm": 1}, "late_mlm is 1; expected true or false"),
        ({"num_attention_heads": 5}, "hidden_size 32 is not a multiple"),
        ({"model_type": "mpnet"}, "pad_token_id is 0; mpnet models need 1"),
        ({"model_type": "t5"}, "expected bert or roberta or xlm-roberta or modernbert"),
    ],
)
def test_impossible_shapes_are_refused(change, message):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(CONFIG, **change)


def test_the_gradient_of_gelu_needs_its_input_alone():
    _, gradient = jax.vjp(encoder.gelu, jnp.linspace(-4, 4, 9).astype(jnp.bfloat16))
    kept = [(array.dtype, array.shape) for array in jax.tree.leaves(gradient)]
    assert kept == [(jnp.bfloat16, (9,))]


def test_roberta_positions_start_after_the_padding_index():
    config = dataclasses.replace(CONFIG, model_type="roberta", pad_token_id=1)
    assert (config.position_offset, config.max_length) == (2, 14)
    assert (CONFIG.position_offset, CONFIG.max_length) == (0, 16)


def test_arrays_that_do_not_fit_each_other_are_refused(batch, variables):
    ids, mask, positions, _ = batch
    with pytest.raises(TypeCheckError, match="masked_positions_BxM"):
        run(CONFIG, variables, ids, mask, positions[:4])
    with pytest.raises(TypeCheckError, match="attention_mask_BxL"):
        run(CONFIG, variables, ids, mask[:, :8], positions)


def test_the_sites_of_dropout_are_numbered_through_the_network():
    config = dataclasses.replace(CONFIG, n_head_layers=3)
    sites = [
        EMBEDDINGS_SITE,
        *(site_of_layer(index) for index in (0, 1)),
        *(site_of_head(config, index) for index in (0, 1, 2)),
        site_of_decoder(config),
    ]
    assert sites == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_beside_a_weak_decoder_the_backbone_predicts_its_own_masked_tokens(
    batch, variables, pooling
):
    ids, mask, positions, _ = batch
    config = dataclasses.replace(CONFIG, representation=SPELLINGS[pooling])
    decoded = np.where(mask, 5 + ids % 80, ids), positions % 4 + 1
    alone = run(config, variables, ids, mask, positions)
    beside = run(config, variables, ids, mask, positions, None, decoded)
    np.testing.assert_allclose(beside.late_logits_BxMxV, alone.late_logits_BxMxV, rtol=0, atol=1e-5)


def test_dense_layers_after_the_pooling_multiply_in_full_precision(batch):
    """Else a TPU multiplies bfloat16 numbers; no processor here would."""
    config = dataclasses.replace(CONFIG, representation=Representation(dense=(Dense(32, 40),)))
    network = Condenser(config)
    variables = jax.eval_shape(network.init, jax.random.key(0), *batch[:3])

    def products(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name == "dot_general":
                yield equation
            for inner in jaxprs_in_params(equation.params):
                yield from products(inner)

    encode = functools.partial(network.apply, method="encode")
    program = jax.make_jaxpr(lambda variables: encode(variables, *batch[:2]))(variables)
    found = [
        each.params["precision"]
        for each in products(program.jaxpr)
        if each.outvars[0].aval.shape == (8, 40)
    ]
    assert found == [(jax.lax.Precision.HIGHEST,) * 2]
