"""The step: cut and spread in any way, it is the same step."""

import functools
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cocondenser_jax.corpus.batches import BatchSpec, make_batch
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.errors import UserError
from cocondenser_jax.model.condenser import Condenser, init_params
from cocondenser_jax.model.dropout import fold_in
from cocondenser_jax.pretrain import step as step_module
from cocondenser_jax.pretrain.devices import batch_gradient, mapped_step, replicate
from cocondenser_jax.pretrain.objectives import OBJECTIVES
from cocondenser_jax.pretrain.step import (
    AXIS,
    check_batch,
    initial_state,
    loss_and_gradient,
    new_memory,
)
from cocondenser_jax.representation import SPELLINGS
from tests.lines import whole
from tests.world import batches_of, model_of, relative_error, step_of


class Trained(NamedTuple):
    """What some steps leave behind."""

    metrics: list[dict[str, float]]
    params: Any
    moment: Any  # AdamW's first moment: after one step a tenth of the (clipped) gradient


def steps(
    config,
    n_devices,
    n_steps=1,
    empty_spans=0,
    factor=1.0,
):
    """Runs some steps on the first devices; the first parameters are multiplied by `factor`."""
    store = open_store(Path(config.data.store))
    model_config = model_of(config, store)
    settings = step_of(config, config.train.steps)
    devices = jax.devices()[:n_devices]
    step_once = compiled_once(model_config, settings, n_devices)
    params = jax.tree.map(lambda x: factor * x, init_params(model_config, config.seed))
    memory = new_memory(model_config, settings.loss)
    state = replicate(initial_state(params, settings.optimizer, memory), devices)
    spec = batches_of(config)
    metrics = []
    for step in range(n_steps):
        batch = make_batch(store, spec, step)
        batch.weights_SxM[:empty_spans] = 0.0
        state, values = step_once(state, batch)
        metrics.append({name: float(value) for name, value in values.items()})
    state = jax.tree.map(np.asarray, state)
    moment = optax.tree_utils.tree_get(state.optimizer_state, "mu")
    return Trained(metrics, state.params, moment)


@functools.lru_cache(maxsize=16)
def compiled_once(model_config, settings, n_devices):
    """Returns the step: tests that take the same one share what JAX has traced and compiled."""
    return mapped_step(model_config, settings, jax.devices()[:n_devices])


def changed(config, **settings):
    config = config.copy_and_resolve_references().unlock()
    for key, value in settings.items():
        section, name = key.split("__")
        config[section][name] = value
    return config.lock()


def assert_same(left, right):
    for a, b in zip(left.metrics, right.metrics, strict=True):
        assert a.keys() == b.keys()
        for name, value in a.items():
            assert value == pytest.approx(b[name], rel=1e-5), name
    for a, b in zip(jax.tree.leaves(left.params), jax.tree.leaves(right.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6)
    assert relative_error(left.moment, right.moment) <= 1e-5


@pytest.mark.parametrize(("dropout", "chunk_size"), [(0.0, 2), (0.1, 4)])
def test_two_passes_are_one_direct_pass(config, dropout, chunk_size):
    config = changed(
        config,
        model__hidden_dropout_prob=dropout,
        model__attention_probs_dropout_prob=dropout,
        train__chunk_size=0,
    )
    direct = steps(config, n_devices=1)
    assert_same(direct, steps(changed(config, train__chunk_size=chunk_size), n_devices=1))


@pytest.mark.parametrize("objective", [name for name in OBJECTIVES if name != "cocondenser"])
def test_every_objective_goes_through_the_cache_and_over_devices(config, objective, request):
    if objective != "contrastive":  # which has the most lengths; those of others: above
        request.getfixturevalue("one_length")
    config = changed(config, train__objective=objective, train__chunk_size=0)
    # Without tokens to predict, a new network's gradient is all but zero: as small as rounding.
    factor = {"contrastive": 8.0, "ict": 4.0}.get(objective, 1.0)
    direct = steps(config, n_devices=1, factor=factor)
    chunks = changed(config, train__chunk_size=2)
    assert_same(direct, steps(chunks, n_devices=4, factor=factor))
    losses = {
        "mlm": {"late_mlm_loss"},
        "condenser": {"head_mlm_loss", "late_mlm_loss"},
        "retromae": {"head_mlm_loss", "late_mlm_loss"},
        "bow": {"late_mlm_loss", "bag_of_words_loss"},
        "cobow": {"late_mlm_loss", "bag_of_words_loss", "contrastive_loss"},
        "contrastive": {"contrastive_loss"},
        "ict": {"contrastive_loss"},
    }
    found = {name for name in direct.metrics[0] if name.endswith("_loss")}
    assert found == losses[objective]
    assert ("head_0" in direct.params) == (objective in ("condenser", "retromae"))


@pytest.mark.usefixtures("one_length")
@pytest.mark.effect("pretrain model.representation", "pretrain data.pairs")
@pytest.mark.parametrize(
    ("objective", "representation", "pairs"),
    [
        ("cocondenser", "mean", "spans"),
        ("cocondenser", "cls-cosine", "sentence"),
        ("contrastive", "mean-cosine", "crops"),
        ("contrastive", "mean-cosine", "title"),
        ("ict", "mean", "spans"),
    ],
)
def test_the_two_passes_are_one_for_every_vector(config, objective, representation, pairs):
    config = changed(
        config, train__objective=objective, model__representation=representation, data__pairs=pairs
    )
    store = open_store(Path(config.data.store))
    model_config = model_of(config, store)
    assert model_config.representation == SPELLINGS[representation]
    # Vectors at [CLS] of a new network are all but equal, and the gradient of their loss is lost in
    # that of the tokens.
    params = jax.tree.map(lambda x: 8 * x if x.ndim == 2 else x, init_params(model_config, 0))
    batch = make_batch(store, batches_of(config), 0)
    settings = step_of(config, config.train.steps).loss
    (loss, whole), (other_loss, parts) = (
        batch_gradient(model_config, settings._replace(chunk_size=size), params, batch)
        for size in (0, 4)
    )
    assert jax.tree.map(float, other_loss) == pytest.approx(jax.tree.map(float, loss), rel=1e-5)
    assert relative_error(parts, whole) <= 1e-5


@pytest.mark.usefixtures("one_length")
@pytest.mark.parametrize("objective", ["contrastive", "ict"])
def test_the_loss_without_tokens_is_the_mean_of_the_contrastive_one(config, objective):
    config = changed(config, train__objective=objective, train__chunk_size=0)
    store = open_store(Path(config.data.store))
    model_config = model_of(config, store)
    # Vectors of a new network are all but equal: whichever were compared, the loss would be chance.
    params = jax.tree.map(lambda x: 8 * x if x.ndim == 2 else x, init_params(model_config, 0))
    batch = make_batch(store, batches_of(config), 0)
    settings = step_of(config, config.train.steps).loss
    losses, _ = batch_gradient(model_config, settings, params, batch)
    inputs = batch.input_ids_SxL, batch.attention_mask_SxL
    encode = functools.partial(Condenser(model_config).apply, method="encode")
    cls_SxD = np.asarray(jax.jit(encode)({"params": params}, *inputs), np.float64)
    logits = cls_SxD @ cls_SxD.T
    if objective == "ict":
        logits, positive = logits[::2, 1::2], np.arange(16)
        documents = batch.origins_Sx2[::2, 0]
        is_same = (documents[:, None] == documents) & ~np.eye(16, dtype=bool)
        logits[is_same] = -np.inf  # texts of one document are no negatives
    else:
        np.fill_diagonal(logits, -np.inf)
        positive = np.arange(32) ^ 1
    own = logits[np.arange(len(logits)), positive]
    expected = np.mean(np.log(np.exp(logits).sum(axis=1)) - own)
    assert float(losses["loss"]) == pytest.approx(expected, rel=1e-5)


def test_eight_devices_are_one(config):
    assert_same(steps(config, n_devices=8, n_steps=3), steps(config, n_devices=1, n_steps=3))


@pytest.mark.usefixtures("one_length")
def test_the_state_is_donated_and_the_step_compiled_once(config, caplog):
    config = changed(config, train__chunk_size=0, train__objective="mlm")
    store = open_store(Path(config.data.store))
    model_config = model_of(config, store)
    settings = step_of(config, config.train.steps)
    step = mapped_step(model_config, settings)
    batch = make_batch(store, BatchSpec(seed=config.seed, batch_size=16, length=16), 0)
    memory = new_memory(model_config, settings.loss)
    first = replicate(initial_state(init_params(model_config, 0), settings.optimizer, memory))
    second, _ = step(first, batch)
    with jax.log_compiles():
        step(second, batch)
        assert "XLA compilation" not in caplog.text
        jax.jit(lambda x: x + 1)(0)  # such a line is what was looked for
        assert "XLA compilation" in caplog.text
    assert all(x.is_deleted() for x in jax.tree.leaves((first, second)))


def test_one_device_takes_the_state_over(config):
    state = initial_state({"kernel": jnp.ones((512, 512))}, step_of(config, 6).optimizer, ())
    place = state.params["kernel"].unsafe_buffer_pointer()
    replicated = replicate(state, jax.devices()[:1])
    assert replicated.params["kernel"].unsafe_buffer_pointer() == place


@pytest.mark.usefixtures("one_length")
def test_a_gradient_is_compiled_once_for_its_settings(config, caplog):
    config = changed(config, train__chunk_size=0, train__objective="mlm")
    store = open_store(Path(config.data.store))
    model_config = model_of(config, store)
    params = init_params(model_config, 0)
    first, second = (make_batch(store, batches_of(config), step) for step in range(2))
    settings = step_of(config, 1).loss
    batch_gradient(model_config, settings, params, first)
    with jax.log_compiles():
        batch_gradient(model_config, settings._replace(), params, second)
        assert "XLA compilation" not in caplog.text
        batch_gradient(model_config, settings._replace(mlm_weight=0.5), params, second)
        assert "XLA compilation" in caplog.text


@pytest.mark.usefixtures("one_length")
def test_mlm_does_not_depend_on_the_cut_where_spans_have_no_mask(config):
    one_chunk = changed(config, train__chunk_size=0, train__objective="condenser")
    chunks = changed(config, train__chunk_size=2, train__objective="condenser")
    whole = steps(one_chunk, n_devices=1, empty_spans=6)
    assert_same(whole, steps(chunks, n_devices=4, empty_spans=6))
    assert np.isfinite(whole.metrics[0]["loss"])


@pytest.mark.parametrize("n_devices", [1, 8])
def test_dropout_has_a_seed_for_every_seed_step_and_span(config, monkeypatch, n_devices):
    config = changed(config, model__hidden_dropout_prob=0.1, train__chunk_size=0)
    store = open_store(Path(config.data.store))
    model_config = model_of(config, store)
    batch = make_batch(store, BatchSpec(seed=0, batch_size=16, length=16), 0)
    parts = jax.tree.map(lambda x: x.reshape(n_devices, -1, *x.shape[1:]), batch)

    def seeds_as_memory(params, chunks, **functions):
        return jnp.zeros(()), chunks[1].reshape(-1), {"head_mlm": jnp.zeros(())}, params

    monkeypatch.setattr(step_module, "loss_gradient", seeds_as_memory)

    def seeds(seed):
        loss = step_of(config, 6).loss._replace(seed=seed)
        draw = functools.partial(loss_and_gradient, model_config, loss, {}, ())
        devices = jax.devices()[:n_devices]
        drawn = jax.pmap(draw, AXIS, in_axes=(None, 0), devices=devices)
        return [set(drawn(np.int32(t), parts)[2].ravel().tolist()) for t in (0, 1, 300)]

    found = [*seeds(0), *seeds(1)]
    assert len(set.union(*found)) == 6 * 32
    expected = fold_in(fold_in(jnp.uint32(1), 300), jnp.arange(32))
    assert found[-1] == set(expected.tolist())


def test_both_passes_see_the_same_vectors_bit_for_bit(config):
    """With dropout, the second pass back-propagates through what the first pass compared.

    Without the late MLM, which computes more rows in the same products and so rounds otherwise.
    """
    dropout = {"model__hidden_dropout_prob": 0.1, "model__attention_probs_dropout_prob": 0.1}
    config = changed(config, **dropout, model__late_mlm=False)
    store = open_store(Path(config.data.store))
    model = Condenser(model_of(config, store))
    batch = make_batch(store, BatchSpec(seed=0, batch_size=16, length=16), 0)
    params = init_params(model.config, 0)
    seeds = jnp.arange(32, dtype=jnp.uint32)

    def both(chunk):
        batch, seeds = chunk
        inputs = batch.input_ids_SxL, batch.attention_mask_SxL
        first = model.apply({"params": params}, *inputs, seeds, method="encode")
        second = model.apply({"params": params}, *inputs, batch.masked_positions_SxM, seeds)
        return first, second.vectors_BxD

    cut = jax.tree.map(lambda x: x.reshape(-1, 4, *x.shape[1:]), (batch, seeds))
    first, second = jax.jit(lambda cut: jax.lax.map(both, cut))(cut)
    np.testing.assert_array_equal(first, second)
    assert np.abs(first[0, 0] - first[1, 0]).max() > 0.1


@pytest.mark.usefixtures("one_length")
def test_bfloat16_compares_vectors_in_float32(config, monkeypatch):
    # The vectors that the step compares: another program may round them otherwise.
    vectors = []

    def contrast(vectors_SxD, *others):
        jax.debug.callback(lambda x: vectors.append(np.asarray(x)), vectors_SxD)
        return objective.contrast(vectors_SxD, *others)

    objective = OBJECTIVES["cocondenser"]
    monkeypatch.setitem(OBJECTIVES, "cocondenser", objective._replace(contrast=contrast))
    # Compiled with the objective above, and not to be kept for other tests.
    monkeypatch.setattr(sys.modules[__name__], "compiled_once", compiled_once.__wrapped__)
    config = changed(config, train__dtype="bfloat16", train__chunk_size=4)
    # The vectors of a new network are all but equal, and so are their logits, however rounded.
    (metrics,) = steps(config, n_devices=1, factor=4.0).metrics
    jax.effects_barrier()
    # All before them is in bfloat16.
    assert np.array_equal(vectors[0], jnp.asarray(vectors[0], jnp.bfloat16))
    h = vectors[0].astype(np.float64)
    logits = h @ h.T
    np.fill_diagonal(logits, -np.inf)
    positive = logits[np.arange(32), np.arange(32) ^ 1]
    expected = np.mean(np.log(np.exp(logits).sum(axis=1)) - positive)
    # The logits are about 256, where bfloat16 has a spacing of 1 or 2.
    assert 200 < positive.mean() < 300
    assert metrics["contrastive_loss"] == pytest.approx(expected, abs=1e-3)


@pytest.mark.usefixtures("one_length")
def test_span_sum_divides_by_spans(config):
    config = changed(config, train__objective="condenser", train__chunk_size=0)
    mean = steps(config, n_devices=1).metrics
    total = steps(changed(config, train__mlm_reduction="span_sum"), n_devices=1).metrics
    store = open_store(Path(config.data.store))
    n_masked = make_batch(store, batches_of(config), 0).weights_SxM.sum()
    assert total[0]["loss"] == pytest.approx(mean[0]["loss"] * n_masked / 16, rel=1e-5)
    assert total[0]["head_mlm_loss"] == pytest.approx(mean[0]["head_mlm_loss"], rel=1e-5)


@pytest.fixture(scope="module")
def sixty_steps(config):
    """The metrics of 60 steps in which MLM has the weight 0.3."""
    settings = {"optimizer__learning_rate": 1e-2, "train__steps": 60, "train__chunk_size": 0}
    config = changed(config, train__mlm_weight=0.3, **settings)
    return steps(config, n_devices=1, n_steps=60).metrics


def test_the_loss_is_the_sum_of_its_parts(sixty_steps):
    metrics = sixty_steps[0]
    expected = (
        0.3 * (metrics["head_mlm_loss"] + metrics["late_mlm_loss"]) + metrics["contrastive_loss"]
    )
    assert metrics["loss"] == pytest.approx(expected, rel=1e-5)
    # A new model cannot tell spans apart: chance is one in 2n - 1.
    assert metrics["contrastive_loss"] == pytest.approx(np.log(31), rel=0.15)


def test_training_lowers_the_mlm_loss(sixty_steps):
    # 15 words: from one in 80 tokens to about one in 15, the chance among words.
    assert sixty_steps[-1]["head_mlm_loss"] < 0.75 * sixty_steps[0]["head_mlm_loss"]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "train__chunk_size",
            3,
            "config.train.chunk_size 3 does not divide the 4 spans of a device (32 spans / 8"
            " devices)",
        ),
        ("data__batch_size", 12, "config.data.batch_size 12 is not a multiple of 8 devices"),
        (
            "data__length",
            40,
            "config.data.length 40 is longer than the 16 tokens that the model reads of a text",
        ),
    ],
)
def test_shapes_that_do_not_fit_are_refused(config, key, value, message):
    config = changed(config, **{key: value})
    spec = batches_of(config)
    with pytest.raises(UserError, match=whole(message)):
        check_batch(spec, config.train.chunk_size, max_length=16, n_devices=8, kept_chunks=0)


@pytest.mark.parametrize(
    ("hidden", "attention", "drops"), [(0.0, 0.0, False), (0.1, 0.0, True), (0.0, 0.1, True)]
)
def test_one_rate_of_dropout_is_enough_to_have_seeds(config, hidden, attention, drops):
    rates = {"hidden_dropout_prob": hidden, "attention_probs_dropout_prob": attention}
    config = changed(config, **{f"model__{name}": rate for name, rate in rates.items()})
    model_config = model_of(config, open_store(Path(config.data.store)))
    draw = functools.partial(step_module._dropout_seeds, model_config, 0, jnp.int32(0), 4)
    seeds = jax.vmap(lambda _: draw(), axis_name=AXIS)(jnp.zeros(1))
    assert (seeds is not None) == drops


@pytest.mark.usefixtures("one_length")
def test_the_contrastive_loss_beside_bags_of_words_is_that_alone(config):
    alone, beside = (
        changed(config, train__objective=name, train__chunk_size=0)
        for name in ("contrastive", "cobow")
    )
    store = open_store(Path(config.data.store))
    batch = make_batch(store, batches_of(beside), 0)
    params = init_params(model_of(beside, store), 0)
    found = [
        batch_gradient(model_of(each, store), step_of(each, 6).loss, params, batch)[0]
        for each in (alone, beside)
    ]
    expected, loss = (float(losses["contrastive_loss"]) for losses in found)
    assert loss == pytest.approx(expected, rel=1e-5)
