"""The GPUs of this machine: how many there are, and which a process or its workers may use."""

import os

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


def visible_gpus() -> list[str]:
    """Lists the GPUs that PyTorch would use here, as CUDA_VISIBLE_DEVICES names them."""
    import torch  # slow to import

    n_gpus = torch.cuda.device_count()
    named = os.environ.get(_VISIBLE)
    names = map(str, range(n_gpus)) if named is None else named.split(",")
    return list(names)[:n_gpus]


def with_gpus(engine: Engine) -> Engine:
    """Gives each local worker of an engine a GPU of its own, where there are GPUs.

    Raises:
      UserError: for more workers than GPUs.
    """
    if engine.executor != "local":  # Slurm and Ray share out what they have
        return engine
    gpus = visible_gpus()
    n_workers = min(engine.workers or 0, engine.tasks)
    if gpus and n_workers > len(gpus):
        raise UserError(
            f"--workers={engine.workers} on {len(gpus)} visible GPUs: expected at most a worker"
            " for each"
        )
    return engine._replace(gpus=gpus)
