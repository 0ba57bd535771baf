"""AdamW with linear warm-up and decay, as for BERT."""

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
    peak, n_steps = settings.learning_rate, settings.n_steps
    n_warmup = round(settings.warmup_ratio * n_steps)
    # The rate is not zero at the first step: step t has (t + 1) / n_warmup of the peak.
    warmup = optax.linear_schedule(peak / max(n_warmup, 1), peak, max(n_warmup - 1, 1))
    decay = optax.linear_schedule(peak, 0.0, max(n_steps - n_warmup, 1))
    return optax.join_schedules([warmup, decay], [n_warmup])


def decay_mask(params: Any) -> Any:
    """Returns a tree of booleans: true for kernels and embeddings.

    False for biases, LayerNorm and the table of relative positions.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, _: path[-1].key in ("kernel", "embedding"), params
    )


def clip(gradient: Any, norm: Float[Array, ""], max_norm: float) -> Any:
    """Scales a gradient of a given global norm down to at most `max_norm`."""
    divisor = jnp.maximum(1.0, norm / max_norm)
    return jax.tree.map(lambda x: x / divisor, gradient)


def make_optimizer(settings: AdamW) -> optax.GradientTransformation:
    """Returns AdamW for gradients that are already clipped."""
    return optax.adamw(
        learning_rate_schedule(settings),
        b1=settings.b1,
        b2=settings.b2,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        mask=decay_mask,
    )
