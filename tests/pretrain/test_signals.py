"""SIGTERM and Ctrl-C: the run saves the step it is at, and resumes from there."""

import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from cocondenser_jax.pretrain import checkpoint, signals
from cocondenser_jax.pretrain.loop import train

EXPERIMENT = """
import json
from ml_collections import ConfigDict
get_config = lambda: ConfigDict(json.loads({!r}))
"""
# As a compilation does, the hash gives up the interpreter's lock and calls no handler.
COMPILES = """
import hashlib, logging
from cocondenser_jax.pretrain.signals import between_steps
logging.basicConfig(level=logging.INFO, format="%(message)s")
def run(is_to_stop):
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
between_steps(run)
"""


@pytest.fixture(autouse=True)
def no_end(monkeypatch):
    """Keeps a signal from ending the tests, with status 0; that it would is a failure."""
    statuses = []
    monkeypatch.setattr(os, "_exit", statuses.append)
    yield
    assert statuses == []


@pytest.mark.parametrize("number", signals.HEARD)
def test_a_signal_is_heard_and_handlers_come_back(number):
    before = [signal.getsignal(each) for each in signals.HEARD]

    def run(is_to_stop):
        assert not is_to_stop(1)
        os.kill(os.getpid(), number)
        while not is_to_stop(1):  # another thread hears it
            time.sleep(0.01)

    signals.between_steps(run)
    assert [signal.getsignal(each) for each in signals.HEARD] == before


def test_a_signal_is_answered_that_comes_while_another_is(caplog):
    answers = []

    class Stream:
        """As sys.stderr, it cannot be written to by a handler that interrupts its writing."""

        busy = False

        def write(self, text):
            if self.busy:
                raise RuntimeError("reentrant call")
            self.busy = True
            if not answers:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.01)
            answers.append(text)
            self.busy = False

        def flush(self): ...

    def run(is_to_stop):
        is_to_stop(1)
        os.kill(os.getpid(), signal.SIGINT)
        end = time.monotonic() + 10
        while len(answers) < 2 and time.monotonic() < end:
            time.sleep(0.01)

    handler = logging.StreamHandler(Stream())
    caplog.set_level(logging.INFO, signals.logger.name)
    signals.logger.addHandler(handler)
    try:
        signals.between_steps(run)
    finally:
        signals.logger.removeHandler(handler)
    assert len(answers) == 2


def test_what_a_run_raises_is_raised_and_handlers_come_back():
    before = [signal.getsignal(each) for each in signals.HEARD]

    def run(is_to_stop):
        raise SystemExit(5)

    with pytest.raises(SystemExit, match="5"):
        signals.between_steps(run)
    assert [signal.getsignal(each) for each in signals.HEARD] == before


@pytest.mark.parametrize("number", signals.HEARD)
def test_while_the_step_is_compiled_a_signal_ends_it_at_once(number):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", COMPILES], **pipes)
    assert process.stdout
    try:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        _, printed = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0
    assert printed == "stopped before its first step: there was nothing to save\n"


@pytest.mark.parametrize("number", signals.HEARD)
def test_signals_during_a_step_are_answered_and_the_third_ends_it(number):
    program = COMPILES.replace('print("ready"', 'is_to_stop(1); print("ready"')
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", program], **pipes)
    assert process.stdout
    assert process.stderr
    try:
        assert process.stdout.readline() == "ready\n"
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            answer = "stops and saves after this step; the third signal ends it at once\n"
            assert process.stderr.readline() == answer
        process.send_signal(number)
        assert process.wait(timeout=60) == 128 + number
    finally:
        process.kill()


def test_another_signal_does_not_stop_a_run():
    def run(is_to_stop):
        is_to_stop(1)
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.1)
        assert not is_to_stop(2)

    before = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    try:
        signals.between_steps(run)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_nohup_is_respected():
    def ignore(is_to_stop):
        os.kill(os.getpid(), signal.SIGHUP)
        time.sleep(0.1)
        assert not is_to_stop(1)

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        signals.between_steps(ignore)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_last_checkpoint_is_saved_whatever_comes(config, tmp_path, monkeypatch):
    written = checkpoint.checkpoint_writer

    @contextlib.contextmanager
    def interrupted(*arguments, **settings):
        with written(*arguments, **settings) as save:
            yield save
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(checkpoint, "checkpoint_writer", interrupted)
    train(config, tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / str(config.train.steps)).is_dir()


def test_a_stopped_run_resumes_with_other_devices(config, tmp_path):
    config = config.copy_and_resolve_references().unlock()
    config.train.chunk_size = 0
    config.train.steps = 10_000
    config.checkpoint.every = 10_000
    (tmp_path / "experiment.py").write_text(EXPERIMENT.format(config.to_json()))
    run = tmp_path / "run"
    command = [sys.executable, "-m", "cocondenser_jax.cli", "pretrain"]
    command += [f"--config={tmp_path}/experiment.py", f"--workdir={run}"]
    log = run / "metrics.jsonl"

    saved = 0
    for n_devices, sent in ((1, [signal.SIGTERM]), (2, [signal.SIGINT, signal.SIGINT])):
        flags = f"--xla_force_host_platform_device_count={n_devices}"
        process = subprocess.Popen(
            [*command, f"--config.train.chunk_size={4 // n_devices}"],
            env=os.environ | {"XLA_FLAGS": flags},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            while not (log.exists() and log.read_text().count("\n") > saved):
                assert process.poll() is None
                time.sleep(0.05)
            for number in sent:
                process.send_signal(number)
                time.sleep(0.01)  # two that come as one are heard as one
            _, printed = process.communicate(timeout=60)
        finally:
            process.kill()
        assert process.returncode == 0
        if saved:
            assert f"resuming after step {saved}" in printed
        last = int(re.findall(r"stopped and saved after step (\d+)", printed)[0])
        assert (run / "checkpoints" / str(last)).is_dir()
        steps = [json.loads(line)["step"] for line in log.read_text().splitlines()]
        assert steps == list(range(1, last + 1))
        assert last > saved
        saved = last
