"""Coordinates the processes of a fine-tuning; torchrun starts one for each GPU."""

import os
import shlex
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import new_folder

if TYPE_CHECKING:
    from transformers import TrainingArguments

T = TypeVar("T", bound="TrainingArguments")

SECONDS_FOR_MAIN = 20.0  # for the main process to meet the error of another process


def is_main_process() -> bool:
    """Returns whether this is the main process, which writes and prints."""
    return int(os.environ.get("RANK", "0")) == 0


def main_process_reports() -> bool:
    """Returns whether the main process meets the same error, so that only it need print it.

    All processes read the same files and settings, so most errors occur in all of them. Once one
    process ends, torchrun ends the others, perhaps before the main process has printed the error.
    So the other processes wait for SECONDS_FOR_MAIN to be ended; if they are not, the error is
    their own.
    """
    if is_main_process():
        return False
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        return True  # `cli` has had SIGTERM already, and a library ignored its exception
    try:
        time.sleep(SECONDS_FOR_MAIN)
    except SystemExit:  # by SIGTERM, see `cli`
        return True
    return False


def require_gpu_each(words: Sequence[str]) -> None:
    """Raises a UserError unless every process of this machine has its own GPU, or none has any.

    `words` are the arguments of the command, for the message.
    """
    import torch  # slow to import

    # transformers (5.23) would split each batch among the GPUs of one process (DataParallel):
    # passages on other GPUs would not be negatives, and each GPU would have little work.
    n_gpus = torch.cuda.device_count()
    if n_gpus > 1 and "LOCAL_RANK" not in os.environ:
        launch = ["torchrun", f"--nproc_per_node={n_gpus}", "-m", "cocondenser_jax.cli", *words]
        raise UserError(
            f"{n_gpus} GPUs are visible, and a process trains on one: run {shlex.join(launch)}, or"
            " choose a GPU with CUDA_VISIBLE_DEVICES=0"
        )
    n_processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if 0 < n_gpus < n_processes:
        raise UserError(
            f"torchrun starts {n_processes} processes for {n_gpus} visible GPUs: expected"
            f" --nproc_per_node={n_gpus}"
        )


def on_one_gpu(arguments: T) -> T:
    """Restricts a trainer's arguments to one GPU, even if more are visible; returns them.

    transformers (5.23) would multiply the batch size by the number of GPUs.
    """
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def require_equal_shares(batch_size: int) -> None:
    """Raises a UserError unless the processes can share a step's rows equally."""
    n_processes = int(os.environ.get("WORLD_SIZE", "1"))
    if batch_size % n_processes:
        raise UserError(
            f"config.data.batch_size is {batch_size}: expected a multiple of the {n_processes}"
            " processes that share it"
        )


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Returns a folder that the main process makes if it is missing; the others wait for it.

    `make` fills an empty folder, which becomes `folder` once complete. If it raises an error,
    torchrun ends all processes.
    """
    if is_main_process() and not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(folder) as partial:
            make(partial)
    while not folder.exists():
        time.sleep(0.2)
    return folder
