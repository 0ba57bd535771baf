"""Weights in 16 bits, of all parameters or some."""

import shutil

import pytest
import safetensors.torch
import torch

from cocondenser_jax.retriever.search import models


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("part", ["", "layer.1"], ids=["all", "some"])
def test_weights_of_16_bits_are_loaded_in_float32(model_folder, tmp_path, dtype, part):
    exact = safetensors.torch.load_file(model_folder / "model.safetensors")
    rounded = {n: value.to(dtype) if part in n else value for n, value in exact.items()}
    folder = shutil.copytree(model_folder, tmp_path / "half")
    safetensors.torch.save_file(rounded, folder / "model.safetensors", {"format": "pt"})
    model = models.load_retriever(folder)
    found = model[0].model.state_dict()
    for name, value in rounded.items():
        assert found[name].dtype == torch.float32
        torch.testing.assert_close(found[name], value.float(), rtol=0, atol=0)
