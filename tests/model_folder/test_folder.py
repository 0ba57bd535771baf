"""Which files of a model folder are read."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

from cocondenser_jax.errors import UserError
from cocondenser_jax.model_folder.folder import (
    files_of_vectors,
    find_weights,
    linked_folder,
    lowers_case,
    read_representation,
    write_resolved,
)
from cocondenser_jax.representation import AS_IN_PAPERS, Given
from tests.published import MINILM
from tests.published_folders import write_folder


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


def test_texts_are_lowered_where_sentence_transformers_lowers_them(model_folder, tmp_path):
    """Without a modules.json, it does not read the settings that would say so."""
    folder = tmp_path / "model"
    SentenceTransformer(str(model_folder)).save_pretrained(str(folder), create_model_card=False)
    settings = folder / "sentence_bert_config.json"
    written = json.loads(settings.read_text())
    found = []
    for lowers in (False, True):
        settings.write_text(json.dumps(written | {"do_lower_case": lowers}))
        found.append(lowers_case(folder))
        assert SentenceTransformer(str(folder))[0].do_lower_case == lowers
    assert found == [False, True]
    (folder / "modules.json").unlink()
    assert not SentenceTransformer(str(folder))[0].do_lower_case
    assert not lowers_case(folder)


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        (["model-00001-of-00002", "model-00002-of-00002"], 2),
        (["model", "model-00001-of-00001"], 1),  # left from an earlier saving
        (["condenser_head", "adapter_model", "model-1"], 0),
    ],
)
def test_shards_are_read_where_no_single_file_is(tmp_path, present, expected):
    for name in reversed(present):
        (tmp_path / f"{name}.safetensors").touch()
    weights = [path.stem for path in find_weights(tmp_path)]
    assert weights == present[:expected]


def test_vectors_depend_on_modules_and_adapters_too(tmp_path):
    names = ["2_Dense/model.safetensors", "adapter_model.safetensors", "config.json", "vocab.txt"]
    for name in [*names, "README.md", "model.onnx"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [path.relative_to(tmp_path).as_posix() for path in files_of_vectors(tmp_path)] == names


def test_a_cross_encoder_is_no_bi_encoder_unless_that_is_said(cross_encoder_folder):
    for given in (Given(), Given(pooling="cls"), Given(similarity="dot")):
        with pytest.raises(UserError, match=r"scores pairs of texts, .* expected a bi-encoder"):
            read_representation(cross_encoder_folder, given)
    given = Given(pooling="cls", similarity="dot")
    assert read_representation(cross_encoder_folder, given).pooling == "cls"
    assert read_representation(cross_encoder_folder, plain=AS_IN_PAPERS).similarity == "dot"


def test_a_file_beside_the_folder_of_the_network_does_not_replace_its_own(tmp_path):
    """Releases before 2 kept their version in a config.json there."""
    start = write_folder(MINILM._replace(in_subfolder=True), tmp_path / "model")
    of_network = (start / "0_Transformer" / "config.json").read_text()
    (start / "config.json").write_text('{"__version__": "1.0.0"}')
    representation = read_representation(start)
    with linked_folder(start, representation) as linked:
        assert (linked / "config.json").read_text() == of_network
    write_resolved(start, representation, 32, tmp_path / "copy")
    assert (tmp_path / "copy" / "config.json").read_text() == of_network


def test_the_copy_of_a_folder_without_modules_has_no_file_that_only_modules_make_count(tmp_path):
    start = write_folder(MINILM._replace(modules=None, settings=None), tmp_path / "model")
    for name in ("sentence_bert_config.json", "sentence_xlnet_config.json"):
        (start / name).write_text('{"max_seq_length": 8}')
    representation = read_representation(start)
    write_resolved(start, representation, 32, tmp_path / "copy")
    assert read_representation(tmp_path / "copy") == representation
    lengths = [SentenceTransformer(str(tmp_path / n)).max_seq_length for n in ("model", "copy")]
    assert lengths == [32, 32]
