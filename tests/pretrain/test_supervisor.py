"""What a process says whose child is ended, each in an interpreter of its own."""

import contextlib
import signal
import subprocess
import sys

import pytest

from cocondenser_jax.pretrain.signals import HEARD

# Parent and child each print a line once their handlers are set; the child by calling `ready`.
PROGRAM = """
import os, signal, sys, time
from cocondenser_jax.pretrain.supervisor import supervise
from cocondenser_jax.errors import UserError

def ready():
    os.write(1, b"ready\\n")  # at once: two processes share the pipe

def run():
    {}

def ready_and_wait(*arguments):
    os.waitpid = wait
    ready()
    return wait(*arguments)

wait, os.waitpid = os.waitpid, ready_and_wait
sys.exit(supervise(run))
"""


def start(statement):
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(statement)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def both_ready(statement):
    """Starts a program whose child calls `ready`, and waits until both have their handlers."""
    with start(statement) as process:
        try:
            assert process.stdout
            assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("statement", "status", "says"),
    [
        ("pass", 0, ""),
        ("raise UserError('no such store')", 2, "cocondenser: no such store\n"),
        ("os._exit(7)", 7, ""),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, ""),
    ],
)
def test_the_status_is_the_childs(statement, status, says):
    process = start(statement)
    _, printed = process.communicate(timeout=60)
    assert (process.returncode, printed) == (status, says)


def test_an_abort_is_explained():
    process = start("os.abort()")
    _, printed = process.communicate(timeout=60)
    assert process.returncode == 3
    assert printed.startswith("cocondenser: another host of this run has stopped")
    assert printed.count("\n") == 1


@pytest.mark.parametrize("number", HEARD)
def test_a_request_to_end_reaches_the_child(number):
    handler = "signal.signal(signal.SIGTERM, lambda *_: os._exit(9))"
    with both_ready(f"{handler}; ready(); [time.sleep(0.1) for _ in range(600)]") as process:
        process.send_signal(number)
        process.communicate(timeout=30)
        assert process.returncode == 9


def test_the_third_request_ends_a_child_that_does_not_listen():
    handler = "signal.signal(signal.SIGTERM, lambda *_: print('heard', flush=True))"
    with both_ready(f"{handler}; ready(); [time.sleep(1) for _ in range(60)]") as process:
        assert process.stdout
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "heard\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        assert process.returncode == 128 + signal.SIGKILL


def test_the_child_ends_with_its_parent():
    with both_ready("ready(); [time.sleep(0.1) for _ in range(600)]") as process:
        process.kill()
        process.communicate(timeout=30)  # the child's output ends with it
