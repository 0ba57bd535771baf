"""Which GPU a process or a worker gets, on machines that have them and on machines that do not."""

import pytest
import torch

from cocondenser_jax.cli import main
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.workers import Engine
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.retriever.search.encode import Encoding, encode_corpus
from cocondenser_jax.retriever.search.gpus import visible_gpus, with_gpus
from tests.lines import whole
from tests.processes import fork_workers
from tests.worker_tasks import encode_nothing


@pytest.fixture
def two_gpus(monkeypatch):
    """A machine with two GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def test_gpus_are_named_as_the_user_named_them(two_gpus, monkeypatch):
    assert visible_gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,GPU-7")
    assert visible_gpus() == ["6", "GPU-7"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,GPU-7,-1,8")  # CUDA stops at what is none
    assert visible_gpus() == ["6", "GPU-7"]


def test_no_gpu_is_visible_where_none_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert with_gpus(Engine(tasks=8, workers=4)).gpus == []


def test_each_local_worker_gets_a_gpu_and_no_two_the_same(two_gpus):
    assert with_gpus(Engine(tasks=8)).gpus == ["0", "1"]
    assert with_gpus(Engine(tasks=8, workers=2)).gpus == ["0", "1"]
    assert with_gpus(Engine(tasks=2, workers=8)).gpus == ["0", "1"]  # two at work
    assert with_gpus(Engine(tasks=8, workers=8, executor="slurm")).gpus == ()
    with pytest.raises(
        UserError, match=whole("--workers=3 on 2 visible GPUs: expected at most a worker for each")
    ):
        with_gpus(Engine(tasks=8, workers=3))


def test_more_workers_than_gpus_are_refused(two_gpus, model_folder, beir, tmp_path, capsys):
    command = ["encode", f"--model={model_folder}", f"--corpus={beir}", f"--out={tmp_path}/out"]
    assert main([*command, "--tasks=8", "--workers=8"]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("cocondenser: --workers=8 on 2 visible GPUs: ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("named", [None, "3,5"])
def test_workers_of_encode_see_a_gpu_each(
    two_gpus, model_folder, beir, tmp_path, monkeypatch, named
):
    if named:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    fork_workers(monkeypatch)
    encoding = Encoding(open_model(model_folder), max_length=16, backend=encode_nothing)
    encode_corpus(encoding, beir, tmp_path / "out", shard_size=2, engine=Engine(tasks=6))
    seen = (tmp_path / "seen").read_text().split()  # a worker loads its model once
    assert sorted(seen) == (named or "0,1").split(",")
