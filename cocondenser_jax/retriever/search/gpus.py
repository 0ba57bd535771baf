"""Finds this machine's GPUs, and assigns them to workers."""

import os

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.workers import Engine

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def require_gpu(device: str) -> None:
    """Raises a UserError for the device `cuda` if PyTorch sees no GPU."""
    if device != "cuda":
        return
    import torch

    if not torch.cuda.is_available():
        raise UserError(
            f"--device=cuda: PyTorch {torch.__version__} sees no GPU; expected one, or --device=cpu"
        )


def visible_gpus() -> list[str]:
    """Returns the names, as in CUDA_VISIBLE_DEVICES, of the GPUs that PyTorch sees."""
    import torch  # slow to import

    n_gpus = torch.cuda.device_count()
    named = os.environ.get(_VISIBLE)
    names = map(str, range(n_gpus)) if named is None else named.split(",")
    return list(names)[:n_gpus]


def with_gpus(engine: Engine) -> Engine:
    """Assigns a GPU to each local worker of an engine, if there are GPUs.

    Raises:
      UserError: for more workers than GPUs.
    """
    if engine.executor != "local":  # Slurm and Ray assign their own GPUs
        return engine
    gpus = visible_gpus()
    n_workers = min(engine.workers or 0, engine.tasks)
    if gpus and n_workers > len(gpus):
        raise UserError(
            f"--workers={engine.workers} on {len(gpus)} visible GPUs: expected at most a worker"
            " for each"
        )
    return engine._replace(gpus=gpus)
