"""Trains a bi-encoder on pairs of texts of a token store, on sentence-transformers' trainer.

The batches are those of pre-training in JAX, and so are the loss, the optimizer and its schedule:
`adapt` trains families by it that the Flax network does not compute.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from transformers import TrainerCallback

from cocondenser_jax.corpus.batches import (
    Batch,
    BatchSpec,
    batch_document_ids,
    held_out_batch,
    make_batch,
)
from cocondenser_jax.corpus.store import TokenStore
from cocondenser_jax.errors import UserError, first_three
from cocondenser_jax.files.runs import start_or_compare
from cocondenser_jax.representation import Representation
from cocondenser_jax.retriever.search.models import load_as, model_sha256
from cocondenser_jax.retriever.train import trainer
from cocondenser_jax.retriever.train.networks import (
    add_adapters,
    merge_adapters,
    pool_by_rows,
    set_dropout,
)
from cocondenser_jax.retriever.train.pair_losses import PairLoss, PairLossSettings
from cocondenser_jax.retriever.train.samplers import EpochBatchSampler, sequential_batches
from cocondenser_jax.retriever.train.trainer import TrainerSettings
from cocondenser_jax.retriever.train.training_data import Epoch

RESULT = "model"  # the folder in the workdir
_TRAINED = "trained.safetensors"  # of a checkpoint: what is trained
_ROWS_AT_ONCE = 64  # that the probe encodes

# From vectors_SxD of held-out texts to values by name.
Measure = Callable[[np.ndarray], Mapping[str, float]]


class Network(NamedTuple):
    """The bi-encoder to train, and how."""

    folder: Path
    representation: Representation  # of the vectors that are trained
    hidden_dropout: float
    attention_dropout: float
    lora_rank: int  # of adapters; 0: all weights are trained


class Adam(NamedTuple):
    """AdamW's settings that `TrainerSettings` does not have; see configs/default.py."""

    b1: float
    b2: float
    eps: float
    clip_norm: float


class Probe(NamedTuple):
    """How held-out texts are looked at while the model trains."""

    every: int  # steps
    measure: Measure


class PairSettings(NamedTuple):
    """All settings of a training on pairs; a step of `trainer` is a batch of `batches`."""

    network: Network
    batches: BatchSpec
    loss: PairLossSettings
    adam: Adam
    trainer: TrainerSettings
    probe: Probe
    keep: int  # latest checkpoints


def train_pairs(settings: PairSettings, store: TokenStore) -> Path:
    """Trains on pairs, or resumes from the newest intact checkpoint in the workdir.

    Args:
      settings: of the training.
      store: holds the texts.

    Returns:
      The model's folder, with adapters merged into its weights.
    """
    result = settings.trainer.workdir / RESULT
    if not result.exists():
        record = settings.trainer.record
        sha256 = {"store": store.sha256, "model": model_sha256(settings.network.folder)}
        workdir = settings.trainer.workdir
        start_or_compare(workdir / "finetune.json", record | {"sha256": sha256})
        trainer.run(pair_trainer(settings, store), settings.trainer, RESULT)
    return result


def pair_trainer(settings: PairSettings, store: TokenStore) -> SentenceTransformerTrainer:
    """Makes the trainer of a bi-encoder on pairs of a store."""
    network = settings.network
    model = load_as(network.folder, network.representation)
    set_dropout(model, network.hidden_dropout, network.attention_dropout)
    pool_by_rows(model)
    callbacks = []
    if network.lora_rank:
        adapted = add_adapters(model, network.lora_rank, settings.trainer.seed)
        callbacks.append(_MergeCallback(adapted))
    made = _Trainer(
        settings, store, PairLoss(model, network.representation, settings.loss), callbacks
    )
    made.add_callback(_ProbeCallback(made, settings.probe, held_out_batch(store, settings.batches)))
    return made


def collate(batch: Batch) -> dict[str, torch.Tensor]:
    """Returns the inputs of `PairLoss`: texts of like length are neighbors, and no column empty."""
    lengths_S = batch.attention_mask_SxL.sum(axis=1)
    order_S = np.argsort(lengths_S, kind="stable")
    longest = lengths_S.max()
    labels_Sx3 = np.column_stack([batch.origins_Sx2, np.argsort(order_S)])
    return {
        "text_input_ids": torch.from_numpy(batch.input_ids_SxL[order_S, :longest]).long(),
        "text_attention_mask": torch.from_numpy(batch.attention_mask_SxL[order_S, :longest]).long(),
        "text_prompt_length": torch.from_numpy(batch.prompt_lengths_S[order_S]).long(),
        "label": torch.from_numpy(labels_Sx3).long(),
    }


def rate_by_step(step: int, n_warmup: int, n_steps: int) -> float:
    """Returns the share of the peak that the learning rate has in a step, from 0.

    It rises linearly, the first step moving already, and falls linearly to 0 after the last step.
    """
    if step < n_warmup:
        return (step + 1) / n_warmup
    return max(n_steps - step, 0) / max(n_steps - n_warmup, 1)


class _Trainer(SentenceTransformerTrainer):
    """The library's trainer, with batches of a store."""

    def __init__(
        self,
        settings: PairSettings,
        store: TokenStore,
        loss: PairLoss,
        callbacks: Sequence[TrainerCallback],
    ) -> None:
        own = settings.trainer
        n_rows = own.max_steps * own.batch_size
        self._warmup_ratio = own.warmup_ratio
        self._batches = EpochBatchSampler(
            lambda epoch: sequential_batches(n_rows, own.batch_size),
            Epoch(),
            n_rows,
            own.batch_size,
        )
        adam = settings.adam
        collator: Any = _Collator(store, settings.batches)
        arguments = trainer.arguments(
            SentenceTransformerTrainingArguments,
            own,
            adam_beta1=adam.b1,
            adam_beta2=adam.b2,
            adam_epsilon=adam.eps,
            max_grad_norm=adam.clip_norm,
            save_total_limit=settings.keep,
        )
        super().__init__(
            loss.model,
            arguments,
            datasets.Dataset.from_dict({"row": range(n_rows)}),
            loss=loss,
            data_collator=collator,
            callbacks=[*callbacks],
        )
        self._names = functools.partial(batch_document_ids, store, settings.batches)

    def get_batch_sampler(self, *args: Any, **kwargs: Any) -> EpochBatchSampler:
        return self._batches

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        # The library's would not move in the first step.
        n_warmup = round(self._warmup_ratio * num_training_steps)
        own: Any = optimizer or self.optimizer
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
            own,
            lambda step: rate_by_step(step, n_warmup, num_training_steps),
        )
        return self.lr_scheduler

    def training_step(self, model: Any, inputs: Any, *args: Any) -> torch.Tensor:
        loss: torch.Tensor = super().training_step(model, inputs, *args)
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        # The library would clip an infinite gradient to 0, and log no loss that is not finite.
        if not torch.nn.utils.get_total_norm(gradients).isfinite():
            step = self.state.global_step
            raise UserError(
                f"step {step + 1} is not finite (documents {first_three(self._names(step))}): try a"
                " lower config.optimizer.learning_rate, or config.train.dtype=float32"
            )
        return loss

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        # The library would save a folder, which cannot be loaded while there are adapters in it.
        assert output_dir is not None
        Path(output_dir).mkdir(parents=True, exist_ok=True)
        save_file(_trained_parameters(self.model), Path(output_dir, _TRAINED))

    def _load_from_checkpoint(self, checkpoint_path: str, model: Any = None) -> None:
        saved = load_file(Path(checkpoint_path, _TRAINED))
        for name, parameter in self.model.named_parameters():
            if name in saved:
                parameter.data.copy_(saved[name])


def _trained_parameters(model: SentenceTransformer) -> dict[str, torch.Tensor]:
    named = model.named_parameters()
    return {name: value.detach().contiguous() for name, value in named if value.requires_grad}


class _Collator:
    """Makes the batch that the rows of a step stand for."""

    valid_label_columns = ("label",)  # the trainer asks for it

    def __init__(self, store: TokenStore, spec: BatchSpec) -> None:
        self._store = store
        self._spec = spec

    def __call__(self, rows: Iterable[Mapping[str, int]]) -> dict[str, torch.Tensor]:
        step = min(row["row"] for row in rows) // self._spec.batch_size
        return collate(make_batch(self._store, self._spec, step))


class _MergeCallback(TrainerCallback):
    """Merges adapters at the end, so that the model is saved as it was published."""

    def __init__(self, adapted: list[Any]) -> None:
        self._adapted = adapted

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        merge_adapters(self._adapted)


class _ProbeCallback(TrainerCallback):
    """Logs how well held-out texts find each other, as the probe of pre-training does."""

    def __init__(self, owner: SentenceTransformerTrainer, probe: Probe, batch: Batch) -> None:
        self._owner = owner
        self._probe = probe
        self._batch = batch

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self._probe.every and state.global_step < state.max_steps:
            return
        model: Any = self._owner.model
        values = self._probe.measure(_encode(model, self._batch))
        is_due = control.should_log  # which logging unsets
        self._owner.log({f"probe/{name}": float(value) for name, value in values.items()})
        control.should_log = is_due


def _encode(model: SentenceTransformer, batch: Batch) -> np.ndarray:
    """Returns vectors_SxD of a batch's texts, without dropout; `training_step` switches it on."""
    inputs = collate(batch)
    places_S = inputs["label"][:, 2].numpy()
    vectors = []
    model.eval()
    with torch.no_grad():
        for first in range(0, len(places_S), _ROWS_AT_ONCE):
            rows = slice(first, first + _ROWS_AT_ONCE)
            features = {
                name: inputs[f"text_{name}"][rows].to(model.device)
                for name in ("input_ids", "attention_mask", "prompt_length")
            }
            vectors.append(model(features)["sentence_embedding"].float().cpu().numpy())
    return np.concatenate(vectors)[places_S]
