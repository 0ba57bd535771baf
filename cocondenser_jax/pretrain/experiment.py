"""What the settings of an experiment mean to the parts of a run that they are for."""

from typing import Any

from ml_collections import ConfigDict

from cocondenser_jax.corpus.batches import BatchSpec, epoch_examples
from cocondenser_jax.corpus.store import TokenStore
from cocondenser_jax.pretrain.objectives import OBJECTIVES
from cocondenser_jax.pretrain.optimizer import AdamW
from cocondenser_jax.pretrain.step import LossSettings, StepSettings


def step_settings(config: ConfigDict, n_steps: int) -> StepSettings:
    """Returns what a step needs of an experiment whose run has `n_steps`."""
    # A run may be older than a setting, which then has the default of `LossSettings`.
    loss = {name: value for name, value in config.train.items() if name in LossSettings._fields}
    optimizer = AdamW(**config.optimizer, n_steps=n_steps)
    return StepSettings(LossSettings(config.seed, **loss), optimizer, config.train.skip_nonfinite)


def batch_spec(config: ConfigDict) -> BatchSpec:
    """Returns what an experiment's batches are."""
    objective = OBJECTIVES[config.train.objective]
    return BatchSpec(
        config.seed,
        config.data.batch_size,
        config.data.length,
        objective.example,
        objective.predicts_tokens,
        config.data.short_span_prob,
        config.probe.documents if config.probe.every else 0,
    )


def network_sizes(config: ConfigDict) -> dict[str, Any]:
    """Returns the sizes of an experiment's network; only some objectives have a Condenser head."""
    without_head = {"n_head_layers": 0, "skip_from": 0, "late_mlm": True}
    has_head = OBJECTIVES[config.train.objective].has_head
    return config.model.to_dict() | ({} if has_head else without_head)


def run_length(config: ConfigDict, store: TokenStore) -> int:
    """Returns the steps of a run: those of the settings, else of as many epochs as they say.

    An epoch has as many steps as it has whole batches.
    """
    spec = batch_spec(config)
    steps_per_epoch = epoch_examples(store, spec) // spec.batch_size
    return int(config.train.steps or max(round(config.train.epochs * steps_per_epoch), 1))


def run_tokens(config: ConfigDict, store: TokenStore) -> float:
    """Returns about how many tokens a run reads, special ones included."""
    per_span = min(store.n_tokens / store.n_spans + 2, config.data.length)
    return run_length(config, store) * batch_spec(config).n_rows * per_span
