"""Pre-training killed at random moments: started again, it resumes as if nothing had happened."""

import random
import signal
import subprocess
import sys

import pytest

from benchmarks.soak import losses, soak
from cocondenser_jax.cli import main
from tests.world import with_devices, write_experiment

N_KILLS = 3  # one with each aim
# Kills itself when the weights are written, and nothing else.
KILLED_CONVERSION = """
import os, signal, sys
from cocondenser_jax.cli import main
from cocondenser_jax.convert import to_torch

def save_file(*args, **kwargs):
    save(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)

save, to_torch.save_file = to_torch.save_file, save_file
sys.exit(main())
"""
# Kills itself before step $KILL_AT; attention's kernel is interpreted.
KILLED_TRAINING = """
import logging, os, signal, sys
from cocondenser_jax.cli import main
from cocondenser_jax.pretrain import loop
from tests.world import compute_full_lengths, interpret_kernels

def batches(*args, first_step, **kwargs):
    for step, batch in enumerate(read_batches(*args, first_step=first_step, **kwargs), first_step):
        if step == int(os.environ["KILL_AT"]):
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch

read_batches, loop.read_batches = loop.read_batches, batches
interpret_kernels()
compute_full_lengths()
logging.root.handlers = []  # those of libraries: the command line adds its own where none is
sys.exit(main())
"""


@pytest.fixture
def command(config, tmp_path):
    """`cocondenser pretrain` for an experiment of 24 steps, without --workdir."""
    config = config.copy_and_resolve_references().unlock()
    config.train.chunk_size = 0
    config.model.hidden_dropout_prob = 0.1
    config.train.steps = 24
    config.checkpoint.every = 6
    config.log_every = 1
    program = [sys.executable, "-m", "cocondenser_jax.cli", "pretrain"]
    return [*program, f"--config={write_experiment(tmp_path, config)}"]


@pytest.mark.timeout(900)
def test_what_is_killed_at_any_moment_resumes_as_if_nothing_had_happened(
    command, tmp_path, pytestconfig
):
    environment = with_devices(1)
    # Other moments in each run of the tests, and the seed is printed at its head. `make soak` kills
    # hundreds of times.
    rng = random.Random(pytestconfig.getoption("randomly_seed", 0))
    runs = list(soak(command, tmp_path, N_KILLS, rng, environment))
    assert sum(len(run.kills) for run in runs) == N_KILLS
    assert [run.survived for run in runs] == [True] * len(runs)
    assert [line["step"] for line in losses(tmp_path / "whole")] == list(range(1, 25))

    convert = ["convert", f"--run_dir={tmp_path}/whole", f"--out={tmp_path}/model"]
    killed = subprocess.run([sys.executable, "-c", KILLED_CONVERSION, *convert], env=environment)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "model").exists()
    assert main(convert) == 0
    assert (tmp_path / "model" / "tokenizer.json").exists()
    assert not (tmp_path / "model.partial").exists()


@pytest.mark.timeout(900)
def test_a_killed_run_resumes_with_another_attention(command, tmp_path):
    """By XLA, by the kernel, and by XLA again: as one that only XLA computed."""
    arguments = [*command[3:], "--config.model.attention_probs_dropout_prob=0.1"]
    arguments += ["--config.train.steps=12", "--config.checkpoint.every=2"]

    def run(workdir, attention, kill_at=None):
        asked = [f"--workdir={workdir}", f"--config.train.attention={attention}"]
        ended = subprocess.run(
            [sys.executable, "-c", KILLED_TRAINING, *arguments, *asked],
            env=with_devices(1) | {"KILL_AT": str(kill_at or 99)},
            capture_output=True,
            text=True,
        )
        assert ended.returncode == (-signal.SIGKILL if kill_at else 0), ended.stderr
        return ended.stderr

    run(tmp_path / "whole", "xla")
    run(tmp_path / "run", "xla", kill_at=5)
    assert "resuming after step " in run(tmp_path / "run", "kernel", kill_at=9)
    assert "resuming after step " in run(tmp_path / "run", "xla")
    expected, found = losses(tmp_path / "whole"), losses(tmp_path / "run")
    assert [line["step"] for line in found] == [line["step"] for line in expected]
    assert found[:2] == expected[:2]  # the checkpoint of the last step may be lost
    assert found[4:6] != expected[4:6]  # the kernel rounds otherwise
    for mine, theirs in zip(found, expected, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-5)
