"""One run on several hosts: how they find each other, and what host 0 gives to the others.

Host 0 alone reads and writes the run folder. What is in it reaches the others through the devices,
so they need no common folder, and cannot resume from another checkpoint than host 0.
"""

import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from cocondenser_jax.errors import UserError


def connect(coordinator: str, n_hosts: int | None, host: int | None, *, heartbeat: int) -> None:
    """Joins the other hosts; to be called before anything else of JAX.

    The coordinator is address and port of host 0; with `auto` a TPU pod, Slurm or Open MPI tells
    it, the number of hosts and that of this one. From then on JAX ends this process by abort() when
    another host was silent for `heartbeat` seconds.
    """
    address = None if coordinator == "auto" else coordinator
    try:
        jax.distributed.initialize(address, n_hosts, host, heartbeat_timeout_seconds=heartbeat)
    except ValueError as error:
        raise UserError(
            f"--coordinator={coordinator}: cannot tell who the hosts are ({error}); expected a TPU"
            " pod, Slurm or Open MPI, or HOST:PORT with --num_hosts and --host"
        ) from error


def is_first() -> bool:
    """Says whether this is host 0, or the only one."""
    return jax.process_index() == 0


def from_first(tree: Any) -> Any:
    """Returns host 0's arrays; the other hosts pass anything of the same shapes and types."""
    if jax.process_count() == 1:
        return tree
    if not is_first():
        tree = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), tree)
    return multihost_utils.broadcast_one_to_all(tree)


def broadcast_and_compare(mine: Mapping[str, Any]) -> dict[str, Any]:
    """Returns host 0's facts, JSON values by name, on every host, where none may differ.

    None stands for a fact that only host 0 knows.
    """
    text = np.frombuffer(json.dumps(mine).encode(), np.uint8).astype(np.int32)
    length = int(from_first(np.int32(len(text))))
    text = from_first(text if is_first() else np.zeros(length, np.int32))
    facts: dict[str, Any] = json.loads(bytes(text.astype(np.uint8)))
    for name, value in mine.items():
        if value is not None and value != facts[name]:
            raise UserError(f"host {jax.process_index()} has another {name} than host 0")
    return facts
