"""Kernels are tried beside XLA before a run computes with them; here, interpreted."""

import functools
import json
import logging

import jax.numpy as jnp
import pytest

from cocondenser_jax.cli import main
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.errors import log_once
from cocondenser_jax.model import kernels, sum_norm
from cocondenser_jax.model.attention import AttentionSettings
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model.joint import attend_jointly
from cocondenser_jax.pretrain import kernel_check
from cocondenser_jax.pretrain.devices import settle_attention
from cocondenser_jax.pretrain.kernel_check import attention_check, find_fault, kernel_fault
from cocondenser_jax.pretrain.loop import train
from tests.pretrain.test_step import changed
from tests.world import interpret_kernels, model_of, read_metrics, step_of, write_experiment

SETTINGS = AttentionSettings(n_heads=2, rate=0.1)
BY_GPU = functools.partial(attend_jointly, platform="gpu")


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    interpret_kernels(monkeypatch.setattr)
    kernel_check.kernel_fault.cache_clear()
    log_once.cache_clear()


def other_masks(product, bias, mask, seeds, settings):
    return BY_GPU(product, bias, mask, seeds + jnp.uint32(1), settings)


def other_scale(product, bias, mask, seeds, settings):
    return BY_GPU(1.1 * product, bias, mask, seeds, settings)


def sees_padding(product, bias, mask, seeds, settings):
    return BY_GPU(product, bias, jnp.ones_like(mask), seeds, settings)


def not_a_number(product, bias, mask, seeds, settings):
    return BY_GPU(product, bias, mask, seeds, settings) * jnp.nan


def not_compiled(*_):
    raise NotImplementedError("no lowering\nof this")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_right_kernel_has_no_fault(dtype):
    assert find_fault(attention_check(BY_GPU, SETTINGS, (24, 16), dtype, has_biases=True)) == ""


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (other_masks, "its gradient of"),
        (other_scale, "its gradient of queries differs from XLA's by 0.3"),
        (sees_padding, "its gradient of"),
        (not_a_number, "its output differs from XLA's by inf of its norm, expected at most 0.02"),
        (not_compiled, "it fails: no lowering of this"),
    ],
)
def test_a_wrong_kernel_has_a_fault_that_is_named(kernel, said):
    assert said in find_fault(
        attention_check(kernel, SETTINGS, (24, 16), "bfloat16", has_biases=True)
    )


def test_each_kind_of_layer_is_tried_at_each_length(monkeypatch):
    """A length beyond what XLA has the room for ends within a block as it does.

    Layers that begin with their LayerNorm have no kernel for it, so that none is tried.
    """
    tried = []

    def attention_check(kernel, settings, shape, *others):
        tried.append((shape[0], settings.width))

    monkeypatch.setattr(kernel_check, "attention_check", attention_check)
    monkeypatch.setattr(kernel_check, "norm_check", lambda *others: tried.append("LayerNorm"))
    monkeypatch.setattr(kernel_check, "find_fault", lambda check: "")
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "skip_from": 1}
    config = ModelConfig(
        model_type="modernbert", local_attention=6, vocab_size=9, intermediate_size=8, **sizes
    )
    assert kernel_check.kernel_fault(config, "float32", "gpu", (14, 512, 1000)) == ""
    assert sorted(tried, key=str) == [
        (14, 3),
        (14, None),
        (488, 3),
        (488, None),
        (512, 3),
        (512, None),
    ]


def computed(workdir):
    return json.loads((workdir / "run.json").read_text())["computed"]


def test_a_right_kernel_is_taken(config, caplog):
    config = changed(config, model__attention_probs_dropout_prob=0.1)
    model_config = model_of(config, open_store(config.data.store))
    settings = step_of(config, 1).loss
    for attention in ("auto", "kernel"):
        asked = settings._replace(attention=attention)
        settled = asked._replace(attention="kernel"), ""
        assert settle_attention(model_config, asked, (14, 16)) == settled
    by_xla = settings._replace(attention="xla")
    assert settle_attention(model_config, by_xla, (14, 16)) == (by_xla, "")
    assert not [x for x in caplog.records if x.levelno >= logging.WARNING]


@pytest.fixture
def broken(monkeypatch):
    forward = kernels._gpu_forward
    monkeypatch.setattr(kernels, "_gpu_forward", lambda *args: 2 * forward(*args))


def test_a_run_does_without_a_wrong_kernel(config, tmp_path, caplog, broken):
    train(changed(config, train__steps=1), tmp_path / "run")
    found = computed(tmp_path / "run")
    assert found["attention"] == "xla"
    said = "on cpu the kernel of attention, 14 tokens: its output differs from XLA's by 1 of"
    assert found["fault"].startswith(said)
    (warned,) = (x.message for x in caplog.records if x.levelno >= logging.WARNING)
    assert warned == f"{found['fault']}: using XLA instead"
    train(changed(config, train__steps=1, train__attention="xla"), tmp_path / "xla")
    by_xla, instead = (read_metrics(tmp_path / name)[0]["loss"] for name in ("xla", "run"))
    assert instead == by_xla


def test_the_kernel_of_sums_and_layer_norm_is_tried_too(config, monkeypatch):
    config = changed(config, model__hidden_dropout_prob=0.1)
    model_config = model_of(config, open_store(config.data.store))
    monkeypatch.setattr(sum_norm, "drop", lambda x, *_: x)
    fault = kernel_fault(model_config, "float32", "gpu", (16,))
    assert fault.startswith("LayerNorm: its ")


def test_a_wrong_kernel_that_was_asked_for_ends_the_run(config, tmp_path, capsys, broken):
    asked = changed(config, train__attention="kernel")
    experiment = write_experiment(tmp_path, asked)
    command = ["pretrain", f"--config={experiment}", f"--workdir={tmp_path}/run"]
    assert main(command) == 2
    (line,) = (x for x in capsys.readouterr().err.splitlines() if "cocondenser: " in x)
    assert line.startswith(
        "cocondenser: config.train.attention is 'kernel': on cpu the kernel of attention, 14 tokens"
    )
    assert line.endswith("expected at most 0.02; expected auto or xla")
    assert not (tmp_path / "run" / "run.json").exists()


@pytest.mark.parametrize(
    ("platform", "expected"), [("gpu", ["attention", "LayerNorm"]), ("tpu", ["attention"])]
)
def test_the_kernel_of_layer_norm_is_tried_on_gpus_alone(monkeypatch, platform, expected):
    tried = []
    monkeypatch.setattr(kernel_check, "attention_check", lambda *_: tried.append("attention"))
    monkeypatch.setattr(kernel_check, "norm_check", lambda *_: tried.append("LayerNorm"))
    monkeypatch.setattr(kernel_check, "find_fault", lambda check: "")
    assert kernel_check.kernel_fault(ModelConfig(), "float32", platform, (16,)) == ""
    assert tried == expected


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_kernels_are_tried_in_the_dtype_and_with_the_biases_of_the_network(monkeypatch, family):
    tried = []

    def attention_check(kernel, settings, shape, dtype, has_biases):
        tried.append((dtype, has_biases))

    monkeypatch.setattr(kernel_check, "attention_check", attention_check)
    monkeypatch.setattr(kernel_check, "norm_check", lambda config, dtype: tried.append(dtype))
    monkeypatch.setattr(kernel_check, "find_fault", lambda check: "")
    kernel_check.kernel_fault(ModelConfig(family), "bfloat16", "gpu", (16,))
    expected = {"bert": {("bfloat16", True), "bfloat16"}, "modernbert": {("bfloat16", False)}}
    assert set(tried) == expected[family]
