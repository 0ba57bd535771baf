"""Two processes, started by torchrun, against one."""

import subprocess
import sys

import numpy as np
import pytest

from cocondenser_jax.configs import finetune as finetune_config
from cocondenser_jax.finetune.tasks import finetune
from cocondenser_jax.retrieval.models import load_retriever
from tests.world import as_flags, change_settings, read_metrics


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
    subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"),
            *("-m", "cocondenser_jax.cli", "finetune", f"--config={finetune_config.__file__}"),
            f"--workdir={tmp_path / 'two'}",
            *as_flags(flags),
        ],
        check=True,
        capture_output=True,
        timeout=240,
    )
    one, two = read_metrics(tmp_path / "one"), read_metrics(tmp_path / "two")
    found = [[m.get("eval_loss") for m in run if "loss" not in m] for run in (one, two)]
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4)
    assert len(found[0]) == (0 if chunk_size else 2)
    one, two = ([m for m in run if "loss" in m] for run in (one, two))
    assert [m["step"] for m in two] == ([*range(1, 13)] if log_every == 1 else [5, 10, 12])
    np.testing.assert_allclose([m["loss"] for m in two], [m["loss"] for m in one], rtol=1e-4)
    norms = [[m["grad_norm"] for m in run] for run in (one, two)]
    np.testing.assert_allclose(norms[1], norms[0], rtol=1e-3)
    load_retriever(tmp_path / "two" / "retriever")
