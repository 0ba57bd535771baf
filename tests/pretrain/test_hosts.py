"""Two hosts of four devices are one host of eight: the same losses, moments and parameters."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import two_hosts
from ml_collections import ConfigDict


def test_two_hosts_are_one(config: ConfigDict, tmp_path: Path) -> None:
    config = config.copy_and_resolve_references().unlock()
    config.model.hidden_dropout_prob = 0.1  # keys must count spans over both hosts
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    four = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    hosts = [
        subprocess.Popen(
            [
                *(sys.executable, two_hosts.__file__),
                *(str(process), port, config.to_json(), str(tmp_path / f"{process}.npz")),
            ],
            env=four,
        )
        for process in range(2)
    ]
    try:
        assert [host.wait(timeout=600) for host in hosts] == [0, 0]
    finally:
        for host in hosts:
            host.kill()

    losses, state = two_hosts.three_steps(config)
    for process in range(2):
        theirs = np.load(tmp_path / f"{process}.npz")
        assert int(theirs["devices"]) == 8
        for mine, other in zip(losses, json.loads(str(theirs["metrics"])), strict=True):
            assert other == pytest.approx(mine, rel=1e-5)
        for name, value in state.items():
            np.testing.assert_allclose(theirs[name], value, rtol=1e-4, atol=2e-6, err_msg=name)
