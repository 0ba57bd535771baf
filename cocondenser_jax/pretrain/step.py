"""One training step, written for one device and mapped over all of them."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from cocondenser_jax.corpus.batches import Batch
from cocondenser_jax.corpus.masking import mask_capacity
from cocondenser_jax.errors import UserError
from cocondenser_jax.model.condenser import Condenser, CondenserOutput
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model.dropout import fold_in
from cocondenser_jax.pretrain.grad_cache import Sums, loss_gradient
from cocondenser_jax.pretrain.objectives import corpus_contrastive_sum, masked_lm_sum
from cocondenser_jax.pretrain.optimizer import learning_rate_schedule, make_optimizer

AXIS = "devices"
# Of the full length: a chunk is computed at the first of these that holds all of its spans. On
# Wikipedia, with 128 tokens and chunks of 64, padding falls from 14.6 % to 10.4 %. Each length is a
# program of its own: with a third (8.9 %) BERT-base took more than 21 GB of memory to compile.
LENGTH_SHARES = (7 / 8, 1)
MLM_REDUCTIONS = ("token_mean", "span_sum")
DTYPES = ("float32", "bfloat16")


class TrainState(NamedTuple):
    """All that changes from step to step."""

    step: jax.Array  # int32 scalar, steps done
    params: Any
    optimizer_state: Any
    skipped: jax.Array  # int32 scalar, those of them whose loss or gradient was not finite


Metrics = dict[str, jax.Array]


def make_train_step(
    model_config: ModelConfig, config: ConfigDict
) -> Callable[[TrainState, Batch], tuple[TrainState, Metrics]]:
    """Returns the per-device step, to be mapped with the axis name `AXIS`.

    A step whose loss or gradient is not finite changes neither parameters nor optimizer. One more
    of them than `train.skip_nonfinite`, and nothing changes any more: the host learns of it later,
    and then finds the state as it was before that step.

    Args:
      model_config: the network.
      config: the experiment, see `configs/default.py`.
    """
    loss_and_gradient = make_gradient(model_config, config)
    optimizer = make_optimizer(config.optimizer, config.train.steps)
    schedule = learning_rate_schedule(config.optimizer, config.train.steps)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        losses, grads = loss_and_gradient(state.params, state.step, batch)
        gradient_norm = optax.global_norm(grads)
        finite = jnp.isfinite(losses["loss"]) & jnp.isfinite(gradient_norm)
        skipped = state.skipped + (~finite).astype(jnp.int32)
        halted = skipped > config.train.skip_nonfinite
        updates, optimizer_state = optimizer.update(grads, state.optimizer_state, state.params)
        params, optimizer_state = jax.tree.map(
            lambda new, old: jnp.where(finite & ~halted, new, old),
            (optax.apply_updates(state.params, updates), optimizer_state),
            (state.params, state.optimizer_state),
        )
        metrics = {
            **losses,
            "learning_rate": schedule(state.step - state.skipped),
            "gradient_norm": gradient_norm,
            "skipped": skipped,
        }
        step = state.step + (~halted).astype(jnp.int32)
        return TrainState(step, params, optimizer_state, skipped), metrics

    return train_step


def make_gradient(
    model_config: ModelConfig, config: ConfigDict
) -> Callable[[Any, jax.Array, Batch], tuple[Metrics, Any]]:
    """Returns the per-device loss and its gradient, to be mapped with the axis name `AXIS`.

    L = mean over the spans of all devices of (mlm_weight * L_mlm + L_co); without `contrastive`
    only the first. L_mlm is the head's masked-token loss plus, with `late_mlm`, the backbone's,
    averaged over all masked tokens of the global batch (`token_mean`), or summed within a span as
    in equations 5 and 7 of arXiv 2108.05540 (`span_sum`).

    Args:
      model_config: the network.
      config: the experiment, see `configs/default.py`.

    Returns:
      A function of parameters, step (it seeds the dropout) and a device's part of the batch. It
      gives the losses and the gradient of the whole batch, the same on every device.
    """
    model = Condenser(model_config, dtype=jnp.dtype(config.train.dtype))
    has_dropout = (
        model_config.hidden_dropout_prob > 0 or model_config.attention_probs_dropout_prob > 0
    )

    def loss_and_gradient(params: Any, step: jax.Array, batch: Batch) -> tuple[Metrics, Any]:
        n_local = batch.input_ids_SxL.shape[0]
        n_spans = n_local * jax.lax.axis_size(AXIS)
        n_masked = jnp.maximum(jax.lax.psum(jnp.sum(batch.weights_SxM), AXIS), 1.0)
        per_token = config.train.mlm_reduction == "token_mean"
        mlm_scale = config.train.mlm_weight / (n_masked if per_token else n_spans)

        def forward(params: Any, chunk: tuple) -> tuple[jax.Array, jax.Array, Sums]:
            batch, seeds_B = chunk
            inputs = batch.input_ids_SxL, batch.attention_mask_SxL, batch.masked_positions_SxM
            output = cast(CondenserOutput, model.apply({"params": params}, *inputs, seeds_B))
            targets = batch.labels_SxM, batch.weights_SxM
            sums = {"head_mlm": masked_lm_sum(output.head_logits_BxMxV, *targets)}
            if output.late_logits_BxMxV is not None:
                sums["late_mlm"] = masked_lm_sum(output.late_logits_BxMxV, *targets)
            return output.cls_BxD, mlm_scale * sum(sums.values()), sums

        def encode(params: Any, chunk: tuple) -> jax.Array:
            batch, seeds_B = chunk
            inputs = batch.input_ids_SxL, batch.attention_mask_SxL, seeds_B
            return cast(jax.Array, model.apply({"params": params}, *inputs, method=model.encode))

        def contrast(in_order_SxD: jax.Array) -> jax.Array:
            return corpus_contrastive_sum(in_order_SxD[place_S], AXIS) / n_spans

        seeds_S = _dropout_seeds(config, step, n_local) if has_dropout else None
        # Neighbours in length share a chunk, so that chunks of short spans can be computed short.
        order_S = jnp.argsort(jnp.sum(batch.attention_mask_SxL, axis=1), stable=True)
        place_S = jnp.argsort(order_S)
        in_order = jax.tree.map(lambda x: x[order_S], (batch, seeds_S))
        contrastive_loss, sums, grads = loss_gradient(
            params,
            _cut(in_order, config.train.chunk_size or n_local),
            forward=forward,
            encode=encode,
            contrast=contrast if config.train.contrastive else None,
            on_chunk=_at_shortest_length,
        )
        # Every device holds its own share of sums over the global batch: add them once.
        contrastive_loss, sums, grads = jax.lax.psum((contrastive_loss, sums, grads), AXIS)
        losses = {
            "loss": mlm_scale * sum(sums.values()) + contrastive_loss,
            # Per masked token, whatever the reduction, so that runs can be compared.
            **{f"{name}_loss": total / n_masked for name, total in sums.items()},
        }
        if config.train.contrastive:
            losses["contrastive_loss"] = contrastive_loss
        return losses, grads

    return loss_and_gradient


def pmap_step(
    model_config: ModelConfig, config: ConfigDict, devices: list[jax.Device] | None = None
) -> Callable[[TrainState, Batch], tuple[TrainState, Metrics]]:
    """Returns the step mapped over devices; its arguments have a leading axis of local devices.

    The state is donated: the one passed in must not be used again.

    Raises:
      UserError: if the batch cannot be cut as the config asks.
    """
    check_shapes(model_config, config, len(devices) if devices else jax.device_count())
    step = make_train_step(model_config, config)
    return jax.pmap(step, axis_name=AXIS, devices=devices, donate_argnums=0)


def pmap_gradient(
    model_config: ModelConfig, config: ConfigDict, devices: list[jax.Device]
) -> Callable[[Any, jax.Array, Batch], tuple[Metrics, Any]]:
    """Returns `make_gradient`'s function mapped over devices, which share parameters and step."""
    check_shapes(model_config, config, len(devices))
    gradient = make_gradient(model_config, config)
    return jax.pmap(gradient, axis_name=AXIS, devices=devices, in_axes=(None, None, 0))


def replicate(state: TrainState) -> TrainState:
    """Gives every local device a copy: a new leading axis of devices."""
    n_devices = jax.local_device_count()
    copies = jax.tree.map(lambda x: np.broadcast_to(x, (n_devices, *x.shape)), state)
    # Laid out as the step lays out its result; else the second step would be compiled again.
    return cast(TrainState, jax.pmap(lambda x: x, axis_name=AXIS)(copies))


def check_shapes(model_config: ModelConfig, config: ConfigDict, n_devices: int) -> None:
    """Raises a UserError where batch, chunk, length or names do not fit each other."""
    n_documents, chunk_size = config.data.documents_per_step, config.train.chunk_size
    if n_documents % n_devices:
        raise UserError(
            f"config.data.documents_per_step {n_documents} is not a multiple of {n_devices} devices"
        )
    spans = 2 * n_documents // n_devices
    if chunk_size and spans % chunk_size:
        raise UserError(
            f"config.train.chunk_size {chunk_size} does not divide the {spans} spans of a device"
            f" (2 x {n_documents} documents / {n_devices} devices)"
        )
    if config.data.length > model_config.max_length:
        raise UserError(
            f"config.data.length {config.data.length} is longer than the model's"
            f" {model_config.max_length} positions"
        )
    if config.train.dtype not in DTYPES:
        raise UserError(
            f"config.train.dtype is {config.train.dtype!r}; expected one of {', '.join(DTYPES)}"
        )
    if config.train.mlm_reduction not in MLM_REDUCTIONS:
        raise UserError(
            f"config.train.mlm_reduction is {config.train.mlm_reduction!r};"
            f" expected one of {', '.join(MLM_REDUCTIONS)}"
        )


def initial_state(
    model_config: ModelConfig, config: ConfigDict, params: Any | None = None
) -> TrainState:
    """Returns the state before the first step: given parameters, or new ones from the seed."""
    if params is None:
        params = initial_params(model_config, config.seed)
    optimizer = make_optimizer(config.optimizer, config.train.steps)
    params = jax.tree.map(jnp.asarray, params)
    zero = jnp.zeros((), jnp.int32)
    return TrainState(zero, params, jax.jit(optimizer.init)(params), zero)


def initial_params(model_config: ModelConfig, seed: int) -> Any:
    """Returns freshly drawn float32 parameters."""
    model = Condenser(model_config)
    one = jnp.zeros((1, 2), jnp.int32)
    return jax.jit(model.init)(jax.random.key(seed), one, one, one)["params"]


def _dropout_seeds(config: ConfigDict, step: jax.Array, n_local: int) -> jax.Array | None:
    """Returns `seeds_S`, a function of seed, step and the span's global index only."""
    spans_S = jax.lax.axis_index(AXIS) * n_local + jnp.arange(n_local)
    return fold_in(fold_in(jnp.uint32(config.seed), step), spans_S)


def _at_shortest_length(function: Callable[[tuple], Any], chunk: tuple) -> Any:
    """Calls a function on a chunk without the columns that are padding in all of its spans.

    XLA needs static shapes, so there are a few lengths to choose from, and one program for each;
    likewise the slots for masked tokens. Devices choose on their own: the function must not
    communicate.
    """
    batch, _ = chunk
    full_length, full_slots = batch.input_ids_SxL.shape[1], batch.weights_SxM.shape[1]
    lengths = [math.ceil(full_length * share) for share in LENGTH_SHARES]
    slots = [min(mask_capacity(length), full_slots) for length in lengths[:-1]] + [full_slots]

    def cut(length: int, n_slots: int, chunk: tuple) -> Any:
        batch, seeds_B = chunk
        return function(
            (
                Batch(
                    batch.input_ids_SxL[:, :length],
                    batch.attention_mask_SxL[:, :length],
                    batch.masked_positions_SxM[:, :n_slots],
                    batch.labels_SxM[:, :n_slots],
                    batch.weights_SxM[:, :n_slots],
                ),
                seeds_B,
            )
        )

    longest = jnp.max(jnp.sum(batch.attention_mask_SxL, axis=1))
    most_masked = jnp.max(jnp.sum(batch.weights_SxM > 0, axis=1))
    fits = (longest <= jnp.array(lengths)) & (most_masked <= jnp.array(slots))
    branches = [functools.partial(cut, *sizes) for sizes in zip(lengths, slots, strict=True)]
    return jax.lax.switch(jnp.argmax(fits), branches, chunk)


def _cut(tree: Any, chunk_size: int) -> Any:
    """Splits the leading axis of every array into [chunks, chunk_size]."""
    return jax.tree.map(lambda x: x.reshape(-1, chunk_size, *x.shape[1:]), tree)
