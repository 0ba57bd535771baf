"""One run on several hosts: how they find each other, and what host 0 sends to the others.

Host 0 alone reads and writes the run folder. Its contents reach the other hosts through the
devices, so they need no shared folder and cannot resume from a different checkpoint.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils

from cocondenser_jax.errors import UserError, whole_message
from cocondenser_jax.pretrain.devices import require_devices

HEARTBEAT_SECONDS = 60  # without a heartbeat, after which another host counts as lost


def run_on_hosts(
    run: Callable[[], None], coordinator: str | None, n_hosts: int | None, host: int | None
) -> None:
    """Calls `run`, after joining the other hosts if there is a coordinator.

    The coordinator is the address and port of host 0; with `auto`, a TPU pod, Slurm or Open MPI
    provides it, the number of hosts and the number of this host. Call it before any other function
    of JAX. When another host is lost, JAX ends this process by abort() with its own message. A
    Ctrl-C or SIGHUP acts like the SIGTERM after which all hosts stop at the same step.
    """
    if coordinator is None:
        require_devices()
        run()
        return
    address = None if coordinator == "auto" else coordinator
    try:
        jax.distributed.initialize(
            address, n_hosts, host, heartbeat_timeout_seconds=HEARTBEAT_SECONDS
        )
    except ValueError as error:
        raise UserError(
            f"--coordinator={coordinator}: cannot find the hosts ({error}); expected a TPU"
            " pod, Slurm or Open MPI, or HOST:PORT with --num_hosts and --host"
        ) from error
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    try:
        require_devices()
        run()
    except Exception as error:
        _end(error)


def _end(error: Exception) -> NoReturn:
    """Prints the error and ends this process; JAX ends those of the other hosts by abort().

    It exits immediately: on a normal exit JAX would wait for the other hosts, which wait for this
    one. Hosts that reach their first exchange more than 30 seconds apart get a deadline error (JAX
    0.10.2).
    """
    if isinstance(error, jax.errors.JaxRuntimeError):
        if "DEADLINE_EXCEEDED" in str(error):
            error = UserError(f"another host did not answer in time: {whole_message(error)}")
        elif "Gloo" in str(error):  # the transport between CPUs, which may notice it first
            error = UserError(f"another host was lost: {whole_message(error)}")
    if isinstance(error, (UserError, OSError)):
        print(f"cocondenser: {UserError(str(error))}", file=sys.stderr, flush=True)
        os._exit(2)
    traceback.print_exception(error)
    sys.stderr.flush()
    os._exit(1)


def count() -> int:
    """Returns the number of hosts."""
    return jax.process_count()


def number() -> int:
    """Returns the number of this host, from 0."""
    return jax.process_index()


def is_first() -> bool:
    """Says whether this is host 0, or the only one."""
    return number() == 0


def stop_after(step: int) -> int:
    """Returns the signal to stop after this step for, or 0; the same on every host.

    JAX catches a SIGTERM and agrees with the other hosts on a step that none has passed yet.
    """
    return signal.SIGTERM if multihost_utils.reached_preemption_sync_point(step) else 0


def from_first(tree: Any) -> Any:
    """Returns host 0's arrays; the other hosts pass anything of the same shapes and types."""
    if count() == 1:
        return tree
    if not is_first():
        tree = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), tree)
    return multihost_utils.broadcast_one_to_all(tree)


def broadcast_and_compare(mine: Mapping[str, Any]) -> dict[str, Any]:
    """Returns host 0's facts by name, as JSON values, on every host; no other host's may differ.

    None stands for a fact that only host 0 knows.
    """
    mine_in_json = json.dumps(mine)
    text = np.frombuffer(mine_in_json.encode(), np.uint8).astype(np.int32)
    length = int(from_first(np.int32(len(text))))
    text = from_first(text if is_first() else np.zeros(length, np.int32))
    facts: dict[str, Any] = json.loads(bytes(text.astype(np.uint8)))
    for name, value in json.loads(mine_in_json).items():
        if value is not None and value != facts[name]:
            raise UserError(
                f"host {number()} and host 0 differ in {name}: use the same on every host"
            )
    return facts
