"""The processes that share a fine-tuning: torchrun starts one for each GPU."""

import os
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import new_folder

if TYPE_CHECKING:
    from transformers import TrainingArguments

T = TypeVar("T", bound="TrainingArguments")

SECONDS_FOR_MAIN = 20.0  # for the main process to meet an error that another has met


def is_main_process() -> bool:
    """Returns whether this is the process that writes and prints."""
    return int(os.environ.get("RANK", "0")) == 0


def main_process_reports() -> bool:
    """Returns whether the main process ends with an error too, so that it alone need print it.

    All processes read the same files and settings, so most errors are met by all. torchrun ends the
    others once one has ended: one that would end first would keep the main process from printing.
    So it waits to be ended, for `SECONDS_FOR_MAIN`; after that, the error is its own.
    """
    if is_main_process():
        return False
    try:
        time.sleep(SECONDS_FOR_MAIN)
    except SystemExit:  # of SIGTERM, see `cli`
        return True
    return False


def require_gpu_each(words: Sequence[str]) -> None:
    """Raises a UserError unless each process of this machine has a GPU of its own, or none has one.

    `words` are those of the command after the program's name, which the message repeats.
    """
    import torch  # slow to import

    # transformers (5.23) would divide each batch among the GPUs of one process (DataParallel):
    # the passages on the other GPUs would be no negatives, and no GPU would have much to do.
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
    """Makes a process compute on one GPU, also where more are visible; returns the arguments.

    transformers (5.23) would divide among all of them batches that are as many times larger.
    """
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def require_equal_shares(batch_size: int) -> None:
    """Raises a UserError unless the processes can share the rows of a step."""
    n_processes = int(os.environ.get("WORLD_SIZE", "1"))
    if batch_size % n_processes:
        raise UserError(
            f"config.data.batch_size is {batch_size}: expected a multiple of the {n_processes}"
            " processes that share it"
        )


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Returns a folder that the main process makes, unless it is there; the others wait for it.

    `make` writes into an empty folder, which is `folder` once it is complete. Should it raise,
    torchrun ends all processes.
    """
    if is_main_process() and not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(folder) as partial:
            make(partial)
    while not folder.exists():
        time.sleep(0.2)
    return folder
