"""Estimates what a training step needs on a TPU or a GPU, without having one.

The step is compiled for a machine that you do not have (`machines.py`). It is the step that
training runs, so its memory is what the compiler reports. Time is not measured: the roofline is the
minimum that arithmetic, memory and network allow. For TPUs, benchmarks/cycles.py prints what
devices exchange and the compiler's own estimate of time; for GPUs, benchmarks/launches.py prints
the launches.
"""

import logging
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from cocondenser_jax.backbones import BACKBONES
from cocondenser_jax.corpus.batches import BatchSpec
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.errors import lookup
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model.flops import encode_flops
from cocondenser_jax.plan.compiled import collectives, find_launches, n_launches
from cocondenser_jax.plan.machines import Machine, find_machine, no_compiler
from cocondenser_jax.pretrain.accelerators import model_flops
from cocondenser_jax.pretrain.devices import (
    choose_layout,
    compile_step,
    needed_memory,
    tree_bytes,
)
from cocondenser_jax.pretrain.experiment import (
    Experiment,
    resolve,
    resolve_without_store,
)
from cocondenser_jax.pretrain.fitting import chunk_sizes, fit_chunks, with_numbers
from cocondenser_jax.pretrain.limits import DeviceLimits
from cocondenser_jax.pretrain.objectives import OBJECTIVES
from cocondenser_jax.pretrain.step import (
    LossSettings,
    StepSettings,
    TrainState,
    check_batch,
    state_shapes,
)
from cocondenser_jax.pretrain.warm_start import planned_network

logger = logging.getLogger(__name__)

GIB = 2**30
WHOLE_RUN = "roofline, whole run (hours)"


def plan(config: ConfigDict, topology: str) -> dict[str, Any]:
    """Compiles the training step of an experiment for a machine and says what it needs.

    Call `prepare_to_plan` before.

    Args:
      config: the experiment. The whole run is estimated if it names a store or a number of steps.
      topology: the name of a machine, such as `v3-8`, `v3:4x4` or `h100-8`.

    Returns:
      {quantity: value}: whether it fits, memory per device in GiB by kind, floating-point
      operations, and the roofline of a step and of the whole run; for GPUs also launches,
      exchanges, and the largest chunk. If a step does not fit a TPU, only what is known without a
      compiled program.
    """
    experiment = resolve_to_plan(config)
    model_config = planned_network(experiment)
    return plan_step(model_config, experiment.step, experiment.batches, topology)


def resolve_to_plan(config: ConfigDict) -> Experiment:
    """Resolves an experiment; one without a store gets a published vocabulary."""
    if config.data.store:
        return resolve(config, open_store(Path(config.data.store)))
    vocabulary = lookup(BACKBONES, config.model.model_type, "backbone").published_vocabulary
    return resolve_without_store(config, config.train.steps, vocabulary.size, vocabulary.pad_id)


def plan_step(
    model_config: ModelConfig, settings: StepSettings, spec: BatchSpec, topology: str
) -> dict[str, Any]:
    """Returns the plan of a step, see `plan`."""
    machine = find_machine(topology)
    devices = machine.devices
    tried, n_spans = settings.loss, spec.n_rows // len(devices)
    longest = model_config.longest_text
    check_batch(spec, tried.chunk_size, longest, len(devices), tried.kept_chunks)
    layout = choose_layout(model_config, tried, spec.length, devices)
    logger.info(
        "compiling for %d x %s (BERT-base takes minutes) ...", len(devices), devices[0].device_kind
    )
    state = state_shapes(model_config, settings)
    loss, program, problem = _compile_fitting(model_config, settings, spec, machine, state)
    work = step_work(model_config, loss, spec, n_spans, tree_bytes(state.params) // 4)
    facts: dict[str, Any] = {
        "topology": topology,
        "network": _network(model_config),
        "devices": len(devices),
        "hosts": len({device.process_index for device in devices}),
        "spans per device": n_spans,
        **_passes(loss, n_spans),
        "attention": layout.attention,
        "model GFLOP per span": work.model_flops / 1e9,
        "computed GFLOP per span, with repetitions": work.computed_flops / 1e9,
        "model TFLOP per step": work.model_flops * n_spans * len(devices) / 1e12,
    }
    if program is None:
        return {"fits": f"no: {problem}", **facts}
    memory = _memory(program.memory_analysis(), state)
    fits = "yes"
    on_gpu: dict[str, float] = {}
    if machine.gpu_memory is not None:
        fits, largest = fit_gpu(machine.gpu_memory, memory, spec, n_spans, facts["chunk size"])
        on_gpu = {
            "memory that JAX takes of it (GiB)": machine.gpu_memory,
            "largest chunk size, by proportion": largest,
            **count_launches(program.as_text() or ""),
        }
    return {
        "fits": fits,
        **facts,
        **{f"memory, {kind} (GiB)": size / GIB for kind, size in memory.items()},
        "memory of a device (GiB)": float(machine.limits.memory),
        **on_gpu,
        **_times(roofline(machine.limits, work, n_spans, len(devices)), settings.optimizer.n_steps),
    }


def _compile_fitting(
    model_config: ModelConfig,
    settings: StepSettings,
    spec: BatchSpec,
    machine: Machine,
    state: TrainState,
) -> tuple[LossSettings, jax.stages.Compiled | None, str]:
    """Compiles a step with chunks that fit the machine.

    Returns:
      The settings with these chunks, the program, and "". If no program fits: small chunks, None,
      and the compiler's reason.
    """

    def compiled(loss: LossSettings) -> jax.stages.Compiled:
        tried = settings._replace(loss=loss)
        return compile_step(model_config, tried, spec, machine.devices, machine.options)

    n_spans = spec.n_rows // len(machine.devices)
    available = GIB * (machine.gpu_memory or machine.limits.memory)
    try:
        loss = fit_chunks(
            settings.loss,
            spec,
            n_spans,
            available,
            lambda loss: needed_memory(compiled(loss), state),
        )
        return loss, compiled(loss), ""
    except jax.errors.JaxRuntimeError as error:
        if "version of ptxas" in str(error):
            raise no_compiler("ptxas") from error
        _, exhausted, problem = str(error).partition("RESOURCE_EXHAUSTED: ")
        if not exhausted:
            raise
        return with_numbers(settings.loss, spec, n_spans), None, problem.partition("\n")[0]


def _passes(loss: LossSettings, n_spans: int) -> dict[str, int]:
    """Returns the chunks of a device with `n_spans`, and how often it computes them."""
    chunk_size = loss.chunk_size or n_spans
    n_chunks = n_spans // chunk_size
    repeats = n_chunks > 1 and loss.kept_chunks < n_chunks
    is_twice = repeats and OBJECTIVES[loss.objective].contrast
    return {
        "chunk size": chunk_size,
        "kept chunks": loss.kept_chunks,
        "passes": 2 if is_twice else 1,
    }


def _times(seconds: dict[str, float], n_steps: int) -> dict[str, float]:
    """Returns the roofline of a step, and with a number of steps that of the whole run."""
    times = {f"roofline, {what} (ms)": 1e3 * value for what, value in seconds.items()}
    if n_steps:
        times |= {"steps": n_steps, WHOLE_RUN: seconds["step"] * n_steps / 3600}
    return times


def _network(model_config: ModelConfig) -> str:
    layers, head = model_config.num_hidden_layers, model_config.n_head_layers
    size = f"{model_config.model_type}, {layers} layers of {model_config.hidden_size}"
    return f"{size}, and {head} of a head" if head else size


def fit_gpu(
    available: float, memory: dict[str, float], spec: BatchSpec, n_spans: int, chunk_size: int
) -> tuple[str, int]:
    """Returns whether a step fits a GPU, and roughly the largest chunk that fits; 0 for none.

    XLA compiles programs for a GPU even if they do not fit. Activations grow slightly less than the
    chunk, so the estimate from one size is, if anything, too small for larger ones.

    Args:
      available: GiB.
      memory: bytes by kind, of a step.
      spec: of its batch.
      n_spans: of a device.
      chunk_size: of the step.
    """
    needed = memory["in all"] / GIB
    fits = "yes"
    if needed > available:
        fits = f"no: {needed:.2f} GiB, and JAX takes {available:.2f} (XLA_CLIENT_MEM_FRACTION)"
    activations = memory["activations and temporaries"]
    room = available * GIB - (memory["in all"] - activations)
    sizes = chunk_sizes(spec, n_spans)
    fitting = [size for size in sizes if activations * size / chunk_size <= room]
    return fits, max(fitting, default=0)


def count_launches(compiled_text: str) -> dict[str, float]:
    """Returns a step's launches and communication on GPUs, from its compiled text."""
    launches = find_launches(compiled_text)
    exchanges = collectives(compiled_text)
    counts: dict[str, float] = {"launches per step": n_launches(launches.step)}
    for i, chunk in enumerate(launches.chunks):
        which = f", pass {i + 1}" if len(launches.chunks) > 1 else ""
        counts[f"launches per chunk{which}"] = n_launches(chunk)
    return {
        **counts,
        "collectives per step": len(exchanges),
        "collectives (MB)": sum(each.n_bytes for each in exchanges) / 1e6,
    }


class StepWork(NamedTuple):
    """The minimum work of one device in a step."""

    model_flops: int  # floating-point operations of one span: forward pass and gradient
    computed_flops: int  # of one span, including what the gradient cache repeats
    traffic: int  # bytes of parameters, gradients and optimizer state to and from memory
    gradients: int  # bytes
    vectors: int  # bytes of the vectors that a contrastive loss compares across devices


def step_work(
    model_config: ModelConfig, settings: LossSettings, spec: BatchSpec, n_spans: int, n_params: int
) -> StepWork:
    """Counts the work of a step on one device, which has `n_spans`.

    Counts only unavoidable memory traffic: each chunk reads the parameters once for every pass and
    direction, and reads and writes the gradient sum (kept chunks together do so once); AdamW reads
    four arrays and writes three.
    """
    objective = OBJECTIVES[settings.objective]
    flops = model_flops(model_config, settings, spec)
    n_chunks = n_spans // (settings.chunk_size or n_spans)
    computed = flops
    number = jnp.dtype(settings.dtype).itemsize
    once, twice = 2 * number + 8, 3 * number + 8  # bytes of a parameter, for a chunk
    traffic = n_chunks * once
    if objective.contrast and n_chunks > 1:
        n_twice = n_chunks - min(settings.kept_chunks, n_chunks)
        computed += encode_flops(model_config, spec.length) * n_twice // n_chunks
        traffic = n_twice * twice + (once if settings.kept_chunks else 0)
    n_vectors = n_spans * objective.n_contrasted // 2
    sizes = model_config.representation.sizes or (model_config.vector_size,)
    return StepWork(
        model_flops=flops,
        computed_flops=computed,
        traffic=n_params * (traffic + 28),
        gradients=4 * n_params,
        vectors=4 * n_vectors * sum(sizes),
    )


def _memory(analysis: Any, state: Any) -> dict[str, float]:
    """Returns the bytes of one device by kind; XLA lays out temporaries as one block."""
    parameters = tree_bytes(state.params)
    optimizer = tree_bytes(state.optimizer_state)
    arguments = analysis.argument_size_in_bytes
    temporaries = analysis.temp_size_in_bytes
    outputs = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    program = analysis.generated_code_size_in_bytes
    return {
        "parameters": parameters,
        "optimizer": optimizer,
        "batch and padding of the above": arguments - parameters - optimizer,
        "gradient sum": parameters,
        "activations and temporaries": temporaries - parameters,
        "program": program,
        "in all": arguments + outputs + temporaries + program,
    }


def roofline(
    limits: DeviceLimits, work: StepWork, n_spans: int, n_devices: int
) -> dict[str, float]:
    """Returns the minimum seconds of a step, and its three bounds.

    Arithmetic and memory overlap. Gathering the vectors and summing their cotangents and the
    gradients use rings that overlap with nothing.
    """
    gathered = work.vectors * n_devices
    moved = (gathered + 2 * (gathered + work.gradients)) * (n_devices - 1) / n_devices
    bounds = {
        "arithmetic": work.computed_flops * n_spans / (limits.compute * 1e12),
        "memory": work.traffic / (limits.bandwidth * 1e9),
        "network": moved / (limits.network * 1e9),
    }
    return {**bounds, "step": max(bounds["arithmetic"], bounds["memory"]) + bounds["network"]}
