"""One run on several hosts: how they find each other, and what host 0 gives to the others.

Host 0 alone reads and writes the run folder. What is in it reaches the others through the devices,
so they need no folder in common, and cannot go on from another checkpoint than host 0.
"""

from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from cocondenser_jax.errors import UserError

AUTO = "auto"


def connect(coordinator: str, n_hosts: int | None, host: int | None, *, heartbeat: int) -> None:
    """Joins the other hosts; to be called before JAX is asked for anything.

    From then on a process whose run lost a host is ended by JAX, through abort().

    Args:
      coordinator: address and port of host 0; `auto` to learn it from a TPU pod, Slurm or Open MPI.
      n_hosts: how many there are; None with `auto`.
      host: which one this is, from 0; None with `auto`.
      heartbeat: seconds of silence after which a host counts as lost.

    Raises:
      UserError: with `auto`, where the environment does not tell.
    """
    address = None if coordinator == AUTO else coordinator
    try:
        jax.distributed.initialize(address, n_hosts, host, heartbeat_timeout_seconds=heartbeat)
    except ValueError as error:
        raise UserError(
            f"--coordinator={coordinator}: cannot tell who the hosts are ({error}); expected a TPU"
            " pod, Slurm or Open MPI, or HOST:PORT with --num_hosts and --host"
        ) from error


def is_first() -> bool:
    """Tells whether this is host 0, or the only one."""
    return jax.process_index() == 0


def stop_after(step: int) -> bool:
    """Tells all hosts alike whether to stop after this step, because one of them got a SIGTERM.

    JAX hears the signal, and agrees on a step that no host has passed. Each host has to ask after
    each step.
    """
    return multihost_utils.reached_preemption_sync_point(step)


def from_first(tree: Any) -> Any:
    """Returns host 0's arrays, on every host.

    Args:
      tree: the arrays; on the other hosts anything of the same shapes and types.
    """
    if jax.process_count() == 1:
        return tree
    if not is_first():
        tree = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), tree)
    return multihost_utils.broadcast_one_to_all(tree)


def text_from_first(text: str) -> str:
    """Returns host 0's text, on every host."""
    encoded = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    length = int(from_first(np.int32(len(encoded))))
    told = from_first(encoded if is_first() else np.zeros(length, np.int32))
    return bytes(told.astype(np.uint8)).decode()
