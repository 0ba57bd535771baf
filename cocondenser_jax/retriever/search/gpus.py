"""The GPUs of this machine: how many there are, and which a process or its workers may use."""

import os
import subprocess
from collections.abc import Mapping
from importlib.metadata import entry_points

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.workers import Engine

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def require_gpu(device: str) -> None:
    """Raises a UserError for the device `cuda` where PyTorch sees no GPU."""
    if device != "cuda":
        return
    import torch

    if not torch.cuda.is_available():
        raise UserError(
            f"--device=cuda: PyTorch {torch.__version__} sees no GPU; expected one, or --device=cpu"
        )


def visible_gpus(*, in_torch: bool) -> list[str]:
    """Lists the GPUs that PyTorch or JAX would use here, as CUDA_VISIBLE_DEVICES names them."""
    n_gpus = _gpus_for_torch() if in_torch else _gpus_for_jax(os.environ)
    named = os.environ.get(_VISIBLE)
    names = map(str, range(n_gpus)) if named is None else named.split(",")
    return list(names)[:n_gpus]


def with_gpus(engine: Engine, *, in_torch: bool) -> Engine:
    """Gives each local worker of an engine a GPU of its own, where there are GPUs.

    Raises:
      UserError: for more workers than GPUs.
    """
    if engine.executor != "local":  # Slurm and Ray share out what they have
        return engine
    gpus = visible_gpus(in_torch=in_torch)
    n_workers = min(engine.workers or 0, engine.tasks)
    if gpus and n_workers > len(gpus):
        raise UserError(
            f"--workers={engine.workers} on {len(gpus)} visible GPUs: expected at most a worker"
            " for each"
        )
    return engine._replace(gpus=gpus)


def _gpus_for_torch() -> int:
    import torch  # slow to import

    return torch.cuda.device_count()


def _gpus_for_jax(environment: Mapping[str, str]) -> int:
    """Counts the GPUs without JAX, which would take memory on each of them."""
    platforms = environment.get("JAX_PLATFORMS", "cuda").split(",")
    plugins = {plugin.name for plugin in entry_points(group="jax_plugins")}
    if not {"cuda", "gpu"}.intersection(platforms) or not any("cuda" in name for name in plugins):
        return 0
    try:
        command = ["nvidia-smi", "--list-gpus"]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0
    return sum(line.startswith("GPU ") for line in listed.splitlines())
