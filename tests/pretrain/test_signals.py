"""SIGTERM and Ctrl-C: the run saves the step it is at, and resumes from there."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cocondenser_jax.corpus.order import steps_per_epoch
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.pretrain import checkpoint, loop, signals
from cocondenser_jax.pretrain.loop import train
from tests.world import batches_of, with_devices, write_experiment

pytestmark = pytest.mark.usefixtures("one_length")

# As a compilation does, the hash gives up the interpreter's lock and calls no handler.
COMPILES = """
import hashlib
from cocondenser_jax.pretrain.signals import between_steps
def run(stop_after):
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
between_steps(run)
"""
STEPS = """
import time
from cocondenser_jax.pretrain.signals import between_steps
def run(stop_after):
    stop_after(1)
    print("ready", flush=True)
    while True:
        time.sleep(1)
between_steps(run)
"""
ANSWER = "stopping after this step to save; a second signal ends the run at once\n"


@pytest.mark.parametrize("number", signals.STOP_SIGNALS)
def test_a_signal_is_heard_and_handlers_come_back(number):
    before = [signal.getsignal(each) for each in signals.STOP_SIGNALS]

    def run(stop_after):
        assert not stop_after(1)
        signal.raise_signal(number)
        assert stop_after(2) == number

    signals.between_steps(run)
    assert [signal.getsignal(each) for each in signals.STOP_SIGNALS] == before


def test_a_signal_is_answered_that_comes_while_something_is_printed(monkeypatch, capfd):
    class Interrupted(io.RawIOBase):
        def writable(self):
            return True

        def write(self, data):
            signal.raise_signal(signal.SIGINT)
            return len(data)

    def run(stop_after):
        stop_after(1)
        print("a line", file=sys.stderr)
        assert stop_after(2)

    stream = io.TextIOWrapper(io.BufferedWriter(Interrupted()), line_buffering=True)
    monkeypatch.setattr(sys, "stderr", stream)
    signals.between_steps(run)
    monkeypatch.undo()
    assert capfd.readouterr().err == ANSWER


def test_what_a_run_raises_is_raised_and_handlers_come_back():
    before = [signal.getsignal(each) for each in signals.STOP_SIGNALS]

    def run(stop_after):
        raise SystemExit(5)

    with pytest.raises(SystemExit, match="5"):
        signals.between_steps(run)
    assert [signal.getsignal(each) for each in signals.STOP_SIGNALS] == before


@pytest.mark.parametrize("number", signals.STOP_SIGNALS)
def test_while_the_step_is_compiled_a_signal_ends_it_at_once(number):
    assert end(COMPILES, number) == (-number, "")


@pytest.mark.parametrize("number", signals.STOP_SIGNALS)
def test_a_signal_during_a_step_is_answered_and_the_next_ends_it(number):
    assert end(STEPS, signal.SIGINT, number) == (-number, ANSWER)


def end(program, *numbers):
    """Sends signals to a program, the next once it prints; returns its status and errors."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", program], **pipes)
    printed = ""
    try:
        assert process.stdout.readline() == "ready\n"
        for number in numbers[:-1]:
            process.send_signal(number)
            printed += process.stderr.readline()
        process.send_signal(numbers[-1])
        printed += process.communicate(timeout=60)[1]
    finally:
        process.kill()
    return process.returncode, printed


def test_in_another_thread_no_signal_is_heard():
    before = [signal.getsignal(each) for each in signals.STOP_SIGNALS]
    asked = []

    def run(stop_after):
        asked.append(stop_after(1))
        assert [signal.getsignal(each) for each in signals.STOP_SIGNALS] == before

    thread = threading.Thread(target=signals.between_steps, args=[run])
    thread.start()
    thread.join()
    assert asked == [0]


def test_another_signal_does_not_stop_a_run():
    def run(stop_after):
        stop_after(1)
        signal.raise_signal(signal.SIGUSR1)
        assert not stop_after(2)

    before = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    try:
        signals.between_steps(run)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_nohup_is_respected():
    def ignore(stop_after):
        for step in range(1, 3):
            signal.raise_signal(signal.SIGHUP)
            assert not stop_after(step)

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        signals.between_steps(ignore)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_last_checkpoint_is_saved_whatever_comes(config, tmp_path, monkeypatch, caplog):
    written = checkpoint.checkpoint_writer

    @contextlib.contextmanager
    def interrupted(*arguments, **settings):
        with written(*arguments, **settings) as save:
            yield save
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(checkpoint, "checkpoint_writer", interrupted)
    train(config, tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / str(config.train.steps)).is_dir()
    checkpoint.load_run(tmp_path / "run")
    assert "has not ended" not in caplog.text


def test_a_stopped_run_resumes_with_other_devices(config, tmp_path, caplog):
    config = config.copy_and_resolve_references().unlock()
    config.train.chunk_size = 0
    config.train.steps = 0
    config.train.epochs = 2_500.0
    n_steps = 2_500 * steps_per_epoch(open_store(Path(config.data.store)), batches_of(config))
    config.checkpoint.every = 10_000
    run = tmp_path / "run"
    command = [sys.executable, "-m", "cocondenser_jax.cli", "pretrain"]
    command += [f"--config={write_experiment(tmp_path, config)}", f"--workdir={run}"]
    log = run / "metrics.jsonl"

    saved = 0
    for n_devices, number in ((1, signal.SIGTERM), (2, signal.SIGINT)):
        process = subprocess.Popen(
            [*command, f"--config.train.chunk_size={4 // n_devices}"],
            env=with_devices(n_devices),
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            while not (log.exists() and log.read_text().count("\n") > saved):
                assert process.poll() is None
                time.sleep(0.05)
            process.send_signal(number)
            _, printed = process.communicate(timeout=60)
        finally:
            process.kill()
        assert process.returncode == 128 + number
        assert ANSWER in printed
        if saved:
            assert f"resuming after step {saved:,}\n" in printed
        again = "run the same command again to continue"
        stop = rf"stopped and saved after step ([\d,]+) of {n_steps:,}; {again}\n"
        last = int(re.findall(stop, printed)[0].replace(",", ""))
        assert f", on {'cpu' if n_devices == 1 else '2 x cpu'}\n" in printed
        assert "finished" not in printed
        assert (run / "checkpoints" / str(last)).is_dir()
        steps = [json.loads(line)["step"] for line in log.read_text().splitlines()]
        assert steps == list(range(1, last + 1))
        assert last > saved
        # What goes on from half a run, by `convert` or a warm start, is told.
        checkpoint.load_run(run)
        step = f"this is its step {last} of {n_steps}"
        assert f"{run} has not ended: {step}; `pretrain` resumes it" in caplog.messages
        saved = last


def test_a_signal_in_the_last_step_ends_no_finished_run(config, tmp_path, monkeypatch, caplog):
    def stop_after(step):
        return signal.SIGTERM if step == config.train.steps else 0

    monkeypatch.setattr(loop, "between_steps", lambda run: run(stop_after))
    caplog.set_level("INFO")
    train(config, tmp_path / "run")  # raises no SystemExit
    assert f"{tmp_path}/run: finished all {config.train.steps} steps" in caplog.text
    assert "stopped" not in caplog.text
