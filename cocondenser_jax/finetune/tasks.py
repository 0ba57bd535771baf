"""The entry to fine-tuning."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from cocondenser_jax.errors import UserError
from cocondenser_jax.finetune import trainer
from cocondenser_jax.finetune.bi_encoder import bi_encoder_trainer
from cocondenser_jax.finetune.cross_encoder import cross_encoder_trainer
from cocondenser_jax.finetune.sentences import sentences_trainer
from cocondenser_jax.storage.files import require_absent
from cocondenser_jax.storage.metrics import load_loggers
from cocondenser_jax.storage.runs import lock_folder

# What makes the trainer, the folder of what is trained, and what that is trained on.
_TASKS: dict[str, tuple[Callable[[ConfigDict, Path], Any], str, str]] = {
    "retriever": (bi_encoder_trainer, "retriever", "pairs"),
    "cross_encoder": (cross_encoder_trainer, "cross_encoder", "pairs"),
    "sentences": (sentences_trainer, "encoder", "rows"),
}


def finetune(config: ConfigDict, workdir: Path) -> dict[str, Any]:
    """Trains what `config.task` names; resumes an interrupted run.

    Args:
      config: see configs/finetune.py, configs/cross_encoder.py and configs/sentences.py.
      workdir: gets the trained model (`retriever/`, `cross_encoder/` or `encoder/`: a folder for
        sentence-transformers, whole or absent), `metrics.jsonl`, TensorBoard events, with
        `batches="hard"` the plans, and checkpoints until the run ends.

    Returns:
      The model's path under the name of its folder, steps, loss (mean of the last logged steps),
      seconds, the number of pairs or rows trained on, and of the best evaluation step and measure.

    Raises:
      UserError: for data, a model or settings that cannot be used, or a workdir that holds
        something else or is in use.
    """
    make_trainer, result, rows = _TASKS[config.task]
    n_processes = int(os.environ.get("WORLD_SIZE", "1"))
    if config.batch_size % n_processes:
        raise UserError(
            f"config.batch_size is {config.batch_size}: expected a multiple of the {n_processes} "
            "processes that share it"
        )
    with lock_folder(workdir) if trainer.is_main_process() else contextlib.nullcontext():
        require_absent(workdir / result)
        loggers = load_loggers(config.loggers) if trainer.is_main_process() else []
        hf_trainer = make_trainer(config, workdir)
        outcome = trainer.run(hf_trainer, workdir, result, config.get("patience", 0), loggers)
        return outcome | {rows: len(hf_trainer.train_dataset)}
