"""Ways to compute the same step: layouts of the parameters, kernels, kept chunks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cocondenser_jax.corpus.batches import make_batch
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.errors import UserError
from cocondenser_jax.model import blocks, kernels
from cocondenser_jax.model.condenser import init_params
from cocondenser_jax.model.layout import Layout, round_maps
from cocondenser_jax.pretrain import devices
from cocondenser_jax.pretrain import step as step_module
from cocondenser_jax.pretrain.devices import choose_layout
from cocondenser_jax.pretrain.step import (
    AXIS,
    check_batch,
    loss_and_gradient,
    new_memory,
    split_rows,
)
from tests.lines import whole
from tests.pretrain.test_step import changed
from tests.world import batches_of, model_of, relative_error, step_of

pytestmark = pytest.mark.usefixtures("one_length")


def losses_and_gradient(config, n_devices=1, rate=0.1, **settings):
    """Computes a step's losses and gradient on the first devices, from parameters that matter."""
    rates = {"model__hidden_dropout_prob": rate, "model__attention_probs_dropout_prob": rate}
    config = changed(config, **rates)
    store = open_store(config.data.store)
    model_config = model_of(config, store)
    loss = step_of(config, 1).loss._replace(**settings)
    params = jax.tree.map(lambda x: 3.0 * x, init_params(model_config, 0))

    def gradient(params, batch):
        memory = new_memory(model_config, loss)
        return loss_and_gradient(model_config, loss, params, memory, jnp.int32(0), batch)[:2]

    batch = split_rows(make_batch(store, batches_of(config), 0), n_devices)
    mapped = jax.pmap(
        gradient, AXIS, in_axes=(None, 0), out_axes=None, devices=jax.devices()[:n_devices]
    )
    return jax.tree.map(np.asarray, mapped(params, batch))


def assert_same(found, expected, tolerance=1e-5):
    for name, value in expected[0].items():
        assert found[0][name] == pytest.approx(value, rel=1e-5), name
    assert jax.tree.structure(found[1]) == jax.tree.structure(expected[1])
    assert relative_error(found[1], expected[1]) <= tolerance


@pytest.mark.effect("pretrain train.kept_chunks")
@pytest.mark.parametrize(
    ("n_devices", "chunk_size", "n_kept", "rate"),
    [(1, 8, 3, 0.1), (8, 2, 1, 0.0)],
)
def test_kept_chunks_change_no_gradient(config, n_devices, chunk_size, n_kept, rate, monkeypatch):
    kept, loss_gradient = [], step_module.loss_gradient

    def noted(*arguments, n_kept, **functions):
        kept.append(n_kept)
        return loss_gradient(*arguments, n_kept=n_kept, **functions)

    monkeypatch.setattr(step_module, "loss_gradient", noted)
    twice = losses_and_gradient(config, n_devices, rate, chunk_size=chunk_size)
    config = changed(config, train__kept_chunks=n_kept)
    assert step_of(config, 1).loss.kept_chunks == n_kept
    assert_same(losses_and_gradient(config, n_devices, rate, chunk_size=chunk_size), twice)
    assert (kept[0], kept[-1]) == (0, n_kept)


@pytest.mark.parametrize(("n_devices", "model_type"), [(8, "bert"), (1, "modernbert")])
def test_a_step_with_the_kernel_is_that_without(config, n_devices, model_type, monkeypatch):
    """Attention in a kernel, of joined matrices; a padded vocabulary; kept chunks.

    ModernBERT's is in blocks, with rotary positions, no biases, and the window of layer 1: layer 0
    sees all tokens, and the last one is computed without the kernel.
    """
    call = functools.partial(kernels.pl.pallas_call, interpret=True)
    monkeypatch.setattr(kernels.pl, "pallas_call", call)
    monkeypatch.setattr(blocks, "BLOCK", 8)
    shape = {"model_type": model_type, "local_attention": 6, "num_hidden_layers": 3}
    if model_type == "modernbert":
        config = changed(config, **{f"model__{name}": value for name, value in shape.items()})
    expected = losses_and_gradient(config, n_devices, chunk_size=2)
    layout = Layout(attention="gpu", vocabulary=64)
    found = losses_and_gradient(config, n_devices, chunk_size=2, kept_chunks=1, layout=layout)
    assert_same(found, expected)


def test_a_padded_vocabulary_changes_loss_and_gradient_by_rounding_alone(config, monkeypatch):
    """In a single chunk, which no `chunk_size` says."""
    gradient, shapes = step_module.loss_gradient, []

    def loss_gradient(params, chunks, **functions):
        shapes.append(jax.tree.leaves(chunks)[0].shape[:2])
        return gradient(params, chunks, **functions)

    monkeypatch.setattr(step_module, "loss_gradient", loss_gradient)
    expected = losses_and_gradient(config, chunk_size=0)
    found = losses_and_gradient(config, chunk_size=0, layout=Layout(vocabulary=64))
    assert_same(found, expected, tolerance=1e-6)
    assert shapes == [(1, 32)] * 2


def test_rounding_the_maps_once_is_rounding_them_in_each_chunk(config):
    settings = {"chunk_size": 8, "dtype": "bfloat16"}
    expected = losses_and_gradient(config, **settings)
    found = losses_and_gradient(config, **settings, layout=Layout(rounds_once=True))
    assert_same(found, expected)
    assert {x.dtype for x in jax.tree.leaves(found[1])} == {np.dtype("float32")}


def test_all_linear_maps_of_layers_are_rounded_and_nothing_else(config):
    params = init_params(model_of(config, open_store(config.data.store)), 0)
    rounded = round_maps(params, "bfloat16")
    found = {
        jax.tree_util.keystr(path, simple=True, separator="/"): x.dtype
        for path, x in jax.tree_util.tree_flatten_with_path(rounded)[0]
    }
    assert {*found.values()} == {jnp.dtype("bfloat16")}
    maps = ("query", "key", "value", "output", "mlp_in", "mlp_out")
    layers = ("layers_0", "layers_1", "head_0")
    expected = {
        f"{x}/{name}/{part}" for x in layers for name in maps for part in ("kernel", "bias")
    }
    assert {*found} == expected


class Device:
    def __init__(self, platform, kind, compute_capability="8.9"):
        self.platform, self.device_kind = platform, kind
        self.compute_capability = compute_capability


@pytest.mark.effect("pretrain train.attention")
def test_a_machine_has_its_layout(config):
    model_config = model_of(changed(config, model__hidden_size=768), open_store(config.data.store))
    model_config = model_config.from_dict(model_config.to_dict() | {"num_attention_heads": 12})
    loss = step_of(config, 1).loss._replace(dtype="bfloat16")

    def layout(platform, kind, length=128, **settings):
        devices = [Device(platform, kind)]
        return choose_layout(model_config, loss._replace(**settings), length, devices)

    assert layout("cpu", "cpu") == Layout()
    assert layout("cuda", "NVIDIA H200") == layout("gpu", "NVIDIA H200") == Layout("gpu", 64, True)
    assert layout("gpu", "NVIDIA L4", 129) == Layout("gpu", 64, True)
    assert layout("tpu", "TPU v4", 513) == Layout("xla", 1, True)
    assert layout("gpu", "NVIDIA L4", attention="xla", dtype="float32") == Layout("xla", 64)
    assert layout("tpu", "TPU v4") == Layout("tpu", 1, True)
    assert layout("tpu", "TPU v3") == Layout("xla", 1, True)
    older = [Device("gpu", "Tesla T4", "7.5")]
    assert choose_layout(model_config, loss, 128, older) == Layout("xla", 64, True)
    older = [Device("gpu", "NVIDIA V100", "7.0")]
    assert choose_layout(model_config, loss, 128, older) == Layout("xla", 64, True)
    none = "there is none for this device, only for NVIDIA GPUs since Ampere and for TPUs since v4"
    for platform, kind, length, said in (
        ("cpu", "cpu", 16, none),
        ("tpu", "TPU v3", 16, none),
        ("tpu", "TPU v4", 513, "on a TPU it takes up to 512 tokens, not 513"),
    ):
        line = f"config.train.attention is 'kernel': {said}; expected auto or xla"
        with pytest.raises(UserError, match=whole(line)):
            layout(platform, kind, length, attention="kernel")


def test_more_kept_chunks_than_there_are_are_refused(config):
    spec = batches_of(config)  # 4 spans on each of 8 devices
    check_batch(spec, 2, 16, 8, kept_chunks=2)
    with pytest.raises(
        UserError, match=whole("config.train.kept_chunks is 3, but a device has 2 chunks")
    ):
        check_batch(spec, 2, 16, 8, kept_chunks=3)
    check_batch(spec, "auto", 16, 8, kept_chunks="auto")
    with pytest.raises(
        UserError,
        match=whole(
            "config.train.kept_chunks is 2, but"
            " config.train.chunk_size is auto: expected auto for both, or the spans of a chunk"
        ),
    ):
        check_batch(spec, "auto", 16, 8, kept_chunks=2)


def test_as_many_chunks_of_a_given_size_may_be_kept_as_fit(config):
    check_batch(batches_of(config), 2, 16, 8, kept_chunks="auto")


def test_gpus_have_kernels_since_ampere():
    found = {
        capability: devices._has_kernels(Device("gpu", "NVIDIA X", capability))
        for capability in ("7.5", "8.0", "9.0", "10.0")
    }
    assert found == {"7.5": False, "8.0": True, "9.0": True, "10.0": True}


def test_tpus_have_kernels_since_the_fourth():
    kinds = ("TPU v2", "TPU v3", "TPU v4", "TPU v5 lite", "TPU v5", "TPU v6 lite")
    found = [kind for kind in kinds if devices._has_kernels(Device("tpu", kind))]
    assert found == ["TPU v4", "TPU v5 lite", "TPU v5", "TPU v6 lite"]
