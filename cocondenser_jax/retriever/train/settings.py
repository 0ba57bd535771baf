"""The settings of a fine-tuning, as plain values that are checked before PyTorch is loaded."""

from pathlib import Path
from typing import Any, NamedTuple

from cocondenser_jax.errors import UserError
from cocondenser_jax.representation import Given, is_falling
from cocondenser_jax.retriever.data.folder import split_files


class DataSettings(NamedTuple):
    """Which pairs to train on, and which negatives; see `DATA` of configs/finetune.py."""

    folder: Path
    split: str
    train_queries: int
    negatives_run: str
    negatives_per_query: int
    negatives_depth: int
    seed: int


class ModelSettings(NamedTuple):
    """The bi-encoder to train; see configs/finetune.py."""

    folder: Path
    given: Given
    two_towers: bool
    query_length: int
    passage_length: int


class LossSettings(NamedTuple):
    """The loss and its scores; see configs/finetune.py."""

    name: str
    scale: float  # factor of the scores; 0 in the config means the model's own
    chunk_size: int
    sizes: tuple[int, ...] = ()

    @property
    def is_soft(self) -> bool:
        """Whether the loss distills a teacher's scores."""
        return self.name == "soft_labels"


class BatchSettings(NamedTuple):
    """Which pairs share a step; see configs/finetune.py."""

    batches: str
    batch_size: int
    batch_scores: str
    batch_depth: int
    seed: int


class DevSettings(NamedTuple):
    """Data and frequency of evaluation; see configs/finetune.py."""

    folder: Path
    every: int  # steps; 0: no evaluation
    split: str
    run: str  # "": the whole collection
    precision: str


class TrainerSettings(NamedTuple):
    """Settings common to all trainings; see `TRAINING` of configs/finetune.py."""

    workdir: Path
    seed: int
    log_every: int
    tracker: str
    batch_size: int
    loader_workers: int
    epochs: int
    max_steps: int
    precision: str
    learning_rate: float
    warmup_ratio: float
    weight_decay: float
    checkpoint_every: int
    record: dict[str, Any]  # all settings of the run, as in finetune.json

    @property
    def stored(self) -> Path:
        """The temporary folder in the workdir for passages and negatives.

        The run deletes it at the end, so its name is unlikely to be a user's.
        """
        return self.workdir / "finetune.stored"


class BiEncoderSettings(NamedTuple):
    """All settings of the fine-tuning of a bi-encoder."""

    data: DataSettings
    teacher_run: str
    model: ModelSettings
    loss: LossSettings
    batches: BatchSettings
    dev: DevSettings
    trainer: TrainerSettings


class CrossEncoderSettings(NamedTuple):
    """All settings of the fine-tuning of a cross-encoder; see configs/cross_encoder.py."""

    data: DataSettings
    model_folder: Path
    max_length: int
    loss: str
    trainer: TrainerSettings


def require_consistent(settings: BiEncoderSettings) -> None:
    """Raises a UserError for settings that contradict each other or name missing files."""
    _require_negatives(settings)
    _require_dev(settings.dev)
    sizes = settings.loss.sizes
    if not is_falling(sizes):
        raise UserError(f"config.loss.sizes is {[*sizes]}; expected the largest first")


def _require_negatives(settings: BiEncoderSettings) -> None:
    is_soft = settings.loss.is_soft
    n_negatives = settings.data.negatives_per_query
    if n_negatives and not settings.data.negatives_run:
        raise UserError(
            f"config.data.negatives_per_query is {n_negatives}, but there is no "
            "config.data.negatives_run to draw them from: name a TREC run, or set it to 0"
        )
    if settings.data.negatives_run and not n_negatives:
        raise UserError(
            f"config.data.negatives_run is {settings.data.negatives_run!r}, but none is drawn: "
            "config.data.negatives_per_query is 0"
        )
    if settings.teacher_run and not is_soft:
        raise UserError(
            f"config.loss.teacher_run is {settings.teacher_run!r}, but config.loss.name is "
            f"{settings.loss.name!r}: expected soft_labels, or no teacher"
        )
    if is_soft and not (settings.teacher_run and n_negatives):
        raise UserError(
            "config.loss.name is soft_labels: expected config.loss.teacher_run, a TREC run of a "
            "cross-encoder's scores, and config.data.negatives_per_query of at least 1"
        )


def _require_dev(dev: DevSettings) -> None:
    if dev.every:
        split_files(dev.folder, dev.split)  # reports missing files before the corpus is read
    elif dev.run:
        raise UserError(
            f"config.eval.run is {dev.run!r}, but config.eval.every is 0: expected a number of "
            "steps between two evaluations"
        )
