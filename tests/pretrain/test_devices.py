"""What is mapped over the devices of a host, and what libtpu is told before it is loaded."""

import dataclasses
import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cocondenser_jax.corpus.batches import Batch, BatchSpec
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.errors import UserError
from cocondenser_jax.model import joint
from cocondenser_jax.model.condenser import init_params
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model.layout import Layout
from cocondenser_jax.pretrain import devices
from cocondenser_jax.pretrain.devices import (
    batch_gradient,
    mapped_encode,
    mapped_forward,
    needed_memory,
    settle_attention,
)
from cocondenser_jax.pretrain.step import LossSettings
from tests.world import batches_of, encode_in_flax, interpret_kernels, model_of, step_of


def printed_by(program, **environment):
    command = [sys.executable, "-c", f"import os, jax\n{program}"]
    return subprocess.check_output(command, env=os.environ | environment, text=True)


@pytest.mark.parametrize(
    ("given", "expected"), [("", []), ("--mine=1 --other=2", ["--mine=1", "--other=2"])]
)
def test_libtpu_gets_a_larger_stack_and_then_the_users_flags(given, expected):
    """Without the stack, libtpu 0.0.42 crashes when it compiles BERT-base's step for v4 or v6e."""
    program = """
from cocondenser_jax.pretrain.devices import prepare_libtpu
prepare_libtpu()
prepare_libtpu()
print(os.environ["LIBTPU_INIT_ARGS"])
"""
    flags = printed_by(program, LIBTPU_INIT_ARGS=given).split()
    assert flags == ["--fibers_default_thread_stack_size=1048576", *expected]


def test_importing_the_devices_changes_no_environment():
    program = """
before = dict(os.environ)
import cocondenser_jax.pretrain.devices
print(dict(os.environ) == before)
"""
    assert printed_by(program, LIBTPU_INIT_ARGS="--mine=1") == "True\n"


ENCODER = ModelConfig(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
    n_head_layers=0,
    skip_from=0,
    late_mlm=True,
)


def texts_of(n_texts):
    """Ids, mask and lengths of prompts."""
    rng = np.random.default_rng(0)
    ids_BxL = rng.integers(5, 50, (n_texts, 16)).astype(np.int32)
    mask_BxL = np.arange(16) < rng.integers(4, 17, n_texts)[:, None]
    return ids_BxL, mask_BxL, rng.integers(0, 4, n_texts).astype(np.int32)


@pytest.mark.parametrize("n_texts", [1, 11])
def test_each_text_gets_its_own_vector_on_whatever_device(n_texts):
    """Of eight devices, two texts each: the last five rows of eleven texts stand for none."""
    params = init_params(ENCODER, 0)
    ids_BxL, mask_BxL, prompts_B = texts_of(n_texts)
    expected_BxD = [
        encode_in_flax(ENCODER, params, row[None], mask[None], None, n[None])[0]
        for row, mask, n in zip(ids_BxL, mask_BxL, prompts_B, strict=True)
    ]
    encode = mapped_encode(ENCODER, params, "float32", batch_size=11)
    found_BxD = encode(ids_BxL, mask_BxL, prompts_B)
    np.testing.assert_allclose(found_BxD, expected_BxD, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("dtype", "expected"), [("float32", "highest"), ("bfloat16", None)])
def test_products_of_float32_are_not_rounded_nor_is_a_kernel_tried_with_others(
    monkeypatch, dtype, expected
):
    found = {}

    def noting(name, function):
        def noted(*arguments):
            found[name] = jax.config.jax_default_matmul_precision
            return function(*arguments)

        return noted

    def encoder(*of):
        return noting("run", make(*of))

    make = devices._mapped_encoder
    monkeypatch.setattr(devices, "_mapped_encoder", encoder)
    settle = noting("kernel", devices.settle_attention)
    monkeypatch.setattr(devices, "settle_attention", settle)
    mapped_encode(ENCODER, init_params(ENCODER, 0), dtype, batch_size=8)(*texts_of(8))
    assert found == {"kernel": expected, "run": expected}


def test_the_forward_pass_of_a_probe_has_the_dtype_of_its_run():
    params = devices.replicate(init_params(ENCODER, 0))
    ids_BxL, mask_BxL, _ = texts_of(8)
    batch = Batch.zeros(8, 16, 4)._replace(input_ids_SxL=ids_BxL, attention_mask_SxL=mask_BxL)
    exact_BxD, rounded_BxD = (
        mapped_forward(ENCODER, dtype, 1)(params, batch)[0] for dtype in ("float32", "bfloat16")
    )
    expected_BxD = encode_in_flax(ENCODER, init_params(ENCODER, 0), ids_BxL, mask_BxL)
    np.testing.assert_allclose(exact_BxD, expected_BxD, rtol=0, atol=1e-5)
    assert 1e-4 < np.abs(rounded_BxD - expected_BxD).max() < 0.1


def test_vectors_are_computed_by_the_kernel_where_there_is_one(monkeypatch):
    config = dataclasses.replace(ENCODER, hidden_size=32)  # compiled by no other test
    params, texts = init_params(config, 0), texts_of(8)
    expected_BxD = encode_in_flax(config, params, *texts[:2], None, texts[2])
    interpret_kernels(monkeypatch.setattr)
    monkeypatch.setattr(devices, "kernel_fault", lambda *_: "")
    platforms = []
    attend = joint.attend_whole
    monkeypatch.setattr(
        joint, "attend_whole", lambda *of: (platforms.append(of[-1]), attend(*of))[1]
    )
    found_BxD = mapped_encode(config, params, "float32", batch_size=8)(*texts)
    assert platforms == ["gpu"]  # the last layer computes [CLS] alone, by XLA
    np.testing.assert_allclose(found_BxD, expected_BxD, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "settings", "message"),
    [
        ({"vocab_size": 100}, {}, "the batch has a token 100, but vocab_size is 100"),
        (
            {"max_position_embeddings": 8},
            {},
            "the batch has spans of 12 tokens; the model reads 8",
        ),
        (
            {"model_type": "roberta", "max_position_embeddings": 12},
            {},
            "the batch has spans of 12 tokens; the model reads 11",
        ),
        ({}, {"chunk_size": 3}, "chunk_size 3 does not divide 4 spans"),
        ({}, {"chunk_size": -2}, "chunk_size -2 does not divide 4 spans"),
        ({}, {"objective": "coCondenser"}, "no objective 'coCondenser': did you mean cocondenser"),
        (  # the spans have as many tokens as the model reads
            {"max_position_embeddings": 12},
            {"objective": "coCondenser"},
            "no objective 'coCondenser': did you mean cocondenser",
        ),
        ({}, {"mlm_reduction": "mean"}, "no mlm_reduction 'mean': did you mean token_mean"),
    ],
)
def test_the_gradient_of_what_does_not_fit_is_refused(changes, settings, message):
    """Of the first three, JAX would compute NaN; of the last, the other reduction."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "skip_from": 1}
    config = ModelConfig(**{"vocab_size": 101, "intermediate_size": 8, **sizes, **changes})
    batch = Batch.zeros(4, 12, n_slots=2)
    batch.input_ids_SxL[2, 1] = 100
    with pytest.raises(UserError, match=message):
        batch_gradient(config, LossSettings(**settings), init_params(config, 0), batch)


def test_what_a_step_needs_counts_everything_once():
    """What grows with the chunk is what XLA lays out as temporaries, without the gradient's sum."""
    analysis = SimpleNamespace(
        argument_size_in_bytes=10_000,
        output_size_in_bytes=9_000,
        alias_size_in_bytes=8_500,  # outputs in the place of arguments
        temp_size_in_bytes=3_000,
        generated_code_size_in_bytes=70,
    )
    program = SimpleNamespace(memory_analysis=lambda: analysis)
    params = {"kernel": np.zeros((10, 20), np.float32), "bias": np.zeros(10, np.float32)}
    found = needed_memory(program, SimpleNamespace(params=params))
    assert found.activations == 3_000 - 4 * 210
    assert found.activations + found.others == 10_000 + 500 + 3_000 + 70


def test_chunks_are_to_fit_the_memory_that_a_device_has(config, monkeypatch):
    given = []
    device = SimpleNamespace(memory_stats=lambda: {"bytes_in_use": 3, "bytes_limit": 7})
    monkeypatch.setattr(devices.jax, "local_devices", lambda: [device])
    monkeypatch.setattr(devices, "fit_chunks", lambda *arguments: given.extend(arguments))
    settings, spec = step_of(config, 1), batches_of(config)
    devices.choose_chunks(None, settings, spec)
    assert given[2:4] == [4, 7]  # of 32 spans, on each of eight devices
    # What is tried is what is compiled and measured.
    compiled = []
    monkeypatch.setattr(devices, "compile_step", lambda *arguments: compiled.append(arguments))
    monkeypatch.setattr(devices, "state_shapes", lambda model, tried: tried)
    monkeypatch.setattr(devices, "needed_memory", lambda program, state: state)
    tried = settings._replace(loss=settings.loss._replace(chunk_size=3))
    assert tried != settings
    *_, measure = given
    assert measure(tried.loss) == tried
    assert compiled == [(None, tried, spec, devices.all_devices())]


def test_an_example_that_is_none_is_refused():
    with pytest.raises(UserError, match="no example 'span_pairs': did you mean spans"):
        _ = BatchSpec(seed=0, batch_size=2, length=8, example="span_pairs").n_rows


def test_a_device_without_kernels_computes_attention_by_xla():
    config = ModelConfig(vocab_size=90, hidden_size=32, num_attention_heads=2)
    settings = LossSettings(attention="auto")
    settled = settle_attention(config, settings, (8, 16))
    assert settled == (settings._replace(attention="xla"), "")


@pytest.mark.parametrize(
    ("platform", "reason"),
    [("cpuu", "Unable to initialize"), ("cuda", "its plugin is not installed")],
)
def test_a_platform_that_is_not_here_is_refused_in_one_line(
    platform, reason, store_folder, tmp_path
):
    """Of a misspelled name JAX (0.10.2) says what it knows; of cuda without its plugin nothing."""
    command = [sys.executable, "-m", "cocondenser_jax.cli", "pretrain"]
    command += ["--config=configs/small.py:condenser", f"--workdir={tmp_path}/run"]
    ended = subprocess.run(
        [*command, f"--config.data.store={store_folder}"],
        env=os.environ | {"JAX_PLATFORMS": platform},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"cocondenser: JAX_PLATFORMS={platform}: {reason}")
    assert line.endswith("; expected a platform of this machine, such as cpu, or nothing")
    assert not (tmp_path / "run").exists()


def test_vectors_are_computed_with_the_vocabulary_as_it_is(monkeypatch):
    """A GPU's layout pads it, for the tokens that training predicts."""
    config = dataclasses.replace(ENCODER, hidden_size=48)  # compiled by no other test
    params, texts = init_params(config, 0), texts_of(8)
    expected_BxD = encode_in_flax(config, params, *texts[:2], None, texts[2])
    monkeypatch.setattr(devices, "choose_layout", lambda *_: Layout("xla", vocabulary=64))
    found_BxD = mapped_encode(config, params, "float32", batch_size=8)(*texts)
    np.testing.assert_allclose(found_BxD, expected_BxD, rtol=0, atol=1e-5)


def test_what_is_measured_gives_its_state_over_as_a_run_does(config, monkeypatch):
    noted = []
    lowered = SimpleNamespace(compile=noted.append)
    mapped = SimpleNamespace(lower=lambda state, batch: lowered)

    def pmap(function, used, **options):
        noted.append(options)
        return mapped

    monkeypatch.setattr(devices, "_pmap", pmap)
    model_config = model_of(config, open_store(config.data.store))
    arguments = model_config, step_of(config, 1), batches_of(config), jax.devices()
    devices.compile_step(*arguments, {"an": "option"})
    assert noted == [{"donate": True}, {"an": "option"}]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_of_a_probes_vectors_that_are_not_finite_are_zero(monkeypatch, value):
    def forward_sums(model_config, dtype, n_rows, params, batch):
        vectors_SxD = jnp.where(batch.input_ids_SxL == 7, value, 2.0)
        return jax.lax.all_gather(vectors_SxD, devices.AXIS, tiled=True), {}

    monkeypatch.setattr(devices, "forward_sums", forward_sums)
    batch = Batch.zeros(8, 4, n_slots=0)
    batch.input_ids_SxL[3, 1] = 7
    found_SxD, _ = mapped_forward(ENCODER, "float32", 1)(np.zeros(1), batch)
    np.testing.assert_array_equal(found_SxD, np.where(batch.input_ids_SxL == 7, 0.0, 2.0))
