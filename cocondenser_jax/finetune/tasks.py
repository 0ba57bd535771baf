"""The entry to fine-tuning."""

import contextlib
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from cocondenser_jax.finetune.bi_encoder import train_bi_encoder
from cocondenser_jax.finetune.cross_encoder import train_cross_encoder
from cocondenser_jax.finetune.sentences import train_sentences
from cocondenser_jax.finetune.trainer import is_main_process
from cocondenser_jax.locks import held

_TASKS = {
    "retriever": train_bi_encoder,
    "cross_encoder": train_cross_encoder,
    "sentences": train_sentences,
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
    with held(workdir) if is_main_process() else contextlib.nullcontext():
        return _TASKS[config.task](config, workdir)
