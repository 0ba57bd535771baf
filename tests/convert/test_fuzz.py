"""Whatever a file holds, it is read or refused with one clear line; and nothing in it is run."""

import shutil

import pytest
import torch

from cocondenser_jax.convert.from_torch import load_folder
from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.search.models import load_retriever
from tests.mutations import Payload, fuzz_file


@pytest.mark.parametrize("name", ["config.json", "condenser.json", "model.safetensors", "model.pt"])
def test_broken_weights_load_or_are_refused(name, research_folders, tmp_path):
    folder = shutil.copytree(research_folders["bert"], tmp_path / "model")
    (folder / "condenser.json").write_text('{"n_head_layers": 2, "skip_from": 1, "late_mlm": true}')
    fuzz_file(folder, name, lambda folder: load_folder(str(folder)), 0.1)


@pytest.mark.parametrize("load", [lambda folder: load_folder(str(folder)), load_retriever])
def test_a_pickle_of_code_is_refused_and_not_run(load, research_folders, tmp_path):
    folder = shutil.copytree(research_folders["bert"], tmp_path / "model")
    (folder / "model.safetensors").unlink()
    torch.save({"x": Payload(tmp_path / "ran")}, folder / "pytorch_model.bin")
    with pytest.raises(UserError):
        load(folder)
    assert not (tmp_path / "ran").exists()
    torch.load(folder / "pytorch_model.bin", weights_only=False)
    assert (tmp_path / "ran").exists()  # the payload is one
