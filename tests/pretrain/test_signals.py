"""SIGTERM and Ctrl-C: the run saves the step it is at, and goes on from there."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ml_collections import ConfigDict

from cocondenser_jax.pretrain import signals

EXPERIMENT = """
import json
from ml_collections import ConfigDict
get_config = lambda: ConfigDict(json.loads({!r}))
"""
# Listens as the loop does, but never gets to its next step.
HANGS = """
import time
from cocondenser_jax.pretrain.signals import postponed
with postponed() as sent:
    print("ready", flush=True)
    while not sent():
        time.sleep(0.01)
    print("heard", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", signals.HEARD)
def test_the_first_signal_is_heard_and_handlers_come_back(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in signals.HEARD]
    with signals.postponed() as sent:
        assert sent() is None
        os.kill(os.getpid(), number)
        assert sent() == number
    assert [signal.getsignal(each) for each in signals.HEARD] == before
    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit) as ended:
        signals.obey(number)
    assert number == signal.SIGINT or ended.value.code == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("second", signals.HEARD)
def test_the_second_signal_ends_it_at_once(second: signal.Signals) -> None:
    process = subprocess.Popen([sys.executable, "-c", HANGS], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "heard\n"
        process.send_signal(second)
        assert process.wait(timeout=60) == -second
    finally:
        process.kill()


def test_a_stopped_run_goes_on_with_other_devices(config: ConfigDict, tmp_path: Path) -> None:
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
    for n_devices, number, status in ((1, signal.SIGTERM, 0), (2, signal.SIGINT, 130)):
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
            process.send_signal(number)
            _, told = process.communicate(timeout=60)
        finally:
            process.kill()
        assert process.returncode == status
        if saved:
            assert f"going on after step {saved}" in told
        last = int(re.findall(r"stopped and saved after step (\d+)", told)[0])
        assert (run / "checkpoints" / str(last)).is_dir()
        steps = [json.loads(line)["step"] for line in log.read_text().splitlines()]
        assert steps == list(range(1, last + 1))
        assert last > saved
        saved = last
