"""Two processes, as torchrun starts them, against one: losses, gradients, weights, and resuming."""

import os
import subprocess
import sys

import numpy as np
import pytest
from safetensors.torch import load_file

from cocondenser_jax import cli
from cocondenser_jax.configs import cross_encoder as cross_encoder_config
from cocondenser_jax.configs import finetune as finetune_config
from cocondenser_jax.retriever.search.models import load_retriever
from cocondenser_jax.retriever.train import trainer
from cocondenser_jax.retriever.train.tasks import finetune
from tests.processes import run_under_torchrun
from tests.world import as_flags, change_settings, read_metrics


def killed_at_a_step(words):
    """The command, in processes that all end at a step, before its checkpoint."""

    def end(self, args, state, control, **kwargs):
        if state.global_step == 7:
            os._exit(9)

    trainer._CheckpointCallback.on_step_begin = end
    return cli.main(words)


def command_of(config, workdir, settings):
    return [
        *("finetune", f"--config={config.__file__}", f"--workdir={workdir}"),
        *as_flags(settings),
    ]


def compare(one, two, model):
    """Compares the metrics and the weights of two run folders; returns what was logged."""
    logged_one, logged_two = read_metrics(one), read_metrics(two)
    found = [
        [m.get("eval_loss") for m in run if "loss" not in m] for run in (logged_one, logged_two)
    ]
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4)
    logged_one, logged_two = ([m for m in run if "loss" in m] for run in (logged_one, logged_two))
    for name, rtol in (("step", 0), ("loss", 1e-4), ("grad_norm", 1e-3)):
        values = [[m[name] for m in run] for run in (logged_one, logged_two)]
        np.testing.assert_allclose(values[1], values[0], rtol=rtol)
    weights = [load_file(folder / model / "model.safetensors") for folder in (one, two)]
    assert weights[0].keys() == weights[1].keys()
    for name, weight in weights[0].items():
        # Their gradients are 0, but for rounding, and Adam divides by it.
        if not name.endswith(("key.bias", "classifier.bias")):
            np.testing.assert_allclose(weights[1][name], weight, atol=1e-4, err_msg=name)
    return [m["step"] for m in logged_two], found[0]


# 12 steps: the last is not a multiple of 5, and is logged all the same.
@pytest.mark.parametrize(("chunk_size", "log_every"), [(0, 1), (1, 5)])
def test_two_processes_make_the_steps_of_one(
    make_model, config, run_file, tmp_path, chunk_size, log_every
):
    folder = make_model(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    settings = {
        "model.folder": str(folder),
        "data.negatives_per_query": 1,
        "data.negatives_run": str(run_file),
        "data.batches": "hard",
        "loss.chunk_size": chunk_size,
        "log_every": log_every,
        "train.epochs": 2,
        "optimizer.learning_rate": 1e-3 if chunk_size else 1e-2,
        "checkpoint.every": 5,
        "eval.every": 0 if chunk_size else 6,
        "eval.split": "train",
    }
    change_settings(config, settings)
    finetune(config, tmp_path / "one")

    flags = settings | {
        "data.folder": config.data.folder,
        "data.batch_size": config.data.batch_size,
        "model.query_length": config.model.query_length,
        "model.passage_length": config.model.passage_length,
    }
    two = tmp_path / "two"
    words = command_of(finetune_config, two, flags)
    if not chunk_size:  # they resume as one process does
        ended = run_under_torchrun(killed_at_a_step, words, tmp_path)
        assert all(status for status, _ in ended)
        assert (two / "checkpoints" / "checkpoint-6" / "sha256.json").exists()
        assert not (two / "retriever").exists()
    ended = run_under_torchrun(cli.main, words, tmp_path)
    assert [status for status, _ in ended] == [0, 0], ended
    steps, evaluated = compare(tmp_path / "one", two, "retriever")
    assert steps == ([*range(1, 13)] if log_every == 1 else [5, 10, 12])
    assert len(evaluated) == (0 if chunk_size else 2)
    load_retriever(two / "retriever")


def test_two_processes_train_a_cross_encoder_as_one_does(
    make_cross_encoder, beir, run_file, tmp_path
):
    folder = make_cross_encoder(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    config = cross_encoder_config.get_config()
    settings = {
        "model.folder": str(folder),
        "data.folder": str(beir),
        "data.negatives_run": str(run_file),
        "data.negatives_per_query": 2,
        "data.batch_size": 4,
        "model.max_length": 24,
        "optimizer.learning_rate": 1e-3,
        "log_every": 1,
        "train.max_steps": 5,
    }
    change_settings(config, settings)
    finetune(config, tmp_path / "one")
    words = command_of(cross_encoder_config, tmp_path / "two", settings)
    ended = run_under_torchrun(cli.main, words, tmp_path)
    assert [status for status, _ in ended] == [0, 0], ended
    steps, _ = compare(tmp_path / "one", tmp_path / "two", "cross_encoder")
    assert steps == [1, 2, 3, 4, 5]


def test_an_error_that_all_processes_meet_is_one_line(tmp_path):
    settings = {"model.folder": "/nowhere", "data.folder": "/nowhere"}
    words = command_of(cross_encoder_config, tmp_path / "run", settings)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
    ended = subprocess.run(
        [*torchrun, "-m", "cocondenser_jax.cli", *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    lines = [line for line in ended.stderr.splitlines() if line.startswith("cocondenser: ")]
    assert len(lines) == 1, ended.stderr
    assert "exitcode  : 2" in ended.stderr  # as torchrun reports it
