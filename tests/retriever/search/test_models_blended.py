"""Weights of two models, blended."""

import shutil

import pytest
import safetensors.torch
import torch

from cocondenser_jax.retriever.search import models


@torch.no_grad()
def test_blended_weights_are_weighted_means(make_model):
    one, other = (models.load_retriever(make_model(seed=seed)) for seed in (0, 1))
    before = {name: x.clone() for name, x in one.state_dict().items()}
    blended = models.blend(one, other, 0.25)
    torch.testing.assert_close(dict(one.state_dict()), before, rtol=0, atol=0)
    for name, value in blended.state_dict().items():
        if value.is_floating_point():
            expected = 0.75 * before[name] + 0.25 * other.state_dict()[name]
            torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("part", ["", "layer.1"], ids=["all", "some"])
def test_weights_of_16_bits_are_loaded_and_blended_in_float32(model_folder, tmp_path, dtype, part):
    exact = safetensors.torch.load_file(model_folder / "model.safetensors")
    rounded = {n: value.to(dtype) if part in n else value for n, value in exact.items()}
    folder = shutil.copytree(model_folder, tmp_path / "half")
    safetensors.torch.save_file(rounded, folder / "model.safetensors", {"format": "pt"})
    model = models.load_retriever(folder)
    # A third of the way to the exact weights: few of these numbers have 16 bits.
    blended = models.blend(model, models.load_retriever(model_folder), 1 / 3)
    found = [each[0].model.state_dict() for each in (model, blended)]
    for name, value in exact.items():
        start = rounded[name].float()
        for weights, expected in zip(found, (start, start + (value - start) / 3), strict=True):
            assert weights[name].dtype == torch.float32
            torch.testing.assert_close(weights[name], expected, rtol=1e-6, atol=1e-8)
