"""Runs a fine-tuning with transformers' Trainer: arguments, resuming, metrics and result."""

import contextlib
import logging
import math
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from sentence_transformers import SentenceTransformerTrainer
from sentence_transformers.cross_encoder import CrossEncoderTrainer
from transformers import (
    PrinterCallback,
    ProgressCallback,
    TrainerCallback,
    TrainingArguments,
)

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.metrics import Log, metrics_log
from cocondenser_jax.files.runs import (
    CHECKSUMS,
    newest_intact,
    numbered_folders,
    require_intact,
    start_or_compare,
    write_checksums,
)
from cocondenser_jax.files.whole import (
    full_disk_errors,
    new_folder,
    read_object,
)
from cocondenser_jax.retriever.search.models import load_retriever, uses_bfloat16
from cocondenser_jax.retriever.train.processes import is_main_process, on_one_gpu
from cocondenser_jax.retriever.train.settings import TrainerSettings

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=TrainingArguments)

# Settings that may differ when a run resumes, since the files' checksums are compared.
_FREE = ("model.folder", "data.folder", "data.negatives_run", "loss.teacher_run", "tracker")

# The hint for numbers that are not finite.
DIVERGED = (
    "training has diverged; try a lower config.optimizer.learning_rate, or"
    " config.train.precision=float32"
)


def start_or_resume(settings: TrainerSettings, n_rows: int, checksums: Mapping[str, str]) -> None:
    """Prepares the workdir, or checks that the run in it has the same settings and data.

    Args:
      settings: the settings to compare.
      n_rows: the number of training rows.
      checksums: SHA-256 of the model and of the input files, by kind; files may be moved.
    """
    record = settings.record
    if n_rows < settings.batch_size:
        raise UserError(
            f"{record['data']['folder']} has {n_rows} rows to train on: too few for one step of "
            f"config.data.batch_size={settings.batch_size}"
        )
    if not is_main_process():
        return
    start_or_compare(
        settings.workdir / "finetune.json",
        record | {"sha256": dict(checksums)},
        _FREE,
        also=[settings.stored.name],
    )


def arguments(kind: type[T], settings: TrainerSettings, **others: Any) -> T:
    """Makes a trainer's arguments; all processes together train on `batch_size` rows per step.

    Args:
      kind: the class of the arguments.
      settings: the settings common to all tasks.
      others: arguments of one task.
    """
    return on_one_gpu(kind(**(_common_arguments(settings) | others)))


def _common_arguments(settings: TrainerSettings) -> dict[str, Any]:
    on_gpu = torch.cuda.is_available()
    return {
        "output_dir": str(settings.workdir / "checkpoints"),
        "num_train_epochs": settings.epochs,
        "max_steps": settings.max_steps or -1,
        "per_device_train_batch_size": settings.batch_size,
        "accelerator_config": {"split_batches": True},
        # Without this, processes without a GPU would train independently and in float32 (seen in
        # transformers 5.23; https://github.com/huggingface/transformers/issues/17581).
        "use_cpu": not (on_gpu or torch.backends.mps.is_available()),
        "learning_rate": settings.learning_rate,
        "warmup_steps": settings.warmup_ratio,  # values below 1 are a fraction of all steps
        "weight_decay": settings.weight_decay,
        "seed": settings.seed,
        "bf16": uses_bfloat16(settings.precision),
        "dataloader_drop_last": True,
        "dataloader_num_workers": settings.loader_workers,
        "dataloader_pin_memory": on_gpu,
        "logging_steps": settings.log_every,
        "save_strategy": "steps" if settings.checkpoint_every else "no",
        "save_steps": settings.checkpoint_every or 10**9,
        "save_total_limit": 2,  # the newest, and the best or the previous one
        "report_to": "none",  # `_MetricsCallback` writes metrics.jsonl and calls the tracker
        "disable_tqdm": True,  # `_MetricsCallback` has a progress bar
    }


def run(
    trainer: SentenceTransformerTrainer | CrossEncoderTrainer,
    settings: TrainerSettings,
    result: str,
) -> dict[str, Any]:
    """Trains to the end, from the newest intact checkpoint if any, and saves the model.

    The model is saved in the folder `result` of the workdir; with an evaluator, it is the model of
    the best evaluation. Returns the values of `tasks.finetune` except the number of pairs.
    """
    start = time.perf_counter()
    checkpoints = settings.workdir / "checkpoints"
    with trainer.accelerator.main_process_first():  # it deletes damaged ones
        step = _prepare_resume(checkpoints)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(_CheckpointCallback())
    with contextlib.ExitStack() as stack:
        if is_main_process():
            log = metrics_log(settings.workdir, step, settings.tracker, settings.record)
            trainer.add_callback(_MetricsCallback(stack.enter_context(log)))
        stack.enter_context(full_disk_errors(checkpoints))
        if settings.loader_workers:
            _tokenize_without_threads()
        trainer.train(resume_from_checkpoint=f"{checkpoints}/checkpoint-{step}" if step else None)
    trainer.accelerator.wait_for_everyone()
    if is_main_process():
        _save_result(trainer, checkpoints, settings.workdir / result)
    state = trainer.state
    losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
    outcome: dict[str, Any] = {
        result: str(settings.workdir / result),
        "steps": state.global_step,
        "loss": losses[-1],
        "seconds": time.perf_counter() - start,
    }
    if state.best_global_step:
        outcome["best_step"] = state.best_global_step
        outcome[str(trainer.args.metric_for_best_model)] = state.best_metric
        evaluated = {e["step"]: e["eval_loss"] for e in state.log_history if "eval_loss" in e}
        outcome["eval_loss"] = evaluated[state.best_global_step]
    return outcome


def _tokenize_without_threads() -> None:
    """Allows tokenization in forked processes, which would hang if told to use threads.

    Without the variable, tokenizers (0.23.3) detects a fork and uses no threads in it.
    """
    if "TOKENIZERS_PARALLELISM" in os.environ:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _prepare_resume(checkpoints: Path) -> int:
    """Returns the step of the newest intact checkpoint, 0 for none, and deletes later ones.

    Raises:
      UserError: if all complete checkpoints are damaged; they are not deleted.
    """
    # transformers (5.23) would take the newest, even if incomplete after a kill:
    # https://github.com/huggingface/transformers/issues/35782. Our checksums are written last.
    folders = numbered_folders(checkpoints, "checkpoint-")
    complete = {step: folder for step, folder in folders.items() if (folder / CHECKSUMS).exists()}
    newest = 0
    if complete:
        newest, _ = newest_intact(complete, _require_intact)
        logger.info("resuming from step %d", newest)
    for step, folder in folders.items():
        if step > newest:
            shutil.rmtree(folder)
    return newest


def _require_intact(checkpoint: Path) -> None:
    """Raises a UserError if a checkpoint, or the best one so far, is damaged."""
    require_intact(checkpoint)
    best = read_object(checkpoint / "trainer_state.json").get("best_global_step")
    if best:
        require_intact(checkpoint.with_name(f"checkpoint-{best}"))


def _save_result(
    trainer: SentenceTransformerTrainer | CrossEncoderTrainer, checkpoints: Path, target: Path
) -> None:
    """Saves the model, of the best evaluation if there was any, and deletes checkpoints."""
    step = trainer.state.best_global_step
    if step:
        logger.info("saving the best model: step %d", step)
        best = checkpoints / f"checkpoint-{step}"
        require_intact(best)
        trainer.model.load_state_dict(load_retriever(best).state_dict())
    with new_folder(target) as folder:
        # The library's model card would quote texts of the training set.
        trainer.model.save_pretrained(str(folder), create_model_card=False)
    shutil.rmtree(checkpoints, ignore_errors=True)


class _MetricsCallback(ProgressCallback):
    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        self._step = state.global_step
        self._seconds = time.perf_counter()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if "eval_loss" in logs:
            names = ("eval_loss", args.metric_for_best_model)
            self._log(state.global_step, {name: logs[name] for name in names})
        if "loss" not in logs:
            return
        if not all(math.isfinite(logs[name]) for name in ("loss", "grad_norm")):
            step = state.global_step
            raise UserError(f"the loss or gradient of step {step} is not finite: {DIVERGED}")
        now = time.perf_counter()
        n_pairs = (state.global_step - self._step) * args.per_device_train_batch_size
        values = {"epoch": state.epoch or 0.0}
        for name in ("loss", "learning_rate", "grad_norm"):
            values[name] = logs[name]
        values["pairs_per_second"] = n_pairs / (now - self._seconds)
        self._log(state.global_step, values)
        self._step = state.global_step
        self._seconds = now
        bar: Any = self.training_bar
        bar.set_postfix(loss=f"{logs['loss']:.4f}", refresh=False)


class _CheckpointCallback(TrainerCallback):
    """Saves after the best evaluations, logs at checkpoints, and completes them by checksums."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # A resumed run restarts the running mean of the loss; so does each checkpoint. Logging at
        # the end gives every run a final loss.
        is_last = state.global_step >= state.max_steps
        if control.should_save or control.should_evaluate or is_last:
            control.should_log = True

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any
    ) -> None:
        metric = metrics[args.metric_for_best_model]
        if state.best_metric is None or metric > state.best_metric:
            control.should_save = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        PartialState().wait_for_everyone()  # each process writes a part of the checkpoint
        if is_main_process():
            write_checksums(Path(args.output_dir, f"checkpoint-{state.global_step}"))
