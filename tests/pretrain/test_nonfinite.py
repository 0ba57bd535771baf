"""Steps that are not finite: what stops, what is left out, what is said."""

import logging
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cocondenser_jax.corpus import batches
from cocondenser_jax.corpus.batches import BatchSpec, make_batch
from cocondenser_jax.corpus.order import batch_document_ids
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.errors import UserError
from cocondenser_jax.model.condenser import init_params
from cocondenser_jax.pretrain import step as step_module
from cocondenser_jax.pretrain.checkpoint import load_run
from cocondenser_jax.pretrain.devices import mapped_step, replicate
from cocondenser_jax.pretrain.loop import train
from cocondenser_jax.pretrain.step import initial_state, new_memory
from tests.lines import whole
from tests.world import batches_of, model_of, read_metrics, step_of

pytestmark = pytest.mark.usefixtures("one_length")

BAD_STEPS = (4, 6)


def logged(workdir):
    names = ("step", "loss")
    return [{name: line[name] for name in names if name in line} for line in read_metrics(workdir)]


@pytest.fixture
def config(config):
    config = config.copy_and_resolve_references().unlock()
    config.train.chunk_size = 0  # one pass: less to compile
    config.train.skip_nonfinite = 1
    return config


@pytest.fixture
def bad_batches(monkeypatch):
    """Makes the losses of the batches of some steps infinite."""

    def some_are_bad(store, spec, step, **hosts):
        batch = make_batch(store, spec, step, **hosts)
        if step + 1 in BAD_STEPS:
            return batch._replace(weights_SxM=batch.weights_SxM * np.inf)
        return batch

    monkeypatch.setattr(batches, "make_batch", some_are_bad)


def test_one_step_changes_nothing_and_the_next_does(config):
    config.optimizer.warmup_ratio = 0.5
    store = open_store(Path(config.data.store))
    model_config, settings = (
        model_of(config, store),
        step_of(config, 6),
    )
    step = mapped_step(model_config, settings)
    spec = BatchSpec(seed=0, batch_size=config.data.batch_size, length=config.data.length)
    good = make_batch(store, spec, 0)
    bad = good._replace(weights_SxM=good.weights_SxM * np.inf)

    rates = []

    def after(state, batch):
        state, metrics = step(state, batch)
        rates.append(float(metrics["learning_rate"]))
        return state, jax.tree.map(np.array, state)

    def same(a, b):
        pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
        return [np.array_equal(x, y) for x, y in pairs]

    params = init_params(model_config, 0)
    memory = new_memory(model_config, settings.loss)
    state, one = after(replicate(initial_state(params, settings.optimizer, memory)), good)
    state, two = after(state, bad)
    assert all(same(two[1:3], one[1:3]))
    assert (two.step, two.skipped) == (2, 1)
    state, three = after(state, good)
    assert (three.step, three.skipped) == (3, 1)
    assert not any(same(three.params, two.params))
    # The schedule counts the steps that were made: of a warm-up in three, the first and the second.
    assert rates == pytest.approx([1e-3 / 3, 2e-3 / 3, 2e-3 / 3])
    # One is allowed. After the second, nothing changes any more, good batch or not.
    for batch in (bad, good):
        state, four = after(state, batch)
        assert all(same(four[:3], three[:3]))
        assert four.skipped == 2


def test_a_loss_or_a_gradient_alone_is_enough(config, monkeypatch):
    settings = step_of(config, 6)
    params = {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}
    before = initial_state(params, settings.optimizer, memory=(jnp.zeros(2),))

    @jax.jit
    def step(loss, slope):
        computed = {"loss": loss}, {"kernel": jnp.ones((2, 2)), "bias": jnp.full(2, slope)}
        computed += ((jnp.ones(2),),)
        monkeypatch.setattr(step_module, "loss_and_gradient", lambda *arguments: computed)
        return step_module.train_step(None, settings, before, None)[0]  # type: ignore[arg-type]

    for loss, slope, skipped in ((1.0, 1.0, 0), (1.0, np.inf, 1), (np.inf, 1.0, 1)):
        after = step(loss, slope)
        assert (after.step, after.skipped) == (1, skipped)
        learned = [(each.params, each.optimizer_state, each.memory) for each in (before, after)]
        pairs = zip(*map(jax.tree.leaves, learned), strict=True)
        assert all(np.array_equal(a, b) == bool(skipped) for a, b in pairs)


def test_the_update_keeps_no_copy_of_the_state(config, monkeypatch):
    settings = step_of(config, 6)
    state = initial_state({"kernel": jnp.ones((512, 512))}, settings.optimizer, ())

    def step(state, slope):
        gradient = jax.tree.map(lambda x: slope * x, state.params)
        computed = {"loss": slope}, gradient, ()
        monkeypatch.setattr(step_module, "loss_and_gradient", lambda *arguments: computed)
        return step_module.train_step(None, settings, state, None)[0]  # type: ignore[arg-type]

    compiled = jax.jit(step, donate_argnums=0).lower(state, 0.5).compile()
    # The gradient, and what is left of it after clipping.
    n_bytes = state.params["kernel"].nbytes
    assert compiled.memory_analysis().temp_size_in_bytes < 2.1 * n_bytes


@pytest.mark.effect("pretrain train.skip_nonfinite")
@pytest.mark.usefixtures("bad_batches", "shared_steps")
def test_a_run_stops_saves_and_can_resume(config, tmp_path, caplog):
    run = tmp_path / "run"
    store = open_store(Path(config.data.store))
    spec = batches_of(config)
    # The number of steps that were left out survives the interruption.
    for attempt in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING), pytest.raises(UserError) as stopped:
            train(config, run)
        # 48 documents are three steps of 16: step 6 is the last of the second epoch.
        first, last = (", ".join(batch_document_ids(store, spec, n)[:3]) for n in (3, 5))
        saved = "the run is saved as it was before that step (config.train.skip_nonfinite is 1)"
        line = f"step 6 is not finite (…loss nan…; documents {last}, ...); {saved}"
        assert re.match(whole(line), str(stopped.value))
        skipped = [line for line in caplog.messages if line.startswith("step ")]
        assert len(skipped) == 1 - attempt
        for said in skipped:
            of_step = f"step 4 is not finite (…loss nan…; documents {first}, ...)"
            line = f"{of_step}; skipped, 1 of at most 1"
            assert re.match(whole(line), said)
        assert load_run(run)[2]["step"] == 5
    assert [line["step"] for line in logged(run)] == [1, 2, 3, 5]

    fewer = config.copy_and_resolve_references()
    fewer.train.skip_nonfinite = 0
    with pytest.raises(
        UserError,
        match=whole(
            "this run has skipped 1 steps that were not"
            " finite, but config.train.skip_nonfinite is 0"
        ),
    ):
        train(fewer, run)

    config.train.skip_nonfinite = 2
    train(config, run)
    train(config, tmp_path / "whole")
    assert logged(run) == logged(tmp_path / "whole")
    for a, b in zip(
        jax.tree.leaves(load_run(run)[1]),
        jax.tree.leaves(load_run(tmp_path / "whole")[1]),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
