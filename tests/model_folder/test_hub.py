"""Models of the hub, in a cache that is filled by hand: no test has a network."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest

from cocondenser_jax.cli import main
from cocondenser_jax.errors import UserError
from cocondenser_jax.model_folder.hub import find_folder, require_place
from cocondenser_jax.model_folder.model import open_model, open_network
from cocondenser_jax.retriever.search.cross_encoders import load_cross_encoder
from cocondenser_jax.retriever.search.models import load_retriever
from tests.retrieval_data import read_vectors
from tests.world import as_flags

TEXTS = ["abc abd", "hgf"]
Publish = Callable[[str, Path], Path]


@pytest.fixture
def publish(tmp_path, monkeypatch):
    """Puts a folder into the cache as huggingface_hub keeps a model."""
    cache = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))

    def put(name, folder):
        place = cache / f"models--{name.replace('/', '--')}"
        (place / "refs").mkdir(parents=True)
        (place / "refs" / "main").write_text("0123abc")
        return Path(shutil.copytree(folder, place / "snapshots" / "0123abc"))

    return put


def test_a_file_is_no_name_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    require_place("model.bin")
    require_place(tmp_path)
    Path("model.bin").touch()
    for place in ("model.bin", "no/such/folder", "../a", "a b", "/a", "a/.b"):
        with pytest.raises(UserError) as refused:
            require_place(place)
        said = "no such folder, and not the name of a model on the hub"
        assert str(refused.value) == f"{place}: {said}"


def test_a_name_is_the_folder_in_the_cache(publish, model_folder):
    snapshot = publish("me/small", model_folder)
    assert find_folder("me/small") == snapshot
    assert find_folder(model_folder) == model_folder
    assert open_model(Path("me/small")).sha256() == open_model(model_folder).sha256()
    vectors = [load_retriever(f).encode_query(TEXTS) for f in (Path("me/small"), model_folder)]
    np.testing.assert_array_equal(*vectors)


def test_a_folder_comes_before_a_model_of_that_name(publish, model_folder, tmp_path, monkeypatch):
    publish("me/small", model_folder)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "me" / "small").mkdir(parents=True)
    assert find_folder("me/small") == Path("me/small")


def test_what_is_downloaded_of_a_model(monkeypatch, tmp_path):
    """Of files as two towers and as sentence-transformers have them, in both formats of weights."""
    names = "model.safetensors", "model-00001-of-00002.safetensors"
    weights = [f"{place}{name}" for place in ("", "query_0_Transformer/") for name in names]
    weights.append("document_2_Dense/model.safetensors")
    others = ["config.json", "query_0_Transformer/config.json", "2_Dense/model.safetensors"]
    others += ["vocab.txt", "1_Pooling/config.json", "sentencepiece.bpe.model", "o200k.tiktoken"]
    others += ["bpe.codes"]
    others += ["merges.txt", "condenser_head.safetensors", "model.pt"]
    left = ["pytorch_model.bin", "onnx/model.onnx", "README.md", "checkpoint-7/model.safetensors"]

    def download(name, allow_patterns):
        kept = huggingface_hub.utils.filter_repo_objects(
            [*weights, *others, *left], allow_patterns=allow_patterns
        )
        for file in kept:
            (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / file).touch()
        return str(tmp_path / name)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)

    def found(name):
        folder = find_folder(name)
        return {f.relative_to(folder).as_posix() for f in folder.rglob("*") if f.is_file()}

    assert found("two") == {*weights, *others}
    weights.clear()
    others.remove("2_Dense/model.safetensors")
    left.append("query_0_Transformer/pytorch_model-00001-of-00002.bin")
    assert found("old") == {*others, left[0], left[-1]}


@pytest.mark.parametrize("name", ["nobody/no-such-model", "no-such-model"])
def test_an_unknown_name_is_one_line(name, publish, beir, tmp_path, capfd):
    run = tmp_path / "run.trec"
    run.write_text("q0 Q0 d0 1 1.0 x\n")
    for command in (
        ["encode", f"--corpus={beir}", f"--out={tmp_path}/out"],
        ["rerank", f"--data={beir}", f"--run={run}", f"--run_out={tmp_path}/out"],
    ):
        assert main([*command, f"--model={name}"]) == 2
        (line,) = capfd.readouterr().err.splitlines()
        message = f"cocondenser: {name}: no such folder, no network, and not in the hub's cache: "
        assert line.startswith(f"{message}give a folder (")
    assert not (tmp_path / "out").exists()


def test_commands_take_names(publish, model_folder, cross_encoder_folder, beir, tmp_path):
    publish("me/retriever", model_folder)
    publish("cross", cross_encoder_folder)
    embeddings, run = f"{tmp_path}/embeddings", f"{tmp_path}/run.trec"
    model = "--model=me/retriever"
    for backend in ("torch", "jax"):
        words = ["encode", model, f"--corpus={beir}", f"--out={embeddings}-{backend}"]
        assert main([*words, f"--backend={backend}"]) == 0
    torch_NxD, jax_NxD = (
        read_vectors(Path(f"{embeddings}-{backend}")) for backend in ("torch", "jax")
    )
    np.testing.assert_allclose(torch_NxD, jax_NxD, atol=1e-4)
    manifest = json.loads(Path(f"{embeddings}-torch/manifest.json").read_text())
    assert manifest["model"] == "me/retriever"
    words = [f"--embeddings={embeddings}-torch", model, f"--data={beir}", "--depth=5"]
    assert main(["retrieve", *words, f"--run_out={run}"]) == 0
    words = ["--model=cross", f"--data={beir}", f"--run={run}", f"--run_out={tmp_path}/reranked"]
    assert main(["rerank", *words]) == 0
    settings = {
        "model.folder": "me/retriever",
        "model.query_length": 8,
        "model.passage_length": 16,
        "data.folder": beir,
        "data.negatives_per_query": 0,
        "train.max_steps": 1,
    }
    command = ["finetune", "--config=configs/finetune.py", f"--workdir={tmp_path}/run"]
    assert main([*command, *as_flags(settings)]) == 0
    trained = load_retriever(tmp_path / "run" / "retriever")
    assert trained.get_embedding_dimension() == 32
    settings = json.loads((tmp_path / "run" / "finetune.json").read_text())
    assert settings["sha256"]["model"] == open_model(model_folder).sha256()
    assert load_cross_encoder(open_network(Path("cross"))).predict([("a", "b")]).shape == (1,)


@pytest.mark.parametrize(
    "error", [OSError, ValueError, RuntimeError, EOFError, json.JSONDecodeError("no JSON", "", 0)]
)
def test_whatever_the_hub_raises(error, monkeypatch):
    def download(*_, **__):
        raise error if isinstance(error, Exception) else error("it failed:\n\n  the cause")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(UserError) as refused:
        find_folder("some/model")
    said = "some/model: no such folder, and the model cannot be had from the hub: "
    why = "it failed: the cause" if isinstance(error, type) else "no JSON: line 1 column 1 (char 0)"
    assert str(refused.value) == f"{said}{why}"
