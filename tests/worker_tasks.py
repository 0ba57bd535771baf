"""What the workers of test_workers.py call: each makes a file, and notes that it was called."""

import os
import signal
import time
from pathlib import Path

from cocondenser_jax.files.whole import new_folder


def make(folder, task, failing=(), slow=()):
    """Runs task i; notes its number and process. A slow one waits to be killed, once."""
    index, n_tasks = task
    with (folder / "calls").open("a") as calls:
        calls.write(f"{index} {os.getpid()}\n")
    if index in failing:
        raise ValueError(f"no luck\nwith {index}")
    with new_folder(folder / f"task-{index}") as made:
        while index in slow and not (folder / "go on").exists():
            time.sleep(0.05)
        (made / "text").write_text(f"{index} of {n_tasks}")


def calls(folder):
    """Returns number and process of each call, in order."""
    path = folder / "calls"
    lines = path.read_text().splitlines() if path.exists() else []
    return [tuple(map(int, line.split())) for line in lines]


def note_gpu(folder, task, killed=()):
    """Runs task i; notes which GPUs it may use. Some are killed the first time."""
    index, _ = task
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
    with (folder / "seen").open("a") as file:
        file.write(f"{index} {os.getpid()} {seen}\n")
    if index in killed and not (folder / f"killed-{index}").exists():
        (folder / f"killed-{index}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.2)  # so that each worker gets a task
    (folder / f"task-{index}").mkdir()


def encode_nothing(model, folder, batch_size, precision):
    """Stands for JAX in `encode`: vectors are PyTorch's; notes which GPUs JAX would see."""
    with Path(os.environ["SEEN"]).open("a") as file:
        file.write(f"{os.environ.get('CUDA_VISIBLE_DEVICES', 'all')}\n")
