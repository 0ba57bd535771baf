"""Adapts the commands of recipes to this machine's GPUs."""

from collections.abc import Mapping, Sequence

from cocondenser_jax.settings import FINE_TUNING, load_config
from papers.steps import Command


def on_gpus(command: Command, gpus: Sequence[str]) -> tuple[Command, Mapping[str, str]]:
    """Returns a command for this machine, and additions to its environment.

    With several GPUs, `finetune` runs in a process on each, or on as many as can share the recipe's
    batch equally. Programs that train in one process (`python -m papers.abs_rank`) see only the
    first GPU. Exact search uses a GPU if there is one.

    Args:
      command: the command of a recipe.
      gpus: the visible GPUs, named as in CUDA_VISIBLE_DEVICES.
    """
    if command[:2] == ["cocondenser", "retrieve"] and gpus:
        return [*command, "--device=cuda"], {}
    if command[:2] == ["cocondenser", "finetune"] and len(gpus) > 1:
        if (n_processes := _processes(command[2:], len(gpus))) > 1:
            launch = ["-m", "torch.distributed.run", "--standalone"]
            launch += [f"--nproc_per_node={n_processes}", "-m", "cocondenser_jax.cli"]
            return ["python", *launch, *command[1:]], {}
        return command, {"CUDA_VISIBLE_DEVICES": gpus[0]}
    if command[0] == "python" and len(gpus) > 1:
        return command, {"CUDA_VISIBLE_DEVICES": gpus[0]}
    return command, {}


def _processes(flags: Sequence[str], n_gpus: int) -> int:
    """Returns the largest number of processes that can share the queries of a step equally."""
    spec = next(flag for flag in flags if flag.startswith("--config="))
    overrides = [flag for flag in flags if flag.startswith("--config.")]
    config = load_config(spec.removeprefix("--config="), overrides, tasks=FINE_TUNING)
    return max(n for n in range(1, n_gpus + 1) if config.data.batch_size % n == 0)
