"""Fine-tunes what a config names."""

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

from ml_collections import ConfigDict

from cocondenser_jax.errors import UserError
from cocondenser_jax.finetune import trainer
from cocondenser_jax.finetune.bi_encoder import BiEncoderSettings, bi_encoder_trainer
from cocondenser_jax.finetune.cross_encoder import CrossEncoderSettings, cross_encoder_trainer
from cocondenser_jax.storage.files import require_absent
from cocondenser_jax.storage.runs import lock_folder

Settings = BiEncoderSettings | CrossEncoderSettings

_TASKS: dict[str, tuple[type[Settings], Callable[[Any], Any]]] = {
    "retriever": (BiEncoderSettings, bi_encoder_trainer),
    "cross_encoder": (CrossEncoderSettings, cross_encoder_trainer),
}


def finetune(config: ConfigDict, workdir: Path) -> dict[str, Any]:
    """Trains what `config.task` names; resumes an interrupted run.

    Args:
      config: see configs/finetune.py and configs/cross_encoder.py.
      workdir: gets the trained model (`retriever/` or `cross_encoder/`: a folder for
        sentence-transformers, whole or absent), `metrics.jsonl`, the plans of hard batches, and
        checkpoints until the run ends.

    Returns:
      The model's path under the name of its folder, steps, loss (mean of the last logged steps),
      seconds, pairs trained on, and the best evaluation's step, measure and loss.
    """
    settings = resolve(config, workdir)
    n_processes = int(os.environ.get("WORLD_SIZE", "1"))
    if settings.trainer.batch_size % n_processes:
        raise UserError(
            f"config.batch_size is {settings.trainer.batch_size}: expected a multiple of the "
            f"{n_processes} processes that share it"
        )
    with lock_folder(workdir) if trainer.is_main_process() else contextlib.nullcontext():
        require_absent(workdir / config.task)
        _, make_trainer = _TASKS[config.task]
        hf_trainer = make_trainer(settings)
        outcome = trainer.run(hf_trainer, settings.trainer, config.task)
        return outcome | {"pairs": len(hf_trainer.train_dataset)}


def resolve(config: ConfigDict, workdir: Path) -> Settings:
    """Makes the settings of the config's task, so that nothing below reads a config."""
    record = config.to_dict()
    values = record | {"workdir": workdir, "record": record}
    kind, _ = _TASKS[config.task]
    settings: Settings = _take(kind, values)
    return settings


def _take(part: Any, values: Mapping[str, Any]) -> Any:
    """Makes a named tuple, and the named tuples that are its fields, from values by name."""
    taken = {}
    for name, kind in get_type_hints(part).items():
        taken[name] = _take(kind, values) if hasattr(kind, "_fields") else values[name]
    return part(**taken)
