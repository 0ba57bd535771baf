"""AdamW with linear warm-up and decay, as BERT is trained."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float


class AdamW(NamedTuple):
    """The settings of the optimizer; see `configs/default.py`."""

    learning_rate: float  # peak
    warmup_ratio: float  # share of the steps
    weight_decay: float
    clip_norm: float  # of the whole gradient
    b1: float
    b2: float
    eps: float
    n_steps: int  # of the run


def learning_rate_schedule(settings: AdamW) -> optax.Schedule:
    """Returns the learning rate by step: linear to the peak, then linear to 0."""
    peak = settings.learning_rate
    n_warmup = round(settings.warmup_ratio * settings.n_steps)
    return optax.join_schedules(
        [
            # The first step already moves: step t has the rate (t + 1) / n_warmup of the peak.
            optax.linear_schedule(peak / max(n_warmup, 1), peak, max(n_warmup - 1, 1)),
            optax.linear_schedule(peak, 0.0, max(settings.n_steps - n_warmup, 1)),
        ],
        [n_warmup],
    )


def decay_mask(params: Any) -> Any:
    """Returns a tree of booleans: true for matrices, false for biases and LayerNorm."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: path[-1].key in ("kernel", "embedding"), params
    )


def clip(gradient: Any, norm: Float[Array, ""], max_norm: float) -> Any:
    """Scales a gradient of a given global norm down to at most `max_norm`."""
    divisor = jnp.maximum(1.0, norm / max_norm)
    return jax.tree.map(lambda x: x / divisor, gradient)


def make_optimizer(settings: AdamW) -> optax.GradientTransformation:
    """Returns AdamW, for gradients that are clipped already."""
    return optax.adamw(
        learning_rate_schedule(settings),
        b1=settings.b1,
        b2=settings.b2,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        mask=decay_mask,
    )
