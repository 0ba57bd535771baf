"""Runs the fine-tuning that a config describes."""

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from ml_collections import ConfigDict

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.runs import flatten, lock_folder, require_own
from cocondenser_jax.files.trackers import require_tracker
from cocondenser_jax.files.whole import require_absent
from cocondenser_jax.model_folder.folder import require_outside
from cocondenser_jax.model_folder.hub import require_place
from cocondenser_jax.representation import Given
from cocondenser_jax.retriever.data.folder import split_files
from cocondenser_jax.retriever.train.processes import (
    is_main_process,
    require_equal_shares,
    require_gpu_each,
)
from cocondenser_jax.retriever.train.settings import (
    BatchSettings,
    BiEncoderSettings,
    CrossEncoderSettings,
    DataSettings,
    DevSettings,
    LossSettings,
    ModelSettings,
    TrainerSettings,
    require_consistent,
)

T = TypeVar("T", bound=Any)

_RUNS = ("data.negatives_run", "loss.teacher_run", "eval.run")  # settings that name a TREC run


def finetune(config: ConfigDict, workdir: Path, words: Sequence[str] = ()) -> dict[str, Any]:
    """Trains the kind of model in `config.task`; resumes an interrupted run.

    Args:
      config: see configs/finetune.py and configs/cross_encoder.py.
      workdir: receives the trained model (`retriever/` or `cross_encoder/`, a folder for
        sentence-transformers), `metrics.jsonl`, hard batches of each epoch, and checkpoints until
        the run ends.
      words: the command's arguments, to call `require_gpu_each` with; (): use one GPU.

    Returns:
      The model's path under its folder's name; steps, loss (mean of the last logged steps),
      seconds, number of training pairs; and step, metric and loss of the best evaluation.
    """
    if is_main_process():
        require_tracker(config.tracker)
    settings = resolve(config, workdir)
    _require_runs(config)
    require_outside(Path(config.model.folder), workdir)
    start = workdir / "finetune.json"
    stored = settings.trainer.stored
    require_own(start, also=[stored.name])
    require_equal_shares(settings.trainer.batch_size)
    require_place(config.model.folder)
    split_files(settings.data.folder, settings.data.split)
    if isinstance(settings, BiEncoderSettings):
        require_consistent(settings)
    if words:
        require_gpu_each(words)
    # PyTorch is loaded after all checks that do not need it.
    from cocondenser_jax.retriever.train import bi_encoder, cross_encoder, trainer

    with lock_folder(workdir) if is_main_process() else contextlib.nullcontext():
        require_absent(workdir / config.task)
        hf_trainer: Any
        try:
            if isinstance(settings, BiEncoderSettings):
                hf_trainer = bi_encoder.bi_encoder_trainer(settings)
            else:
                hf_trainer = cross_encoder.cross_encoder_trainer(settings)
        except BaseException:
            if is_main_process() and not start.exists():  # the run has not started
                shutil.rmtree(stored, ignore_errors=True)
            raise
        outcome = trainer.run(hf_trainer, settings.trainer, config.task)
        if is_main_process():
            shutil.rmtree(stored, ignore_errors=True)
        return outcome | {"pairs": len(hf_trainer.train_dataset)}


def resolve(config: ConfigDict, workdir: Path) -> BiEncoderSettings | CrossEncoderSettings:
    """Converts a config to the settings of its task; no other module reads the config."""
    model, loss, folder = config.model, config.loss, Path(config.data.folder)
    data = _of(config, DataSettings, "data", folder=folder)
    trainer = _of(
        config,
        TrainerSettings,
        *("data", "train", "optimizer"),
        workdir=workdir,
        checkpoint_every=config.checkpoint.every,
        record=config.to_dict(),
    )
    if config.task == "cross_encoder":
        return CrossEncoderSettings(data, Path(model.folder), model.max_length, loss.name, trainer)
    said = {name: model[name] or None for name in Given._fields if name in model}
    given = Given(**said, dimensions=next(iter(loss.sizes), None))
    return BiEncoderSettings(
        data=data,
        teacher_run=loss.teacher_run,
        model=_of(config, ModelSettings, "model", folder=Path(model.folder), given=given),
        loss=_of(config, LossSettings, "loss", sizes=tuple(loss.sizes)),
        batches=_of(config, BatchSettings, "data"),
        dev=_of(config, DevSettings, "eval", folder=folder, precision=config.train.precision),
        trainer=trainer,
    )


def _of(config: ConfigDict, kind: type[T], *sections: str, **others: Any) -> T:
    """Fills a record with the values of the same names in a config and in sections of it."""
    values: dict[str, Any] = dict(config.items())
    for section in sections:
        values |= config[section].items()
    names = [name for name in kind._fields if name not in others]
    return kind(**{name: values[name] for name in names}, **others)


def _require_runs(config: ConfigDict) -> None:
    """Raises a UserError for a missing run, before the corpus is read."""
    settings = flatten(config.to_dict())
    for name in _RUNS:
        file = settings.get(name)
        if file and not Path(file).is_file():
            raise UserError(f"config.{name} is {file!r}: there is no such file")
