"""What a process says whose child is ended, each in an interpreter of its own."""

import subprocess
import sys
import time

import pytest

PROGRAM = """
import os, signal, sys, time
from cocondenser_jax.cli.watch import watched
from cocondenser_jax.errors import UserError

def run():
    print("child", os.getpid(), flush=True)
    {}

sys.exit(watched(run))
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
        ("raise KeyboardInterrupt", 130, "cocondenser: interrupted\n"),
        ("os._exit(7)", 7, ""),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, ""),
    ],
)
def test_the_status_is_the_childs(statement: str, status: int, says: str) -> None:
    process = start(statement)
    _, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (status, says)


def test_an_abort_is_explained() -> None:
    process = start("os.abort()")
    _, told = process.communicate(timeout=60)
    assert process.returncode == 3
    assert told.startswith("cocondenser: another host of this run has stopped")
    assert told.count("\n") == 1


def test_a_request_to_end_reaches_the_child() -> None:
    process = start("signal.signal(signal.SIGTERM, lambda *_: os._exit(9)); time.sleep(60)")
    assert process.stdout
    assert process.stdout.readline().startswith("child")
    time.sleep(1)  # both have their handlers by then
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 9


def test_the_child_ends_with_its_parent() -> None:
    process = start("time.sleep(60)")
    assert process.stdout
    assert process.stdout.readline().startswith("child")
    process.kill()
    process.communicate(timeout=30)  # the child's output ends with it
