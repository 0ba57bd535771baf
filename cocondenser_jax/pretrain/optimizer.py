"""AdamW with linear warm-up and decay, as BERT is trained."""

from typing import Any

import jax
import optax
from ml_collections import ConfigDict


def learning_rate_schedule(config: ConfigDict, n_steps: int) -> optax.Schedule:
    """Returns the learning rate by step: linear to the peak, then linear to 0.

    Args:
      config: `learning_rate` (the peak) and `warmup_ratio` (the share of steps to reach it).
      n_steps: the length of the run in steps.
    """
    n_warmup = round(config.warmup_ratio * n_steps)
    return optax.join_schedules(
        [
            # The first step already moves: step t has the rate (t + 1) / n_warmup of the peak.
            optax.linear_schedule(
                config.learning_rate / max(n_warmup, 1), config.learning_rate, max(n_warmup - 1, 1)
            ),
            optax.linear_schedule(config.learning_rate, 0.0, max(n_steps - n_warmup, 1)),
        ],
        [n_warmup],
    )


def decay_mask(params: Any) -> Any:
    """Returns a tree of booleans: true for matrices, false for biases and LayerNorm."""

    def decays(path: tuple[Any, ...], _: jax.Array) -> bool:
        return path[-1].key in ("kernel", "embedding")

    return jax.tree_util.tree_map_with_path(decays, params)


def make_optimizer(config: ConfigDict, n_steps: int) -> optax.GradientTransformation:
    """Returns AdamW after clipping by the global norm; see `config.optimizer` for the numbers."""
    return optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.adamw(
            learning_rate_schedule(config, n_steps),
            b1=config.b1,
            b2=config.b2,
            eps=config.eps,
            weight_decay=config.weight_decay,
            mask=decay_mask,
        ),
    )
