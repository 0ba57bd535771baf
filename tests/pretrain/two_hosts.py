"""Three steps of training, alone or as one of two processes; test_hosts.py compares both.

Usage: two_hosts.py PROCESS PORT CONFIG_AS_JSON OUT.npz
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict

from cocondenser_jax.corpus.batches import BatchSpec, read_batches
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.pretrain.loop import first_replica, scratch_model, split_over_devices
from cocondenser_jax.pretrain.step import initial_state, pmap_step, replicate


def three_steps(config: ConfigDict) -> tuple[list[dict[str, float]], dict[str, np.ndarray]]:
    """Returns the metrics of each step, and parameters and optimizer state after the last."""
    store = open_store(Path(config.data.store))
    model_config = scratch_model(config, store)
    train_step = pmap_step(model_config, config)
    states = replicate(initial_state(model_config, config))
    spec = BatchSpec(config.seed, config.data.documents_per_step, config.data.length)
    host, n_hosts = jax.process_index(), jax.process_count()
    batches = read_batches(store, spec, first_step=0, n_steps=3, host=host, n_hosts=n_hosts)
    losses = []
    for batch in batches:
        states, metrics = train_step(states, split_over_devices(batch))
        losses.append({name: float(value) for name, value in first_replica(metrics).items()})
    leaves = jax.tree_util.tree_leaves_with_path(first_replica(states))
    return losses, {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


if __name__ == "__main__":
    process, port, settings, out = sys.argv[1:]
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(process))
    found, state = three_steps(ConfigDict(json.loads(settings)))
    np.savez(out, metrics=json.dumps(found), devices=jax.device_count(), **state)  # type: ignore
