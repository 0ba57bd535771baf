"""What is published of accelerators, and the operations of a span."""

from types import SimpleNamespace

import jax
import pytest

from cocondenser_jax.corpus.batches import BatchSpec
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model.flops import encode_flops, forward_flops
from cocondenser_jax.pretrain.accelerators import model_flops, peak_flops
from cocondenser_jax.pretrain.step import LossSettings

SPEC = BatchSpec(seed=0, batch_size=256, length=128)


@pytest.mark.parametrize(
    ("kind", "tflops"),
    [
        ("TPU v3", 61.5),
        ("TPU v5 lite", 197),
        ("TPU v5", 459),
        ("TPU v6 lite", 918),
        ("NVIDIA H200", 989),
    ],
)
def test_the_peak_of_devices_is_that_of_their_kind(kind, tflops):
    devices = [SimpleNamespace(device_kind=kind)] * 8
    assert peak_flops(devices, "bfloat16") == 8 * tflops * 1e12
    assert peak_flops(devices, "float32") is None


def test_the_peak_of_other_devices_is_not_known():
    assert peak_flops(jax.devices(), "bfloat16") is None


def test_the_operations_of_a_span_are_those_of_three_forward_passes():
    model = ModelConfig()
    settings = LossSettings(dtype="bfloat16", chunk_size=64)
    assert model_flops(model, settings, SPEC) == 3 * forward_flops(model, 128, 26)
    # Without MLM the head is not computed.
    contrastive = settings._replace(objective="contrastive")
    assert model_flops(model, contrastive, SPEC) == 3 * encode_flops(model, 128)
    # Bag-of-words prediction is one more row of the MLM projection; D (D + V) multiply-adds.
    bow = model_flops(model, settings._replace(objective="bow"), SPEC)
    assert bow == 3 * (forward_flops(model, 128, 26) + 2 * 768 * (768 + 30522))
    # A pair of copies goes through the backbone once, and through the head once.
    copies = SPEC._replace(example="copies", decoder_mask_probability=0.5)
    retromae = settings._replace(objective="retromae")
    assert model_flops(model, retromae, copies) == 3 * forward_flops(model, 128, 26 + 45) // 2
