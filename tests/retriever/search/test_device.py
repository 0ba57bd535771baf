"""`--device=cuda`: the ranks of the CPU, by PyTorch on a CPU that stands for the GPU."""

import numpy as np
import pytest
import torch

from cocondenser_jax.cli import main
from cocondenser_jax.retriever.data.trec import read_run
from cocondenser_jax.retriever.search import exact, opening


@pytest.fixture(scope="module")
def encoded(model_folder, beir, tmp_path_factory):
    place = tmp_path_factory.mktemp("encoded")
    command = ["encode", f"--model={model_folder}", f"--corpus={beir}", "--shard_size=25"]
    assert main([*command, f"--out={place}/embeddings"]) == 0
    assert main(["index", f"--embeddings={place}/embeddings", f"--out={place}/index"]) == 0
    return place


@pytest.fixture
def gpu(monkeypatch):
    """A device that stands for a GPU; a list of what is computed on it."""
    used = []
    find = opening.nearest_in_torch

    def find_on_cpu(shards, queries_QxD, k, device):
        used.append((device, len(queries_QxD)))
        return find(shards, queries_QxD, k, "cpu")

    monkeypatch.setattr(opening, "nearest_in_torch", find_on_cpu)
    monkeypatch.setattr(opening, "require_gpu", lambda device: None)
    return used


@pytest.mark.filterwarnings("error:The given NumPy array is not writable")
@pytest.mark.effect("retrieve --device")
def test_a_gpu_finds_what_the_cpu_finds(encoded, model_folder, beir, gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(exact, "_BLOCK_ROWS", 10)
    monkeypatch.setattr(exact, "_QUERIES_AT_ONCE", 7)
    command = ["retrieve", f"--embeddings={encoded}/embeddings", f"--model={model_folder}"]
    command += [f"--data={beir}", "--depth=40"]
    assert main([*command, f"--run_out={tmp_path}/cpu"]) == 0
    assert not gpu
    assert main([*command, f"--run_out={tmp_path}/gpu", "--device=cuda"]) == 0
    assert gpu == [("cuda", 24)]
    runs = [read_run(tmp_path / name) for name in ("cpu", "gpu")]
    assert [[*found] for found in runs[1].values()] == [[*found] for found in runs[0].values()]
    for query, found in runs[0].items():
        np.testing.assert_allclose([*runs[1][query].values()], [*found.values()], rtol=1e-5)


@pytest.mark.effect("search --device")
def test_a_query_on_a_gpu(encoded, model_folder, gpu, capsys):
    command = ["search", f"--embeddings={encoded}/embeddings", f"--model={model_folder}"]
    command += ["--query=abcde bcdef"]
    assert main(command) == 0
    expected = capsys.readouterr().out
    assert main([*command, "--device=cuda"]) == 0
    assert capsys.readouterr().out == expected
    assert gpu == [("cuda", 1)]


def test_a_gpu_where_there_is_none_or_nothing_for_it(encoded, model_folder, monkeypatch, capsys):
    command = ["search", f"--model={model_folder}", "--query=abcde", "--device=cuda"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([*command, f"--embeddings={encoded}/embeddings"]) == 2
    assert capsys.readouterr().err == (
        f"cocondenser: --device=cuda: PyTorch {torch.__version__} sees no GPU; expected one, or"
        " --device=cpu\n"
    )
    assert main([*command, f"--index={encoded}/index"]) == 2
    assert "--device goes with --embeddings" in capsys.readouterr().err
