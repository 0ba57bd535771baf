"""What a process says whose child is ended, each in an interpreter of its own."""

import signal
import subprocess
import sys
import time

import pytest

from cocondenser_jax.pretrain.signals import HEARD

PROGRAM = """
import os, signal, sys, time
from cocondenser_jax.pretrain.supervisor import supervise
from cocondenser_jax.errors import UserError

def run():
    print("child", os.getpid(), flush=True)
    {}

sys.exit(supervise(run))
"""


def start(statement: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(statement)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("statement", "status", "says"),
    [
        ("pass", 0, ""),
        ("raise UserError('no such store')", 2, "cocondenser: no such store\n"),
        ("os._exit(7)", 7, ""),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, ""),
    ],
)
def test_the_status_is_the_childs(statement: str, status: int, says: str) -> None:
    process = start(statement)
    _, printed = process.communicate(timeout=60)
    assert (process.returncode, printed) == (status, says)


def test_an_abort_is_explained() -> None:
    process = start("os.abort()")
    _, printed = process.communicate(timeout=60)
    assert process.returncode == 3
    assert printed.startswith("cocondenser: another host of this run has stopped")
    assert printed.count("\n") == 1


@pytest.mark.parametrize("number", HEARD)
def test_a_request_to_end_reaches_the_child(number: signal.Signals) -> None:
    process = start("signal.signal(signal.SIGTERM, lambda *_: os._exit(9)); time.sleep(60)")
    assert process.stdout
    assert process.stdout.readline().startswith("child")
    time.sleep(1)  # both have their handlers by then
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == 9


def test_the_third_request_ends_a_child_that_does_not_listen() -> None:
    process = start(
        "signal.signal(signal.SIGTERM, lambda *_: print('heard', flush=True));"
        " [time.sleep(1) for _ in range(60)]"
    )
    assert process.stdout
    assert process.stdout.readline().startswith("child")
    time.sleep(1)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "heard\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGKILL


def test_the_child_ends_with_its_parent() -> None:
    process = start("time.sleep(60)")
    assert process.stdout
    assert process.stdout.readline().startswith("child")
    process.kill()
    process.communicate(timeout=30)  # the child's output ends with it
