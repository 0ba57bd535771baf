"""One training step of one device on its part of the batch, as pure functions.

They communicate along the axis `AXIS`; `devices.py` maps them over all devices.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Shaped, UInt32

from cocondenser_jax.corpus.batches import Batch, BatchSpec
from cocondenser_jax.declare import AUTO
from cocondenser_jax.errors import UserError, lookup
from cocondenser_jax.model.condenser import Condenser, CondenserOutput, init_params
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model.dropout import fold_in
from cocondenser_jax.model.layout import (
    Layout,
    laid_out,
    lay_out,
    round_maps,
    with_rounded,
)
from cocondenser_jax.model.vectors import cut
from cocondenser_jax.pretrain.grad_cache import Sums, loss_gradient
from cocondenser_jax.pretrain.objectives import (
    OBJECTIVES,
    Memory,
    Objective,
    bag_of_words_sum,
    masked_lm_sum,
)
from cocondenser_jax.pretrain.optimizer import AdamW, clip, learning_rate_schedule, make_optimizer

AXIS = "devices"
# Fractions of the full length: a chunk is computed at the shortest that fits all of its spans. On
# Wikipedia, with 128 tokens and chunks of 64, padding falls from 14.6 % to 10.4 %. Each length is
# compiled separately: with a third one (8.9 %), compiling BERT-base took more than 21 GB of memory.
LENGTH_FRACTIONS = (7 / 8, 1)
# The same for objectives that predict no tokens: their programs are small, and a sentence and the
# rest of its span differ in length. With pairs of sentences, MiniLM takes 0.6 of the time.
ENCODER_LENGTH_FRACTIONS = (1 / 4, 1 / 2, 3 / 4, 1)


class LossSettings(NamedTuple):
    """The settings of a batch's loss; `configs/default.py` explains them."""

    seed: int = 0  #: of dropout
    objective: str = "cocondenser"
    mlm_weight: float = 1.0
    mlm_reduction: str = "token_mean"  #: or "span_sum"
    chunk_size: Any = 0  #: spans; 0 for all that a device has; "auto" until `fit_chunks`
    kept_chunks: Any = 0  #: of a device, whose activations are kept for their gradient; likewise
    dtype: str = "float32"
    attention: str = "auto"  #: or "xla", "kernel"
    layout: Layout = Layout()  #: of the parameters; `devices.py` chooses it


class StepSettings(NamedTuple):
    """Everything that a training step depends on besides the network and the batch."""

    loss: LossSettings
    optimizer: AdamW
    skip_nonfinite: int  # non-finite steps that the run may skip


class TrainState(NamedTuple):
    """All that changes from step to step."""

    step: Int[Array, ""]  # int32 scalar, steps done
    params: Any
    optimizer_state: Any
    skipped: Int[Array, ""]  # int32 scalar, those of them whose loss or gradient was not finite
    memory: tuple[Memory, ...]  # of the contrastive loss, for each size of the vectors


Metrics = dict[str, Shaped[Array, ""]]


def train_step(
    model_config: ModelConfig, settings: StepSettings, state: TrainState, batch: Batch
) -> tuple[TrainState, Metrics]:
    """Makes one step on a device's part of the batch; to be mapped with the axis name `AXIS`.

    A step whose loss or gradient is not finite changes neither parameters, optimizer nor memory.
    After more than `skip_nonfinite` of them the state is frozen: the host finds out one step later
    and still has the state from before the step that exceeded the limit.
    """
    losses, grads, remembered = loss_and_gradient(
        model_config, settings.loss, state.params, state.memory, state.step, batch
    )
    gradient_norm = optax.global_norm(grads)
    finite = jnp.isfinite(losses["loss"]) & jnp.isfinite(gradient_norm)
    skipped = state.skipped + (~finite).astype(jnp.int32)
    halted = skipped > settings.skip_nonfinite

    def update() -> tuple[Any, Any, tuple[Memory, ...]]:
        clipped = clip(grads, gradient_norm, settings.optimizer.clip_norm)
        updates, optimizer_state = make_optimizer(settings.optimizer).update(
            clipped, state.optimizer_state, state.params
        )
        return optax.apply_updates(state.params, updates), optimizer_state, remembered

    # A branch, because XLA for CPUs would copy both moments to select element by element.
    params, optimizer_state, memory = jax.lax.cond(
        finite & ~halted, update, lambda: (state.params, state.optimizer_state, state.memory)
    )
    metrics = {
        **losses,
        "learning_rate": learning_rate_schedule(settings.optimizer)(state.step - state.skipped),
        "gradient_norm": gradient_norm,
        "skipped": skipped,
    }
    step = state.step + (~halted).astype(jnp.int32)
    state = TrainState(
        step=step,
        params=params,
        optimizer_state=optimizer_state,
        skipped=skipped,
        memory=memory,
    )
    return state, metrics


def loss_and_gradient(
    model_config: ModelConfig,
    settings: LossSettings,
    params: Any,
    memory: tuple[Memory, ...],
    step: Int[Array, ""],
    batch: Batch,
) -> tuple[Metrics, Any, tuple[Memory, ...]]:
    """Returns losses of the whole batch, gradient and new memory, the same on every device.

    L = mlm_weight * L_mlm + L_co, or only one of the two, depending on the objective. L_mlm is the
    head's masked-token loss plus, with `late_mlm`, the backbone's, each averaged over all tokens of
    the global batch that are masked for it (`token_mean`), or summed within a span and averaged
    over spans as in equations 5 and 7 of arXiv 2108.05540 (`span_sum`); with bag-of-words
    prediction also the mean of its loss over spans. L_co is the mean of the objective's contrastive
    loss, or where vectors have several sizes the sum of the means for each (Kusupati et al., arXiv
    2205.13147, equation 1 with weights of 1).

    To be mapped with the axis name `AXIS` over devices, each with its part of the batch. The step
    seeds the dropout.
    """
    objective: Objective = lookup(OBJECTIVES, settings.objective, "objective")
    layout = settings.layout
    network = laid_out(model_config, layout)
    dtype = jnp.dtype(settings.dtype)
    model = Condenser(network, dtype, layout.attention, objective.predicts_words)
    n_local = batch.input_ids_SxL.shape[0]
    n_spans = n_local * jax.lax.axis_size(AXIS)
    # The number of predictions of each loss: masked tokens, or spans.
    n_predicted = _count_masked(objective, batch) | {"bag_of_words": n_spans}
    # The divisor of each loss's sum.
    reductions = {
        "token_mean": n_predicted,
        "span_sum": dict.fromkeys(n_predicted, n_spans // objective.n_copies),
    }
    counts = lookup(reductions, settings.mlm_reduction, "mlm_reduction")

    def weigh(sums: Sums) -> Float[Array, ""]:
        means = [total / counts[name] for name, total in sums.items()]
        return settings.mlm_weight * sum(means, jnp.zeros(()))

    # Spans of similar length share a chunk, so that chunks of short spans can be computed at a
    # shorter length. The copies of a span have the same length and stay together.
    order_S = jnp.argsort(jnp.sum(batch.attention_mask_SxL, axis=1), stable=True)
    place_S = jnp.argsort(order_S)

    def contrast(
        in_order_SxD: Float[Array, "S D"],
    ) -> tuple[Float[Array, ""], tuple[Memory, ...]]:
        origins_Sx2 = jnp.asarray(batch.origins_Sx2)
        return _contrast(model_config, objective, memory, in_order_SxD[place_S], origins_Sx2)

    seeds_S = _dropout_seeds(model_config, settings.seed, step, n_local)
    in_order = jax.tree.map(lambda x: x[order_S], (batch, seeds_S))
    fractions = _fractions(objective)
    laid, pull_back = jax.vjp(functools.partial(lay_out, model_config, layout), params)
    forward = _make_forward(objective, model, weigh)
    encode: Callable[[Any, Any], Any] = functools.partial(_encode, model)
    if layout.rounds_once:
        rounded = round_maps(laid, settings.dtype)
        forward, encode = _reading(forward, rounded), _reading(encode, rounded)
    contrastive_loss, remembered, sums, grads = loss_gradient(
        laid,
        split_rows(in_order, n_local // (settings.chunk_size or n_local)),
        forward=forward,
        encode=encode,
        contrast=contrast if objective.contrast else None,
        on_chunk=functools.partial(at_shortest_length, fractions=fractions),
        n_kept=settings.kept_chunks,
    )
    (grads,) = pull_back(grads)
    # Every device holds its own terms of sums over the global batch: sum them once. For a single
    # device, XLA would copy them.
    if jax.lax.axis_size(AXIS) > 1:
        contrastive_loss, sums, grads = jax.lax.psum((contrastive_loss, sums, grads), AXIS)
    losses = {
        "loss": weigh(sums) + contrastive_loss,
        # Always per masked token or span, so that runs with different reductions are comparable.
        **{f"{name}_loss": total / n_predicted[name] for name, total in sums.items()},
    }
    if objective.contrast:
        losses["contrastive_loss"] = contrastive_loss
    return losses, grads, remembered


def _contrast(
    model_config: ModelConfig,
    objective: Objective,
    memory: tuple[Memory, ...],
    vectors_SxD: Float[Array, "S D"],
    origins_Sx2: Int[Array, "S 2"],
) -> tuple[Float[Array, ""], tuple[Memory, ...]]:
    """Returns L_co's terms of a device's spans, and for each size of vectors the new memory."""
    assert objective.contrast is not None
    n_spans = len(vectors_SxD) * jax.lax.axis_size(AXIS)
    n_contrasted = n_spans // 2 * objective.n_contrasted
    representation = model_config.representation
    scale = representation.score_scale
    total = jnp.zeros(())
    remembered = []
    for size, before in zip(_sizes(model_config), memory, strict=True):
        cut_SxD = cut(vectors_SxD, size, representation.similarity)
        loss, after = objective.contrast(cut_SxD, origins_Sx2, before, AXIS, scale)
        total += loss
        remembered.append(after)
    return total / n_contrasted, tuple(remembered)


def _fractions(objective: Objective) -> Sequence[float]:
    """Returns the fractions of the full length at which chunks are computed."""
    return LENGTH_FRACTIONS if objective.predicts_tokens else ENCODER_LENGTH_FRACTIONS


def chunk_lengths(settings: LossSettings, length: int) -> tuple[int, ...]:
    """Returns the lengths at which chunks may be computed; the last is the full one."""
    objective: Objective = lookup(OBJECTIVES, settings.objective, "objective")
    return tuple(math.ceil(length * fraction) for fraction in _fractions(objective))


def _sizes(model_config: ModelConfig) -> tuple[int, ...]:
    """Returns the sizes of the vectors that a contrastive loss trains."""
    return model_config.representation.sizes or (model_config.vector_size,)


def _split_copies(objective: Objective, rows: Any) -> list[Any]:
    """Returns each copy's rows: the first copy is for the backbone, the last for the head."""
    n_copies = objective.n_copies
    return [jax.tree.map(lambda x, i=i: x[i::n_copies], rows) for i in range(n_copies)]


def _count_masked(objective: Objective, batch: Batch) -> dict[str, Float[Array, ""]]:
    """Counts the masked tokens of the global batch for each MLM, at least 1."""
    copies = _split_copies(objective, batch.weights_SxM)
    n_masked_C = jnp.stack([jnp.sum(weights_SxM) for weights_SxM in copies])
    n_masked_C = jnp.maximum(jax.lax.psum(n_masked_C, AXIS), 1.0)
    return {"late_mlm": n_masked_C[0], "head_mlm": n_masked_C[-1]}


def _dropout_seeds(
    model_config: ModelConfig, seed: int, step: Int[Array, ""], n_local: int
) -> UInt32[Array, " S"] | None:
    """Returns a seed for each of a device's spans; None without dropout.

    It is a function of seed, step and the span's global index only.
    """
    if not (model_config.hidden_dropout_prob or model_config.attention_probs_dropout_prob):
        return None
    spans_S = jax.lax.axis_index(AXIS) * n_local + jnp.arange(n_local)
    return fold_in(fold_in(jnp.uint32(seed), step), spans_S)


def _reading(function: Callable[[Any, Any], Any], rounded: Any) -> Callable[[Any, Any], Any]:
    """Returns the function, reading linear maps from the parameters that were rounded before.

    XLA would not move the rounding out of the branches for the chunk lengths.
    """
    return lambda params, chunk: function(with_rounded(params, rounded), chunk)


def _encode(model: Condenser, params: Any, chunk: tuple) -> Float[Array, "B D"]:
    """Returns the vectors of a chunk, computed without head and MLM projection."""
    batch, seeds_B = chunk
    inputs = batch.input_ids_SxL, batch.attention_mask_SxL, seeds_B, batch.prompt_lengths_S
    return cast(jax.Array, model.apply({"params": params}, *inputs, method=model.encode))


def _apply(
    model: Condenser, params: Any, batch: Any, seeds_B: Any = None, decoded: Any = None
) -> CondenserOutput:
    """Returns the outputs for a chunk."""
    inputs = batch.input_ids_SxL, batch.attention_mask_SxL, batch.masked_positions_SxM
    others = seeds_B, decoded, batch.prompt_lengths_S
    return cast(CondenserOutput, model.apply({"params": params}, *inputs, *others))


def _make_forward(
    objective: Objective, model: Condenser, weigh: Callable[[Sums], Float[Array, ""]]
) -> Callable[[Any, tuple], tuple[Float[Array, "B D"], Float[Array, ""], Sums]]:
    """Returns the forward pass of a chunk: vectors, weighted MLM loss, and the sums in it."""

    def encode(params: Any, chunk: tuple) -> tuple[Float[Array, "B D"], Float[Array, ""], Sums]:
        return _encode(model, params, chunk), jnp.zeros(()), {}

    def predict(params: Any, chunk: tuple) -> tuple[Float[Array, "B D"], Float[Array, ""], Sums]:
        copies = _split_copies(objective, chunk)
        batch, seeds_B = copies[0]
        predicted, _ = copies[-1]  # by the head
        decoded = None
        if len(copies) > 1:
            decoded = predicted.input_ids_SxL, predicted.masked_positions_SxM
        output = _apply(model, params, batch, seeds_B, decoded)
        sums = _prediction_sums(output, batch, predicted)
        return output.vectors_BxD, weigh(sums), sums

    return predict if objective.predicts_tokens else encode


def _prediction_sums(output: CondenserOutput, batch: Any, predicted: Any) -> Sums:
    """Returns the sum of each loss of predicted words; the head's MLM is that of `predicted`."""
    logits = {
        "head_mlm": (output.head_logits_BxMxV, predicted),
        "late_mlm": (output.late_logits_BxMxV, batch),
    }
    sums = {
        name: masked_lm_sum(logits_BxMxV, rows.labels_SxM, rows.weights_SxM)
        for name, (logits_BxMxV, rows) in logits.items()
        if logits_BxMxV is not None
    }
    if output.word_logits_BxV is not None:
        sums["bag_of_words"] = bag_of_words_sum(output.word_logits_BxV, *_words(batch))
    return sums


def _words(batch: Any) -> tuple[Int[Array, "B L"], Bool[Array, "B L"]]:
    """Returns the tokens of spans before they were masked, and which are of their texts.

    Those are neither special tokens nor of a prompt.
    """
    masked_BxL = batch.input_ids_SxL
    rows_Bx1 = jnp.arange(len(masked_BxL))[:, None]
    positions_BxM = batch.masked_positions_SxM
    # An unused slot points to a position that keeps its token.
    labels_BxM = jnp.where(
        batch.weights_SxM > 0, batch.labels_SxM, masked_BxL[rows_Bx1, positions_BxM]
    )
    ids_BxL = masked_BxL.at[rows_Bx1, positions_BxM].set(labels_BxM)
    numbers_1xL = jnp.arange(masked_BxL.shape[1])[None]
    first_Bx1 = jnp.maximum(batch.prompt_lengths_S, 1)[:, None]
    last_Bx1 = jnp.sum(batch.attention_mask_SxL, axis=1, keepdims=True) - 1  # [SEP]
    return ids_BxL, (first_Bx1 <= numbers_1xL) & (numbers_1xL < last_Bx1)


def forward_sums(
    model_config: ModelConfig, dtype: str, n_rows: int, params: Any, batch: Batch
) -> tuple[Float[Array, "S D"], Sums]:
    """Returns `vectors_SxD` of all devices and the sums of the MLM losses, without dropout.

    To be mapped with the axis name `AXIS`; a device computes `n_rows` of its spans at a time.
    """
    model = Condenser(model_config, dtype=jnp.dtype(dtype))

    def on_chunk(batch: Batch) -> tuple[Float[Array, "B D"], Sums]:
        output = _apply(model, params, batch)
        return output.vectors_BxD, _prediction_sums(output, batch, batch)

    chunks = split_rows(batch, len(batch.input_ids_SxL) // n_rows)
    vectors_CxBxD, sums_C = jax.lax.map(on_chunk, chunks)
    vectors_SxD = vectors_CxBxD.reshape(-1, model_config.vector_size)
    sums = jax.lax.psum(jax.tree.map(jnp.sum, sums_C), AXIS)
    return jax.lax.all_gather(vectors_SxD, AXIS, tiled=True), sums


def check_batch(
    spec: BatchSpec, chunk_size: Any, max_length: int, n_devices: int, kept_chunks: Any
) -> None:
    """Raises a UserError if batch, chunks, devices and model do not fit together."""
    if spec.batch_size % n_devices:
        raise UserError(
            f"config.data.batch_size {spec.batch_size} is not a multiple of {n_devices} devices"
        )
    n_spans = spec.n_rows // n_devices
    if chunk_size == AUTO:
        if kept_chunks not in (0, AUTO):
            raise UserError(
                f"config.train.kept_chunks is {kept_chunks}, but config.train.chunk_size is auto:"
                " expected auto for both, or the spans of a chunk"
            )
        chunk_size = kept_chunks = 0  # `fit_chunks` chooses what fits
    if chunk_size and n_spans % chunk_size:
        raise UserError(
            f"config.train.chunk_size {chunk_size} does not divide the {n_spans} spans of a device"
            f" ({spec.n_rows} spans / {n_devices} devices)"
        )
    if chunk_size % spec.kind.n_copies:
        raise UserError(
            f"config.train.chunk_size {chunk_size} is odd, but each span has two rows (retromae)"
        )
    n_chunks = n_spans // (chunk_size or n_spans)
    if kept_chunks != AUTO and kept_chunks > n_chunks:
        raise UserError(
            f"config.train.kept_chunks is {kept_chunks}, but a device has {n_chunks} chunks"
        )
    if spec.length > max_length:
        raise UserError(
            f"config.data.length {spec.length} is longer than the {max_length} tokens that the"
            " model reads of a text"
        )


def new_memory(model_config: ModelConfig, settings: LossSettings) -> tuple[Memory, ...]:
    """Returns the memory of the contrastive loss before the first step."""
    objective: Objective = lookup(OBJECTIVES, settings.objective, "objective")
    sizes = _sizes(model_config) if objective.contrast else ()
    return tuple(objective.new_memory(size) for size in sizes)


def initial_state(params: Any, optimizer: AdamW, memory: tuple[Memory, ...]) -> TrainState:
    """Returns the state before the first step, with what `new_memory` gives."""
    params = jax.tree.map(jnp.asarray, params)
    optimizer_state = jax.jit(make_optimizer(optimizer).init)(params)
    return TrainState(
        step=jnp.int32(0),
        params=params,
        optimizer_state=optimizer_state,
        skipped=jnp.int32(0),
        memory=memory,
    )


def state_shapes(model_config: ModelConfig, settings: StepSettings) -> TrainState:
    """Returns a state that holds shapes and dtypes instead of arrays."""

    def state() -> TrainState:
        memory = new_memory(model_config, settings.loss)
        return initial_state(init_params(model_config, 0), settings.optimizer, memory)

    return cast(TrainState, jax.eval_shape(state))


def split_rows(tree: Any, n_parts: int) -> Any:
    """Splits every array into equal parts along a new leading axis: devices, or chunks."""
    return jax.tree.map(lambda x: x.reshape(n_parts, len(x) // n_parts, *x.shape[1:]), tree)


def at_shortest_length(
    function: Callable[[tuple], Any], chunk: tuple, *, fractions: Sequence[float]
) -> Any:
    """Calls a function on a chunk without the columns that are padding in all of its spans.

    XLA needs static shapes, so there is one program for each of a few lengths and numbers of slots
    for masked tokens. Each device chooses for itself, so the function must not communicate.
    """
    batch, _ = chunk
    full_length = batch.input_ids_SxL.shape[1]
    full_slots = batch.weights_SxM.shape[1]
    lengths = [math.ceil(full_length * fraction) for fraction in fractions]
    slots = [math.floor(full_slots * fraction) for fraction in fractions]

    def cut(length: int, n_slots: int, chunk: tuple) -> Any:
        batch, seeds_B = chunk
        return function((batch.cut(length, n_slots), seeds_B))

    longest = jnp.max(jnp.sum(batch.attention_mask_SxL, axis=1))
    most_masked = jnp.max(jnp.sum(batch.weights_SxM > 0, axis=1))
    fits = (longest <= jnp.array(lengths)) & (most_masked <= jnp.array(slots))
    branches = [functools.partial(cut, *sizes) for sizes in zip(lengths, slots, strict=True)]
    return jax.lax.switch(jnp.argmax(fits), branches, chunk)
