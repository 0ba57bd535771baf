"""What all fine-tuning shares: settings, resume, progress, and a result that is whole or absent.

The loop itself is transformers' Trainer, as sentence-transformers extends it.
"""

import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_collections
import torch
from sentence_transformers import SentenceTransformerTrainer
from sentence_transformers.cross_encoder import CrossEncoderTrainer
from tqdm import tqdm
from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState

from cocondenser_jax import files
from cocondenser_jax.errors import UserError
from cocondenser_jax.metrics import Log, metrics_log
from cocondenser_jax.retrieval.models import PRECISIONS, uses_bfloat16

log = logging.getLogger(__name__)


def require_settings(config: ml_collections.ConfigDict) -> None:
    """Raises a UserError for a setting that no training can use."""
    for name in ("model", "data"):
        if not config[name]:
            raise UserError(f"config.{name} is not set: expected a path")
    for name, least in (("batch_size", 1), ("epochs", 1), ("log_every", 1)):
        if config[name] < least:
            raise UserError(f"config.{name} is {config[name]}: expected at least {least}")
    if not 0 <= config.warmup_ratio < 1:
        raise UserError(f"config.warmup_ratio is {config.warmup_ratio}: expected 0 to below 1")
    if config.precision not in PRECISIONS:
        raise UserError(
            f"config.precision is {config.precision!r}: expected {', '.join(PRECISIONS)}"
        )
    if config.batch_size % world_size():
        raise UserError(
            f"config.batch_size is {config.batch_size}: expected a multiple of the "
            f"{world_size()} processes that share it"
        )


def arguments(config: ml_collections.ConfigDict, workdir: Path) -> dict[str, Any]:
    """Returns the training arguments that all tasks have, for a class of training arguments.

    A step is `batch_size` rows however many processes share it: each takes its slice of them.
    """
    on_gpu = torch.cuda.is_available()
    return {
        "output_dir": str(workdir / "checkpoints"),
        "num_train_epochs": config.epochs,
        "max_steps": config.max_steps or -1,
        "per_device_train_batch_size": config.batch_size,
        "accelerator_config": {"split_batches": True},
        # Without this, processes that have no GPU would each train alone, and in float32.
        "use_cpu": not (on_gpu or torch.backends.mps.is_available()),
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": "linear",
        "warmup_steps": config.warmup_ratio,  # below 1, it is a share of all steps
        "weight_decay": config.weight_decay,
        "seed": config.seed,
        "bf16": uses_bfloat16(config.precision),
        "dataloader_drop_last": True,
        "dataloader_num_workers": config.loader_workers,
        "dataloader_pin_memory": on_gpu,
        "logging_steps": config.log_every,
        "save_strategy": "steps" if config.checkpoint_every else "no",
        "save_steps": config.checkpoint_every or 1,
        "save_total_limit": 2,
        "report_to": "none",  # TensorBoard gets a folder of our own
        "disable_tqdm": True,
    }


def world_size() -> int:
    """Returns how many processes torchrun or accelerate started for this run; 1 without them."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Returns whether this process is the one that writes and prints."""
    return int(os.environ.get("RANK", "0")) == 0


def start_or_resume(workdir: Path, config: ml_collections.ConfigDict) -> None:
    """Prepares `workdir`, or makes sure that the run begun there had the same settings.

    Raises:
      UserError: for a folder that cannot be made, holds something else, or a run with other
        settings.
    """
    if not is_main_process():
        return
    path = workdir / "finetune.json"
    if not path.exists():
        files.require_absent(workdir)
        try:
            workdir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot create {workdir}: {error.strerror}") from error
        files.write_json(path, config.to_dict())
        return
    earlier = files.read_object(path)
    for key, value in config.to_dict().items():
        if earlier.get(key) != value:
            raise UserError(
                f"the run in {workdir} was begun with {key}={earlier.get(key)!r}, now it is "
                f"{value!r}: choose a new folder, or remove it first"
            )


def run(
    trainer: SentenceTransformerTrainer | CrossEncoderTrainer, workdir: Path, result: str
) -> dict[str, Any]:
    """Trains to the end, from the newest checkpoint if there is one, and saves the model.

    Args:
      trainer: with the `arguments` above, of a model that has `save_pretrained`.
      workdir: gets the folder `result`, `metrics.jsonl`, TensorBoard events, and checkpoints while
        the run is not at its end.
      result: name of the folder for the trained model.

    Returns:
      result (its path), steps, seconds, and the mean loss of the last logged steps.
    """
    start = time.perf_counter()
    trainer.remove_callback(PrinterCallback)
    step = _last_step(workdir / "checkpoints")
    checkpoint = str(workdir / "checkpoints" / f"checkpoint-{step}") if step else None
    loss = float("nan")
    if is_main_process():
        with metrics_log(workdir, step) as metrics:
            progress = _Progress(metrics)
            trainer.add_callback(progress)
            trainer.train(resume_from_checkpoint=checkpoint)
            loss = progress.loss
    else:
        trainer.train(resume_from_checkpoint=checkpoint)
    trainer.accelerator.wait_for_everyone()
    if is_main_process():
        with files.new_folder(workdir / result) as folder:
            # The library's model card would quote texts of the training set.
            trainer.model.save_pretrained(str(folder), create_model_card=False)
        shutil.rmtree(workdir / "checkpoints", ignore_errors=True)
    return {
        result: str(workdir / result),
        "steps": trainer.state.global_step,
        "loss": loss,
        "seconds": time.perf_counter() - start,
    }


class EachEpoch(TrainerCallback):
    """Calls a function with the number of each epoch, from 0, before its first batch is made."""

    def __init__(self, begin: Callable[[int], object]) -> None:
        """Takes the function."""
        self._begin = begin

    def on_epoch_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Calls it."""
        self._begin(int(state.epoch or 0))


class _Progress(TrainerCallback):
    """Logs the figures and shows a progress bar."""

    loss = float("nan")

    def __init__(self, metrics: Log) -> None:
        self._metrics = metrics

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._bar = tqdm(
            total=state.max_steps, initial=state.global_step, desc="finetune", unit=" steps"
        )
        self._since = (state.global_step, time.perf_counter())

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._bar.update()
        # Also a run that is shorter than `log_every`, or ends between two logs, has a last loss.
        control.should_log |= state.global_step >= state.max_steps

    def on_log(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        logs: dict[str, float] = kwargs["logs"]
        if "loss" not in logs:
            return
        step, now = state.global_step, time.perf_counter()
        steps, seconds = step - self._since[0], now - self._since[1]
        self._since = (step, now)
        self.loss = logs["loss"]
        figures = {
            "epoch": state.epoch or 0.0,
            "loss": logs["loss"],
            "learning_rate": logs["learning_rate"],
            "grad_norm": logs["grad_norm"],
            "pairs_per_second": steps * args.per_device_train_batch_size / seconds,
        }
        self._metrics(step, figures)
        self._bar.set_postfix(loss=f"{logs['loss']:.4f}", refresh=False)

    def on_train_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._bar.close()


def _last_step(folder: Path) -> int:
    """Returns the step of the newest checkpoint that was written whole, 0 where there is none."""
    # The trainer writes its state last.
    steps = [int(path.parent.name.split("-")[1]) for path in folder.glob("*/trainer_state.json")]
    if not steps:
        return 0
    log.info("resuming from step %d", max(steps))
    return max(steps)
