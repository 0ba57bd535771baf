"""Which processes may share a fine-tuning; test_two_processes.py starts two."""

import os
import shlex
import signal
import threading

import pytest
import torch
from sentence_transformers import SentenceTransformerTrainingArguments

from cocondenser_jax.cli import main
from cocondenser_jax.retriever.train import processes, trainer
from cocondenser_jax.retriever.train.tasks import resolve


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.parametrize("name", ["finetune", "cross_encoder"])
def test_two_gpus_and_one_process_are_refused_with_the_command(
    name, two_gpus, config, monkeypatch, tmp_path, capsys
):
    (tmp_path / "run.trec").write_text("q Q0 a 1 1.0 test\n")
    (tmp_path / "model").mkdir()
    words = [
        "finetune",
        f"--config=configs/{name}.py",
        f"--workdir={tmp_path}/my run",
        f"--config.model.folder={tmp_path}/model",
        f"--config.data.folder={config.data.folder}",
        f"--config.data.negatives_run={tmp_path}/run.trec",
    ]
    assert main(words) == 2
    error = capsys.readouterr().err
    launch = ["torchrun", "--nproc_per_node=2", "-m", "cocondenser_jax.cli", *words]
    assert error == (
        "cocondenser: 2 GPUs are visible, and a process trains on one: run"
        f" {shlex.join(launch)}, or choose a GPU with CUDA_VISIBLE_DEVICES=0\n"
    )
    assert not (tmp_path / "my run").exists()

    monkeypatch.setenv("LOCAL_RANK", "0")  # as torchrun sets them
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert main(words) == 2
    assert "model has no config.json" in capsys.readouterr().err
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert main(words) == 2
    assert capsys.readouterr().err == (
        "cocondenser: torchrun starts 3 processes for 2 visible GPUs: expected --nproc_per_node=2\n"
    )


@pytest.mark.parametrize(
    ("rank", "seconds", "ends", "is_printed"),
    [("0", 60.0, False, True), ("1", 0.0, False, True), ("1", 60.0, True, False)],
)
def test_one_process_prints_an_error_unless_another_alone_meets_it(
    monkeypatch, capsys, rank, seconds, ends, is_printed
):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")  # as torchrun sets them
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr(processes, "SECONDS_FOR_MAIN", seconds)
    terminate = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM))
    if ends:  # torchrun ends it, for the main process has ended
        terminate.start()
    assert main(["convert", "--run_dir=/nowhere", "--out=/nowhere/out"]) == 2
    line = "cocondenser: /nowhere is not a run folder: it has no run.json\n"
    assert capsys.readouterr().err == (line if is_printed else "")


def test_a_process_that_was_ended_before_it_met_the_error_prints_nothing(monkeypatch):
    """Some libraries ignore every exception, such as the one by which a signal ends a command."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(processes.time, "sleep", pytest.fail)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        assert processes.main_process_reports()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_processes_that_cannot_share_a_step_are_refused(config, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("WORLD_SIZE", "3")
    words = [
        "finetune",
        "--config=configs/finetune.py",
        f"--workdir={tmp_path}/run",
        f"--config.model.folder={config.model.folder}",
        f"--config.data.folder={config.data.folder}",
    ]
    assert main(words) == 2
    said = "config.data.batch_size is 8: expected a multiple of the 3 processes that share it"
    assert capsys.readouterr().err == f"cocondenser: {said}\n"


def test_a_process_never_divides_a_batch_among_gpus(config, trains_on_two_gpus, tmp_path):
    """As quickstart and adapt train, which no torchrun has started."""
    settings = resolve(config, tmp_path).trainer
    assert SentenceTransformerTrainingArguments(output_dir=tmp_path, use_cpu=True).n_gpu == 2
    assert trainer.arguments(SentenceTransformerTrainingArguments, settings).n_gpu == 1
