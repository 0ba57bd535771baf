"""Two hosts of four devices are one host of eight, also after one was lost, and by a kernel."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

from cocondenser_jax.cli import main
from cocondenser_jax.errors import UserError
from cocondenser_jax.pretrain import hosts
from cocondenser_jax.pretrain.checkpoint import load_run
from cocondenser_jax.pretrain.loop import train
from tests.lines import whole
from tests.world import read_metrics, with_devices, write_experiment

pytestmark = pytest.mark.usefixtures("one_length")

# The command line, killed before its fourth step once the file $WAIT_FOR is there.
BREAKS_DOWN = """
import os, signal, sys, time
from cocondenser_jax.cli import main
from cocondenser_jax.pretrain import hosts, loop
from tests.world import compute_full_lengths

def breaks_down(*args, **kwargs):
    for step, batch in enumerate(read_batches(*args, **kwargs)):
        while step == 3:
            time.sleep(0.1)
            if os.path.exists(os.environ["WAIT_FOR"]):
                os.kill(os.getpid(), signal.SIGKILL)
        yield batch

read_batches = loop.read_batches
if sys.argv[-1] == "--host=1":
    loop.read_batches = breaks_down
compute_full_lengths()
hosts.HEARTBEAT_SECONDS = 5
sys.exit(main())
"""
# The command line; host 1 gets Ctrl-C and a SIGTERM before the run's first step.
STOPPED = """
import os, signal, sys, time
from cocondenser_jax.cli import main
from cocondenser_jax.pretrain import loop
from tests.world import compute_full_lengths

def slow(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    for batch in read_batches(*args, **kwargs):
        time.sleep(3)
        yield batch

read_batches = loop.read_batches
if sys.argv[-1] == "--host=1":
    loop.read_batches = slow
compute_full_lengths()
sys.exit(main())
"""
OTHER_SEED = """
import sys
from cocondenser_jax.cli import main
from cocondenser_jax.pretrain import hosts
hosts.HEARTBEAT_SECONDS = 5
sys.exit(main(sys.argv[1:] + ["--config.seed=1"] * (sys.argv[-1] == "--host=1")))
"""
WITH_KERNEL = """
import logging, sys
from cocondenser_jax.cli import main
from tests.world import compute_full_lengths, interpret_kernels
interpret_kernels()
compute_full_lengths()
logging.root.handlers = []  # those of libraries: the command line adds its own where none is
sys.exit(main())
"""


def run_two_hosts(folder, program, *overrides, n_devices=4):
    """Runs the experiment in `folder` on two hosts; returns exit status and output of each."""
    with contextlib.ExitStack() as stack:
        # Held until the end, so that no other process is given the port; JAX's server may share it.
        held = stack.enter_context(socket.socket())
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        wait_for = f"{folder}/of-host-0/checkpoints/2"
        environment = with_devices(n_devices) | {"WAIT_FOR": wait_for}
        command = [sys.executable, "-c", program, "pretrain", f"--config={folder}/experiment.py"]
        command += [f"--coordinator=127.0.0.1:{held.getsockname()[1]}", "--num_hosts=2", *overrides]
        hosts = []
        for host in range(2):
            process = subprocess.Popen(
                [*command, f"--workdir={folder}/of-host-{host}", f"--host={host}"],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            stack.callback(process.kill)
            hosts.append(process)
        printed = [host.communicate(timeout=600)[0] for host in hosts]
    return [(host.returncode, text) for host, text in zip(hosts, printed, strict=True)]


def assert_ended_with_the_other(status, printed):
    """JAX ends a host with its own message, or gloo's; or what gloo raises is one line of ours."""
    if status == 2:
        assert printed.splitlines()[-1].startswith("cocondenser: another host was lost: ")
    else:
        assert status == -signal.SIGABRT
        assert re.search("Terminating process because the JAX|gloo::EnforceNotMet", printed)


def losses(workdir):
    """Returns the logged metrics, but for the rates."""
    return [
        {key: value for key, value in line.items() if "_per_" not in key}
        for line in read_metrics(workdir)
    ]


@pytest.mark.effect("pretrain --coordinator", "pretrain --num_hosts", "pretrain --host")
@pytest.mark.timeout(1200)
def test_two_hosts_are_one_also_when_one_was_lost(config, tmp_path):
    config = config.copy_and_resolve_references().unlock()
    config.model.hidden_dropout_prob = 0.1  # keys must count spans over both hosts
    config.model.attention_probs_dropout_prob = 0.1
    config.train.chunk_size = 0
    config.probe.every = 4
    write_experiment(tmp_path, config)
    train(config, tmp_path / "alone")

    lost, (second, _) = run_two_hosts(tmp_path, BREAKS_DOWN)
    assert_ended_with_the_other(*lost)
    assert second == -signal.SIGKILL

    # One that does not fit is refused with a message; the other ends with it.
    lost, (second, printed) = run_two_hosts(tmp_path, OTHER_SEED)
    assert_ended_with_the_other(*lost)
    assert second == 2
    said = "host 1 and host 0 differ in config: use the same on every host"
    assert f"cocondenser: {said}\n" in printed

    (first, printed), (second, _) = run_two_hosts(tmp_path, STOPPED)
    assert (first, second) == (128 + signal.SIGTERM,) * 2, printed

    otherwise = "--config.train.chunk_size=2", "--config.train.attention=kernel"
    (first, printed), (second, _) = run_two_hosts(tmp_path, WITH_KERNEL, *otherwise, n_devices=2)
    assert (first, second) == (0, 0), printed
    resumed = re.search(r"resuming after step (\d)", printed)
    assert resumed
    assert 2 < int(resumed[1]) < 6
    # Only host 0 writes.
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "alone", "experiment.py", "of-host-0",
    ]  # fmt: skip
    expected = losses(tmp_path / "alone")
    assert [line["step"] for line in expected] == [1, 2, 3, 4, 4, 5, 6, 6]
    for mine, theirs in zip(expected, losses(tmp_path / "of-host-0"), strict=True):
        assert theirs.keys() == mine.keys()
        for name in mine.keys() - {"input_wait_share"}:
            # The vectors are hardly trained and almost equal: rounding decides their ranks.
            if name.startswith("probe/positive_"):
                continue
            assert theirs[name] == pytest.approx(mine[name], rel=1e-5, abs=1e-8), name
    mine, theirs = (load_run(tmp_path / name)[1] for name in ("alone", "of-host-0"))
    for a, b in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize(
    "flags",
    [
        ["--num_hosts=2", "--host=0"],
        ["--num_hosts=2"],
        ["--coordinator=auto", "--host=0"],
        ["--coordinator=here"],
        ["--coordinator=here", "--num_hosts=2", "--host=0"],
        ["--coordinator=here:1", "--num_hosts=2"],
        ["--coordinator=here:1", "--host=0"],
        ["--coordinator=here:1", "--num_hosts=2", "--host=2"],
    ],
)
def test_hosts_that_do_not_fit_are_refused(flags, capsys):
    experiment = ["--config=configs/small.py", "--config.data.store=x", "--workdir=run"]
    assert main(["pretrain", *experiment, *flags]) == 2
    assert capsys.readouterr().err == (
        "cocondenser: several hosts need --coordinator=auto, or --coordinator=HOST:PORT with"
        " --num_hosts=N and --host=I, 0 <= I < N\n"
    )


def test_a_machine_that_knows_no_others_is_refused(config, tmp_path):
    command = [sys.executable, "-m", "cocondenser_jax.cli", "pretrain", "--coordinator=auto"]
    command += [f"--config={write_experiment(tmp_path, config)}", f"--workdir={tmp_path}/run"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    said = (
        "cocondenser: --coordinator=auto: cannot find the hosts (…); expected a TPU pod, Slurm or"
        " Open MPI, or HOST:PORT with --num_hosts and --host"
    )
    assert re.match(whole(said), done.stderr.splitlines()[-1])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("ignored", [True, False])
def test_a_host_under_nohup_does_not_end_with_its_terminal(ignored, monkeypatch):
    monkeypatch.setattr(jax.distributed, "initialize", lambda *given, **options: None)
    kept = []
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGHUP)}
    signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        run = lambda: kept.extend(signal.getsignal(each) for each in before)  # noqa: E731
        hosts.run_on_hosts(run, "127.0.0.1:1", 2, 0)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert (kept[1] == signal.SIG_IGN) is ignored
    sent = []
    monkeypatch.setattr(os, "kill", lambda *given: sent.append(given))
    for handler in kept[: 1 if ignored else 2]:
        handler(signal.SIGINT, None)
    assert sent == [(os.getpid(), signal.SIGTERM)] * (1 if ignored else 2)


DEADLINE = "UNKNOWN: Gloo context: DEADLINE_EXCEEDED: GetKeyValue() timed out: 29.999999942s"


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (
            jax.errors.JaxRuntimeError(DEADLINE),
            2,
            f"cocondenser: another host did not answer in time: {DEADLINE}\n",
        ),
        (
            jax.errors.JaxRuntimeError("INTERNAL: Gloo all-reduce failed"),
            2,
            "cocondenser: another host was lost: INTERNAL: Gloo all-reduce failed\n",
        ),
        (UserError("one is wrong"), 2, "cocondenser: one is wrong\n"),
        (OSError(28, "No space left"), 2, "cocondenser: [Errno 28] No space left\n"),
        (RuntimeError("a fault of ours"), 1, "RuntimeError: a fault of ours\n"),
    ],
)
def test_a_host_that_fails_ends_without_waiting_for_the_others(
    monkeypatch, capsys, error, status, said
):
    """At its own end JAX would wait for hosts that wait for this one."""

    class EndedError(BaseException):
        pass

    def end(status):
        raise EndedError(status)

    def run():
        raise error

    monkeypatch.setattr(jax.distributed, "initialize", lambda *_, **__: None)
    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(EndedError) as ended:
        hosts.run_on_hosts(run, "127.0.0.1:1", 2, 0)
    assert ended.value.args == (status,)
    printed = capsys.readouterr().err
    assert printed.endswith(said)
    assert ("Traceback" in printed) == (status == 1)
