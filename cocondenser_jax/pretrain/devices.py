"""The devices: the only module that knows that there are several, and how to map a step over them.

Every mapped function takes and returns the host's whole batch and a single state. That each device
holds a part of the batch and a copy of the state is not visible outside.
"""

import dataclasses
import functools
import logging
import math
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from cocondenser_jax.corpus.batches import Batch, BatchSpec
from cocondenser_jax.errors import UserError, log_once, whole_message
from cocondenser_jax.model.condenser import Condenser
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model.layout import Layout, lay_out, why_no_kernel
from cocondenser_jax.pretrain.fitting import Needed, fit_chunks
from cocondenser_jax.pretrain.kernel_check import kernel_fault
from cocondenser_jax.pretrain.step import (
    AXIS,
    LossSettings,
    Metrics,
    StepSettings,
    TrainState,
    chunk_lengths,
    forward_sums,
    loss_and_gradient,
    new_memory,
    split_rows,
    state_shapes,
    train_step,
)

logger = logging.getLogger(__name__)

Forward = Callable[[Any, Batch], tuple[np.ndarray, dict[str, float]]]
Encode = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
Tree = TypeVar("Tree")  # of arrays

# libtpu 0.0.42 compiles nested matrix products on a stack of 64 KiB, which BERT-base's step
# overflows on v4 and v6e.
_LIBTPU_STACK = f"--fibers_default_thread_stack_size={2**20}"


def prepare_libtpu() -> None:
    """Gives libtpu a stack on which it can compile a training step.

    Call it in a process that trains or plans before anything uses the devices: libtpu reads
    `LIBTPU_INIT_ARGS` when it is loaded. The user's own flags come last and take precedence.
    """
    flags = os.environ.get("LIBTPU_INIT_ARGS", "")
    if _LIBTPU_STACK not in flags:
        os.environ["LIBTPU_INIT_ARGS"] = f"{_LIBTPU_STACK} {flags}".strip()


def require_devices() -> None:
    """Raises a UserError if JAX finds no devices of the requested platform.

    On several hosts, call it only after they are connected.
    """
    try:
        jax.devices()
    except (AssertionError, RuntimeError) as error:  # of a misspelled platform; without text: cuda
        platforms = os.environ.get("JAX_PLATFORMS", "")
        reason = whole_message(error) if str(error) else "its plugin is not installed"
        raise UserError(
            f"JAX_PLATFORMS={platforms}: {reason}; expected a platform of this machine, such"
            " as cpu, or nothing"
        ) from error


def all_devices() -> list[jax.Device]:
    """Returns the devices of all hosts."""
    return jax.devices()


def count_devices() -> int:
    """Counts the devices of all hosts."""
    return jax.device_count()


def choose_layout(
    model_config: ModelConfig, settings: LossSettings, length: int, devices: Sequence[Any]
) -> Layout:
    """Returns how devices have the parameters in a step on spans of up to `length` tokens.

    A CPU has them as a checkpoint does.

    Raises:
      UserError: if the settings require an attention kernel and there is none.
    """
    platform = {"cuda": "gpu"}.get(devices[0].platform, devices[0].platform)
    reason = why_no_kernel(model_config, platform if _has_kernels(devices[0]) else "", length)
    if settings.attention == "kernel" and reason:
        raise UserError(f"config.train.attention is 'kernel': {reason}; expected auto or xla")
    return Layout(
        attention="xla" if reason or settings.attention == "xla" else platform,
        # cuBLAS is slow at an odd number of columns.
        vocabulary=64 if platform == "gpu" else 1,
        rounds_once=platform != "cpu" and settings.dtype != "float32",
    )


def settle_attention(
    model_config: ModelConfig, settings: LossSettings, lengths: tuple[int, ...]
) -> tuple[LossSettings, str]:
    """Returns settings whose attention is `kernel` or `xla`, and a kernel's fault, "" for none.

    If the devices have kernels, each is compared with XLA on one device, on spans of each length.
    With `auto`, XLA is used if a kernel is faulty. Must not be called while JAX traces.

    Raises:
      UserError: if the settings require an attention kernel and it is faulty.
    """
    devices = jax.local_devices()
    platform = choose_layout(model_config, settings, max(lengths), devices).attention
    if platform == "xla":
        return settings._replace(attention="xla"), ""
    fault = kernel_fault(model_config, settings.dtype, platform, lengths)
    if not fault:
        return settings._replace(attention="kernel"), ""
    fault = f"on {devices[0].device_kind} the kernel of {fault}"
    if settings.attention == "kernel":
        raise UserError(f"config.train.attention is 'kernel': {fault}; expected auto or xla")
    log_once(logger, f"{fault}: using XLA instead")
    return settings._replace(attention="xla"), fault


def _has_kernels(device: Any) -> bool:
    """Whether Triton or Mosaic compiles our kernels for a device, in bfloat16 too."""
    if device.device_kind.startswith("NVIDIA"):
        return tuple(map(int, device.compute_capability.split("."))) >= (8, 0)  # since Ampere
    return device.platform == "tpu" and device.device_kind not in ("TPU v2", "TPU v3")


def _in_layout(
    model_config: ModelConfig, settings: LossSettings, batch: Batch, devices: Sequence[Any] | None
) -> LossSettings:
    length = batch.input_ids_SxL.shape[-1]
    chosen = choose_layout(model_config, settings, length, devices or jax.local_devices())
    return settings._replace(layout=chosen)


def _step(
    model_config: ModelConfig, settings: StepSettings, devices: Sequence[Any] | None
) -> Callable[[TrainState, Batch], tuple[TrainState, Metrics]]:
    """Returns a device's step, with the parameters in the layout of the devices."""

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        loss = _in_layout(model_config, settings.loss, batch, devices)
        return train_step(model_config, settings._replace(loss=loss), state, batch)

    return step


def mapped_step(
    model_config: ModelConfig, settings: StepSettings, devices: list[jax.Device] | None = None
) -> Callable[[TrainState, Batch], tuple[TrainState, Metrics]]:
    """Returns the step over devices: all of them, or those given.

    It takes the state that `replicate` or an earlier step returned, and this host's part of the
    batch. The state is donated: do not use it again. Nothing waits for the devices until a returned
    value is read.
    """
    mapped = _pmap(_step(model_config, settings, devices), devices, donate=True)
    n_devices = len(devices) if devices else jax.local_device_count()

    def run(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        # Only the batch is copied from the host to the devices.
        with jax.transfer_guard_host_to_device("allow"):
            return cast(tuple[TrainState, Metrics], mapped(state, split_rows(batch, n_devices)))

    return run


def mapped_forward(model_config: ModelConfig, dtype: str, n_rows: int) -> Forward:
    """Returns the forward pass without dropout over all devices of all hosts.

    It takes the parameters of a state that `replicate` or a step returned, and a batch of any size,
    the same on every host; a device computes `n_rows` of it at a time. Every host gets
    `vectors_SxD`, zero where not finite, and the sums of the MLM losses.
    """
    mapped = _pmap(functools.partial(forward_sums, model_config, dtype, n_rows))

    def forward(params: Any, batch: Batch) -> tuple[np.ndarray, dict[str, float]]:
        n_spans = len(batch.input_ids_SxL)
        n_devices = jax.local_device_count()
        n_local = math.ceil(n_spans / (n_rows * count_devices())) * n_rows * n_devices
        rows_S = jax.process_index() * n_local + np.arange(n_local)
        # Surplus rows repeat the last one, which counts once.
        part = Batch(*(x[np.minimum(rows_S, n_spans - 1)] for x in batch))
        part = part._replace(weights_SxM=part.weights_SxM * (rows_S < n_spans)[:, None])
        with jax.transfer_guard_host_to_device("allow"):
            vectors_SxD, sums = jax.device_get(mapped(params, split_rows(part, n_devices)))
        return np.nan_to_num(vectors_SxD[:n_spans], posinf=0.0, neginf=0.0), sums

    return forward


def mapped_encode(model_config: ModelConfig, params: Any, dtype: str, batch_size: int) -> Encode:
    """Returns the network's `encode` over the devices of this host.

    It takes token ids and attention mask, both BxL, and `prompt_lengths_B`, as `Batch` has them, of
    `batch_size` texts at most, and returns their float32 `vectors_BxD`. Each length L is compiled
    once.
    """
    devices = jax.local_devices()
    n_rows = math.ceil(batch_size / len(devices)) * len(devices)
    still = dataclasses.replace(model_config, attention_probs_dropout_prob=0.0)
    params = replicate(params, devices)

    def encode(
        ids_BxL: np.ndarray, mask_BxL: np.ndarray, prompt_lengths_B: np.ndarray
    ) -> np.ndarray:
        n_texts = len(ids_BxL)
        # Missing texts are filled with the last one.
        rows_S = np.minimum(np.arange(n_rows), n_texts - 1)
        texts = ids_BxL[rows_S], mask_BxL[rows_S], prompt_lengths_B[rows_S]
        inputs = split_rows(texts, len(devices))
        # Otherwise accelerators round the operands of float32 products to 16 bits or so, and a
        # kernel would be tried with other products than those of the run.
        with jax.default_matmul_precision("highest" if dtype == "float32" else None):
            settings, _ = settle_attention(still, LossSettings(dtype=dtype), (ids_BxL.shape[1],))
            mapped = _mapped_encoder(still, settings)
            vectors_SxD = np.asarray(mapped(params, inputs)).reshape(n_rows, -1)
        return vectors_SxD[:n_texts]

    return encode


@functools.lru_cache(maxsize=8)  # else both towers of a shape would be compiled
def _mapped_encoder(model_config: ModelConfig, settings: LossSettings) -> Any:
    devices = jax.local_devices()

    def encode_rows(params: Any, texts: tuple[jax.Array, jax.Array, jax.Array]) -> Any:
        ids_BxL, mask_BxL, prompt_lengths_B = texts
        inputs = ids_BxL, mask_BxL, None, prompt_lengths_B
        layout = choose_layout(model_config, settings, ids_BxL.shape[1], devices)
        layout = layout._replace(vocabulary=1)  # no tokens are predicted
        network = Condenser(model_config, jnp.dtype(settings.dtype), layout.attention)
        laid = lay_out(model_config, layout, params)
        return network.apply({"params": laid}, *inputs, method="encode")

    return _pmap(encode_rows, devices, out_axes=0)


def replicate(state: Tree, devices: list[jax.Device] | None = None) -> Tree:
    """Copies the arrays to every device, laid out like the result of a step.

    Otherwise the second step would be compiled again. A single device takes over the arrays, so do
    not use the arguments again.
    """
    n_devices = len(devices) if devices else jax.local_device_count()
    is_alone = n_devices == 1 and jax.process_count() == 1
    mapped = _pmap(lambda state, _: state, devices, donate=is_alone)
    return cast(Tree, mapped(state, np.zeros(n_devices)))


def compile_step(
    model_config: ModelConfig,
    settings: StepSettings,
    spec: BatchSpec,
    devices: list[jax.Device],
    options: dict[str, Any] | None = None,
) -> jax.stages.Compiled:
    """Compiles the step that `mapped_step` runs, for devices that need not be here.

    The options are XLA's.
    """
    zeros = Batch.zeros(spec.n_rows, spec.length, spec.n_slots)
    batch = jax.eval_shape(functools.partial(split_rows, n_parts=len(devices)), zeros)
    state = state_shapes(model_config, settings)
    step = _step(model_config, settings, devices)
    return _pmap(step, devices, donate=True).lower(state, batch).compile(options)


def needed_memory(program: jax.stages.Compiled, state: TrainState) -> Needed:
    """Returns the memory of a compiled step on one device; XLA allocates temporaries as one block.

    The temporaries hold the gradient sum, as large as the parameters, and the activations.
    """
    analysis: Any = program.memory_analysis()
    activations = analysis.temp_size_in_bytes - tree_bytes(state.params)
    outputs = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    others = analysis.argument_size_in_bytes + outputs + analysis.generated_code_size_in_bytes
    return Needed(activations, others + tree_bytes(state.params))


def tree_bytes(tree: Any) -> int:
    """Returns the size in bytes of arrays, or of shapes of arrays."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def choose_chunks(
    model_config: ModelConfig, settings: StepSettings, spec: BatchSpec
) -> StepSettings:
    """Returns settings in which `auto` chunks are replaced by ones that fit the devices."""
    devices = all_devices()
    statistics = jax.local_devices()[0].memory_stats() or {}  # a CPU has none

    def measure(loss: LossSettings) -> Needed:
        tried = settings._replace(loss=loss)
        program = compile_step(model_config, tried, spec, devices)
        return needed_memory(program, state_shapes(model_config, tried))

    available = statistics.get("bytes_limit")
    n_spans = spec.n_rows // len(devices)
    return settings._replace(loss=fit_chunks(settings.loss, spec, n_spans, available, measure))


def batch_gradient(
    model_config: ModelConfig, settings: LossSettings, params: Any, batch: Batch
) -> tuple[Metrics, Any]:
    """Returns the losses of a batch and their gradient at step 0, computed on one device.

    Raises:
      UserError: if the batch does not fit the model or the chunks. JAX would read past the end of
        the embeddings, as NaN.
    """
    n_spans, length = batch.input_ids_SxL.shape
    if settings.chunk_size < 0 or n_spans % (settings.chunk_size or n_spans):
        raise UserError(f"chunk_size {settings.chunk_size} does not divide {n_spans} spans")
    if length > model_config.max_length:
        raise UserError(
            f"the batch has spans of {length} tokens; the model reads {model_config.max_length}"
        )
    if (highest := int(batch.input_ids_SxL.max())) >= model_config.vocab_size:
        raise UserError(
            f"the batch has a token {highest}, but vocab_size is {model_config.vocab_size}"
        )
    settings, _ = settle_attention(model_config, settings, chunk_lengths(settings, length))
    gradient = _mapped_gradient(model_config, settings)
    return cast(tuple[Metrics, Any], gradient(params, split_rows(batch, 1)))


@functools.lru_cache(maxsize=8)  # else every call would be compiled anew
def _mapped_gradient(model_config: ModelConfig, settings: LossSettings) -> Any:
    memory = new_memory(model_config, settings)

    def gradient(params: Any, batch: Batch) -> tuple[Metrics, Any]:
        step = jnp.int32(0)
        chosen = _in_layout(model_config, settings, batch, None)
        return loss_and_gradient(model_config, chosen, params, memory, step, batch)[:2]

    return _pmap(gradient, jax.local_devices()[:1])


def _pmap(
    function: Callable,
    devices: list[jax.Device] | None = None,
    *,
    out_axes: int | None = None,
    donate: bool = False,
) -> Any:
    """Maps a function of (shared values, parts of the batch) over devices, all or those given.

    The function returns shared values, or with `out_axes=0` its part of the rows. With `donate`, do
    not use the shared arguments again.
    """
    return jax.pmap(
        function,
        AXIS,
        in_axes=(None, 0),
        out_axes=out_axes,
        devices=devices,
        donate_argnums=0 if donate else (),
    )
