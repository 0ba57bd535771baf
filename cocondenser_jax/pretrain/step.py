"""One training step, written for one device and mapped over all of them.

That devices have a share of the batch and a copy of the state each is known here and nowhere else:
every function takes and gives a whole batch of the host, and a single state.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cocondenser_jax.corpus.batches import Batch, BatchSpec
from cocondenser_jax.corpus.masking import mask_capacity
from cocondenser_jax.errors import UserError
from cocondenser_jax.model.condenser import Condenser, CondenserOutput
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model.dropout import fold_in
from cocondenser_jax.pretrain.grad_cache import Sums, loss_gradient
from cocondenser_jax.pretrain.objectives import OBJECTIVES, masked_lm_sum
from cocondenser_jax.pretrain.optimizer import AdamW, learning_rate_schedule, make_optimizer

AXIS = "devices"
# Of the full length: a chunk is computed at the first of these that holds all of its spans. On
# Wikipedia, with 128 tokens and chunks of 64, padding falls from 14.6 % to 10.4 %. Each length is a
# program of its own: with a third (8.9 %) BERT-base took more than 21 GB of memory to compile.
LENGTH_SHARES = (7 / 8, 1)


class LossSettings(NamedTuple):
    """What the loss of a batch depends on, besides the network; see `configs/default.py`."""

    seed: int = 0  # of dropout
    objective: str = "cocondenser"
    mlm_weight: float = 1.0
    mlm_reduction: str = "token_mean"  # or "span_sum"
    chunk_size: int = 0  # spans; 0: all that a device has
    dtype: str = "float32"
    remat: bool = False


class StepSettings(NamedTuple):
    """What a training step depends on, besides the network and the batch."""

    loss: LossSettings
    optimizer: AdamW
    skip_nonfinite: int  # steps that the run may leave out


class TrainState(NamedTuple):
    """All that changes from step to step."""

    step: jax.Array  # int32 scalar, steps done
    params: Any
    optimizer_state: Any
    skipped: jax.Array  # int32 scalar, those of them whose loss or gradient was not finite


Metrics = dict[str, jax.Array]
Forward = Callable[[Any, Batch], tuple[np.ndarray, dict[str, float]]]


def train_step(
    model_config: ModelConfig, settings: StepSettings, state: TrainState, batch: Batch
) -> tuple[TrainState, Metrics]:
    """Makes one step on a device's part of the batch; to be mapped with the axis name `AXIS`.

    A step whose loss or gradient is not finite changes neither parameters nor optimizer. One more
    of them than `skip_nonfinite`, and nothing changes any more: the host learns of it one step
    later, and still finds the state from before the first step too many.
    """
    losses, grads = loss_and_gradient(model_config, settings.loss, state.params, state.step, batch)
    gradient_norm = optax.global_norm(grads)
    finite = jnp.isfinite(losses["loss"]) & jnp.isfinite(gradient_norm)
    skipped = state.skipped + (~finite).astype(jnp.int32)
    halted = skipped > settings.skip_nonfinite
    updates, optimizer_state = make_optimizer(settings.optimizer).update(
        grads, state.optimizer_state, state.params
    )
    params, optimizer_state = jax.tree.map(
        lambda new, old: jnp.where(finite & ~halted, new, old),
        (optax.apply_updates(state.params, updates), optimizer_state),
        (state.params, state.optimizer_state),
    )
    metrics = {
        **losses,
        "learning_rate": learning_rate_schedule(settings.optimizer)(state.step - state.skipped),
        "gradient_norm": gradient_norm,
        "skipped": skipped,
    }
    step = state.step + (~halted).astype(jnp.int32)
    return TrainState(step, params, optimizer_state, skipped), metrics


def loss_and_gradient(
    model_config: ModelConfig, settings: LossSettings, params: Any, step: jax.Array, batch: Batch
) -> tuple[Metrics, Any]:
    """Returns the losses of the whole batch and their gradient, the same on every device.

    L = mlm_weight * L_mlm + L_co, or what the objective has of the two. L_mlm is the head's
    masked-token loss plus, with `late_mlm`, the backbone's, averaged over all masked tokens of the
    global batch (`token_mean`), or summed within a span and averaged over spans as in equations 5
    and 7 of arXiv 2108.05540 (`span_sum`). L_co is the mean of the objective's contrastive loss.

    To be mapped with the axis name `AXIS` over devices, each with its part of the batch. The step
    seeds the dropout.
    """
    objective = OBJECTIVES[settings.objective]
    model = Condenser(model_config, jnp.dtype(settings.dtype), settings.remat)
    n_local = batch.input_ids_SxL.shape[0]
    n_spans = n_local * jax.lax.axis_size(AXIS)
    n_masked = jnp.maximum(jax.lax.psum(jnp.sum(batch.weights_SxM), AXIS), 1.0)
    per_token = settings.mlm_reduction == "token_mean"
    mlm_scale = settings.mlm_weight / (n_masked if per_token else n_spans)

    def forward(params: Any, chunk: tuple) -> tuple[jax.Array, jax.Array, Sums]:
        if not objective.predicts_tokens:
            return encode(params, chunk), jnp.zeros(()), {}
        batch, seeds_B = chunk
        inputs = batch.input_ids_SxL, batch.attention_mask_SxL, batch.masked_positions_SxM
        output = cast(CondenserOutput, model.apply({"params": params}, *inputs, seeds_B))
        sums = _mlm_sums(output, batch)
        return output.cls_BxD, mlm_scale * sum(sums.values()), sums

    def encode(params: Any, chunk: tuple) -> jax.Array:
        batch, seeds_B = chunk
        inputs = batch.input_ids_SxL, batch.attention_mask_SxL, seeds_B
        return cast(jax.Array, model.apply({"params": params}, *inputs, method=model.encode))

    def contrast(in_order_SxD: jax.Array) -> jax.Array:
        assert objective.contrast is not None
        n_contrasted = n_spans // 2 * objective.n_contrasted
        return objective.contrast(in_order_SxD[place_S], AXIS) / n_contrasted

    seeds_S = None
    if model_config.hidden_dropout_prob > 0 or model_config.attention_probs_dropout_prob > 0:
        # A function of seed, step and the span's global index only.
        spans_S = jax.lax.axis_index(AXIS) * n_local + jnp.arange(n_local)
        seeds_S = fold_in(fold_in(jnp.uint32(settings.seed), step), spans_S)
    # Neighbours in length share a chunk, so that chunks of short spans can be computed short.
    order_S = jnp.argsort(jnp.sum(batch.attention_mask_SxL, axis=1), stable=True)
    place_S = jnp.argsort(order_S)
    in_order = jax.tree.map(lambda x: x[order_S], (batch, seeds_S))
    contrastive_loss, sums, grads = loss_gradient(
        params,
        _split(in_order, n_local // (settings.chunk_size or n_local)),
        forward=forward,
        encode=encode,
        contrast=contrast if objective.contrast else None,
        on_chunk=_at_shortest_length,
    )
    # Every device holds its own share of sums over the global batch: add them once.
    contrastive_loss, sums, grads = jax.lax.psum((contrastive_loss, sums, grads), AXIS)
    losses = {
        "loss": mlm_scale * sum(sums.values()) + contrastive_loss,
        # Per masked token, whatever the reduction, so that runs can be compared.
        **{f"{name}_loss": total / n_masked for name, total in sums.items()},
    }
    if objective.contrast:
        losses["contrastive_loss"] = contrastive_loss
    return losses, grads


def _mlm_sums(output: CondenserOutput, batch: Any) -> Sums:
    """Returns the sum of the loss of each MLM that the model has."""
    logits = {"head_mlm": output.head_logits_BxMxV, "late_mlm": output.late_logits_BxMxV}
    return {
        name: masked_lm_sum(logits_BxMxV, batch.labels_SxM, batch.weights_SxM)
        for name, logits_BxMxV in logits.items()
        if logits_BxMxV is not None
    }


def mapped_step(
    model_config: ModelConfig, settings: StepSettings, devices: list[jax.Device] | None = None
) -> Callable[[TrainState, Batch], tuple[TrainState, Metrics]]:
    """Returns the step over devices: all of them, or those given.

    It takes the state that `place` or an earlier step gave, and this host's part of the batch. The
    state is donated: the one passed in must not be used again. Nothing waits for the devices until
    a value of what it returns is read.
    """
    step = functools.partial(train_step, model_config, settings)
    mapped = _pmap(step, devices, donate_argnums=0)
    n_devices = len(devices) if devices else jax.local_device_count()
    return lambda state, batch: mapped(state, _split(batch, n_devices))


def mapped_forward(model_config: ModelConfig, dtype: str, n_rows: int) -> Forward:
    """Returns the forward pass without dropout over all devices of all hosts.

    It takes the parameters of a state that `place` or a step gave and a batch of any size, the same
    on every host, of which a device computes `n_rows` at a time. Every host gets `cls_SxD`, zero
    where not finite, and the sums of the MLM losses.
    """
    model = Condenser(model_config, dtype=jnp.dtype(dtype))

    def on_chunk(params: Any, batch: Batch) -> tuple[jax.Array, Sums]:
        output = cast(CondenserOutput, model.apply({"params": params}, *batch[:3]))
        return output.cls_BxD, _mlm_sums(output, batch)

    def on_device(params: Any, batch: Batch) -> tuple[jax.Array, Sums]:
        chunks = _split(batch, len(batch.input_ids_SxL) // n_rows)
        cls_CxBxD, sums_C = jax.lax.map(functools.partial(on_chunk, params), chunks)
        cls_SxD = cls_CxBxD.reshape(-1, model_config.hidden_size)
        sums = jax.lax.psum(jax.tree.map(jnp.sum, sums_C), AXIS)
        return jax.lax.all_gather(cls_SxD, AXIS, tiled=True), sums

    mapped = _pmap(on_device, None)

    def forward(params: Any, batch: Batch) -> tuple[np.ndarray, dict[str, float]]:
        n_spans, n_devices = len(batch.input_ids_SxL), jax.local_device_count()
        n_local = math.ceil(n_spans / (n_rows * jax.device_count())) * n_rows * n_devices
        rows_S = jax.process_index() * n_local + np.arange(n_local)
        # The last row stands in for those that are too many, and counts once.
        part = Batch(*(x[np.minimum(rows_S, n_spans - 1)] for x in batch))
        part = part._replace(weights_SxM=part.weights_SxM * (rows_S < n_spans)[:, None])
        cls_SxD, sums = jax.device_get(mapped(params, _split(part, n_devices)))
        return np.nan_to_num(cls_SxD[:n_spans], posinf=0.0, neginf=0.0), sums

    return forward


def place(state: TrainState, devices: list[jax.Device] | None = None) -> TrainState:
    """Gives every device a copy of the state, laid out as the step lays out its result.

    Without it the second step would be compiled again.
    """
    n_devices = len(devices) if devices else jax.local_device_count()
    return cast(TrainState, _pmap(lambda state, _: state, devices)(state, np.zeros(n_devices)))


def compile_step(
    model_config: ModelConfig, settings: StepSettings, spec: BatchSpec, devices: list[jax.Device]
) -> jax.stages.Compiled:
    """Compiles the step that `mapped_step` runs, for devices that need not be here."""
    shape: Any = jax.ShapeDtypeStruct
    spans = len(devices), spec.n_rows // len(devices)
    tokens, slots = (*spans, spec.length), (*spans, mask_capacity(spec.length))
    dtypes = (jnp.int32, jnp.bool_, jnp.int32, jnp.int32, jnp.float32)
    shapes = zip((tokens, tokens, slots, slots, slots), dtypes, strict=True)
    batch = Batch(*(shape(*each) for each in shapes))
    state = state_shapes(model_config, settings.optimizer)
    step = functools.partial(train_step, model_config, settings)
    return _pmap(step, devices, donate_argnums=0).lower(state, batch).compile()


def batch_gradient(
    model_config: ModelConfig, settings: LossSettings, params: Any, batch: Batch
) -> tuple[Metrics, Any]:
    """Returns the losses of a batch and their gradient at step 0, computed on one device."""
    gradient = _mapped_gradient(model_config, settings)
    return cast(tuple[Metrics, Any], gradient(params, _split(batch, 1)))


@functools.lru_cache(maxsize=8)  # else every call would be compiled anew
def _mapped_gradient(model_config: ModelConfig, settings: LossSettings) -> Any:
    gradient = functools.partial(loss_and_gradient, model_config, settings, step=jnp.int32(0))
    return _pmap(lambda params, batch: gradient(params, batch=batch), jax.local_devices()[:1])


def check_batch(spec: BatchSpec, chunk_size: int, max_length: int, n_devices: int) -> None:
    """Raises a UserError where batch, chunk, devices and model do not fit each other."""
    if spec.batch_size % n_devices:
        raise UserError(
            f"config.data.batch_size {spec.batch_size} is not a multiple of {n_devices} devices"
        )
    n_spans = spec.n_rows // n_devices
    if chunk_size and n_spans % chunk_size:
        raise UserError(
            f"config.train.chunk_size {chunk_size} does not divide the {n_spans} spans of a device"
            f" ({spec.n_rows} spans / {n_devices} devices)"
        )
    if spec.length > max_length:
        raise UserError(
            f"config.data.length {spec.length} is longer than the model's {max_length} positions"
        )


def initial_state(params: Any, optimizer: AdamW) -> TrainState:
    """Returns the state before the first step."""
    params = jax.tree.map(jnp.asarray, params)
    optimizer_state = jax.jit(make_optimizer(optimizer).init)(params)
    return TrainState(jnp.int32(0), params, optimizer_state, jnp.int32(0))


def state_shapes(model_config: ModelConfig, optimizer: AdamW) -> TrainState:
    """Returns a state of shapes and dtypes, without arrays."""
    state = jax.eval_shape(lambda: initial_state(initial_params(model_config, 0), optimizer))
    return cast(TrainState, state)


def initial_params(model_config: ModelConfig, seed: int) -> Any:
    """Returns freshly drawn float32 parameters."""
    model = Condenser(model_config)
    one = jnp.zeros((1, 2), jnp.int32)
    return jax.jit(model.init)(jax.random.key(seed), one, one, one)["params"]


def _pmap(function: Callable, devices: list[jax.Device] | None, **options: Any) -> Any:
    """Maps a function of (shared values, parts of the batch) that gives shared values."""
    return jax.pmap(function, AXIS, in_axes=(None, 0), out_axes=None, devices=devices, **options)


def _split(tree: Any, n_parts: int) -> Any:
    """Cuts every array into equal parts along a new leading axis: of devices, or of chunks."""
    return jax.tree.map(lambda x: x.reshape(n_parts, len(x) // n_parts, *x.shape[1:]), tree)


def chunk_lengths(batch: Batch, n_devices: int, n_chunks: int) -> np.ndarray:
    """Returns the number of columns that each chunk of a batch on all devices is computed with."""

    def length(chunk: tuple) -> jax.Array:
        return jnp.int32(chunk[0].input_ids_SxL.shape[1])

    tokens_S = np.sum(batch.attention_mask_SxL, axis=1)
    devices_S = np.arange(len(tokens_S)) * n_devices // len(tokens_S)
    in_order = jax.tree.map(lambda x: x[np.lexsort((tokens_S, devices_S))], batch)
    chunks = _split(in_order, n_chunks), None
    return np.asarray(jax.lax.map(functools.partial(_at_shortest_length, length), chunks))


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
        sizes = (length, length, n_slots, n_slots, n_slots)
        return function((Batch(*(x[:, :n] for x, n in zip(batch, sizes, strict=True))), seeds_B))

    longest = jnp.max(jnp.sum(batch.attention_mask_SxL, axis=1))
    most_masked = jnp.max(jnp.sum(batch.weights_SxM > 0, axis=1))
    fits = (longest <= jnp.array(lengths)) & (most_masked <= jnp.array(slots))
    branches = [functools.partial(cut, *sizes) for sizes in zip(lengths, slots, strict=True)]
    return jax.lax.switch(jnp.argmax(fits), branches, chunk)
