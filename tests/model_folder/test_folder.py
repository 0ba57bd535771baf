"""Which files of a model folder are read."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from cocondenser_jax.errors import UserError
from cocondenser_jax.model_folder.folder import (
    ModelFolder,
    Network,
    files_of_vectors,
    find_weights,
    is_cross_encoder,
    require_float_weights,
    require_outside,
    sha256_of,
)
from cocondenser_jax.representation import Representation


def test_the_weights_are_those_that_transformers_reads(model_folder, tmp_path):
    folder = shutil.copytree(model_folder, tmp_path / "model")
    single = folder / "model.safetensors"
    tensors = load_file(single)
    name = "embeddings.word_embeddings.weight"
    torch.save(tensors | {name: tensors[name] + 1}, folder / "pytorch_model.bin")
    save_file(tensors | {"other": torch.ones(1)}, folder / "adapter_model.safetensors")

    def is_first_format():
        return torch.equal(AutoModel.from_pretrained(folder).state_dict()[name], tensors[name])

    assert find_weights(folder) == [single]
    assert is_first_format()
    single.unlink()
    assert find_weights(folder) == [folder / "pytorch_model.bin"]
    assert not is_first_format()
    (folder / "pytorch_model.bin").unlink()
    assert find_weights(folder) == []


@pytest.mark.parametrize("as_bin", [False, True])
def test_shards_are_those_that_the_index_names(model_folder, tmp_path, as_bin):
    """Others may be left from an earlier save of more shards."""
    folder = shutil.copytree(model_folder, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    stem, suffix = ("pytorch_model", "bin") if as_bin else ("model", "safetensors")
    save = torch.save if as_bin else lambda part, path: save_file(part, path, {"format": "pt"})

    def write_shards(values, n):
        names = sorted(values)
        places = {}
        for k in range(n):
            file = f"{stem}-{k + 1:05d}-of-{n:05d}.{suffix}"
            save({name: values[name] for name in names[k::n]}, folder / file)
            places |= dict.fromkeys(names[k::n], file)
        return places

    write_shards({name: value + 1 for name, value in tensors.items()}, 3)
    index = folder / f"{stem}.{suffix}.index.json"
    places = write_shards(tensors, 2)
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    assert [path.name for path in find_weights(folder)] == sorted({*places.values()})
    read = AutoModel.from_pretrained(folder).state_dict()
    name = "embeddings.word_embeddings.weight"
    assert torch.equal(read[name], tensors[name])
    for content in ("{}", '{"weight_map": []}', '{"weight_map": {}}'):
        index.write_text(content)
        said = f"^{index}: expected the file of each tensor in weight_map$"
        with pytest.raises(UserError, match=said):
            find_weights(folder)
    index.unlink()
    assert find_weights(folder) == []
    with pytest.raises(OSError, match="no file named"):  # as transformers says
        AutoModel.from_pretrained(folder)


def test_vectors_depend_on_modules_adapters_and_what_links_lead_to(tmp_path):
    folder, elsewhere = tmp_path / "model", tmp_path / "elsewhere"
    names = ["2_Dense/model.safetensors", "2_Dense/pytorch_model.bin", "adapter_model.safetensors"]
    names += ["config.json", "merges.txt", "o200k.tiktoken", "spiece.model", "tokenizer.json"]
    names += ["vocab.json", "vocab.txt"]
    for name in [*names, "README.md", "model.onnx"]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / "2_Dense").rename(elsewhere)
    (folder / "2_Dense").symlink_to(elsewhere)
    (folder / "model.safetensors").symlink_to(tmp_path / "nowhere")
    found = [path.relative_to(folder).as_posix() for path in files_of_vectors(folder, also=())]
    assert found == names
    weights = tmp_path / "weights.bin"
    weights.touch()
    found = files_of_vectors(folder / "vocab.txt", [elsewhere, weights])
    assert found == [elsewhere / "model.safetensors", elsewhere / "pytorch_model.bin", weights]


def test_a_module_that_moves_is_another_model_and_a_folder_that_moves_is_not(tmp_path):
    folder = tmp_path / "model"
    (folder / "2_Dense").mkdir(parents=True)
    (folder / "2_Dense" / "model.safetensors").touch()
    before = sha256_of(folder, also=())
    folder = folder.rename(tmp_path / "moved")
    assert sha256_of(folder, also=()) == before
    (folder / "2_Dense").rename(folder / "2_Old")
    assert sha256_of(folder, also=()) != before


def opened(folder, networks):
    """Returns a model of networks at these places, with a dense layer outside its folder."""
    made = {task: Network(folder / place, {}, (weights,)) for task, (place, weights) in networks}
    dense = (folder.parent / "dense",)
    return ModelFolder("name", folder, made, Representation(), dense, False, True)


def test_a_models_checksum_is_of_all_that_is_read_with_it(tmp_path):
    """Of networks, their weights and dense layers, wherever links lead."""
    folder, weights = tmp_path / "model", [tmp_path / f"{n}.bin" for n in "ab"]
    files = [folder / "config.json", tmp_path / "tower" / "vocab.txt"]
    files += [tmp_path / "dense" / "model.safetensors", *weights]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.touch()
    networks = [("document", (".", weights[0])), ("query", ("../tower", weights[1]))]
    model = opened(folder, networks)
    seen = {model.sha256()}
    for file in files:
        file.write_text("changed")
        seen.add(model.sha256())
    assert len(seen) == len(files) + 1
    assert model.networks["query"].sha256() == sha256_of(folder / "../tower", [weights[1]])
    with pytest.raises(UserError, match=rf"^{folder} has two towers \(a Router\): expected one$"):
        _ = model.network
    single = opened(folder, networks[:1])
    assert single.network is single.networks["document"]
    assert hash(single) == hash(model)


def test_our_head_goes_before_that_of_a_research_checkpoint(tmp_path):
    model = opened(tmp_path, [("", ("", tmp_path / "w"))])
    assert model.head is None
    for name in ("model.pt", "condenser_head.safetensors"):
        (tmp_path / name).touch()
        assert model.head == tmp_path / name


def test_a_quantized_network_is_named():
    network = Network(Path("m"), {}, ())
    require_float_weights(network)
    for value, method in (({"quant_method": "awq"}, "awq"), ({"bits": 4}, "None"), ("x", "None")):
        said = (
            "m/config.json: quantization_config says that the weights are quantized"
            f" ({method}), which cannot be trained: expected the unquantized model"
        )
        with pytest.raises(UserError) as refused:
            require_float_weights(network._replace(config={"quantization_config": value}))
        assert str(refused.value) == said


def test_an_output_lies_outside_of_a_models_folder(tmp_path):
    model = tmp_path / "model"
    require_outside(model, model / "new")  # no folder: a name on the Hub
    model.mkdir()
    (tmp_path / "link").symlink_to(model)
    require_outside(model, tmp_path / "model2")
    require_outside(model / "deep", model)
    for out in (model, model / "new", tmp_path / "link" / "a" / "new"):
        said = f"{out} lies in the folder of the model, {model}: choose another place"
        with pytest.raises(UserError, match=f"^{said}$"):
            require_outside(model, out)


def test_a_cross_encoder_is_known_by_its_architecture():
    for names, expected in ((["BertForSequenceClassification"], True), (["BertModel"], False)):
        assert is_cross_encoder({"architectures": names}) is expected
    assert not is_cross_encoder({})
