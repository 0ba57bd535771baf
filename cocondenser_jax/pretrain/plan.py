"""Estimates what a training step needs on a TPU, without having one.

libtpu compiles for TPUs that are not there. The step compiled here is the one that training runs,
so its memory is as the compiler says. Time is not measured: the roofline is the least that
arithmetic, memory and network allow. benchmarks/cycles.py prints what devices exchange in the
compiled program, and the compiler's own estimate of time.
"""

import importlib.util
import logging
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from ml_collections import ConfigDict

from cocondenser_jax.backbones import BACKBONES
from cocondenser_jax.corpus.batches import BatchSpec
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.errors import UserError, first_line, lookup
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model.flops import encode_flops
from cocondenser_jax.pretrain.accelerators import TPUS, DeviceLimits, model_flops
from cocondenser_jax.pretrain.devices import compile_step, prepare_libtpu
from cocondenser_jax.pretrain.experiment import Experiment, resolve, resolve_without_store
from cocondenser_jax.pretrain.objectives import OBJECTIVES
from cocondenser_jax.pretrain.step import LossSettings, StepSettings, check_batch, state_shapes

logger = logging.getLogger(__name__)

GIB = 2**30
WHOLE_RUN = "roofline, whole run (hours)"


# Machines by the names they are rented under, and their chips, which have one host.
_CHIPS = {"v2": "2x2", "v3": "2x2", "v4": "2x2x1", "v5e": "2x4", "v5p": "2x2x1", "v6e": "2x4"}
MACHINES = {f"{name}-8": f"{name}:{chips}" for name, chips in _CHIPS.items()}

# Keeps libtpu from asking the network which machine this is, and from claiming its TPU.
LIBTPU_ALONE = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v3-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


def prepare_to_plan() -> None:
    """Lets this process compile for TPUs that are not here, and leaves one that is here alone.

    For a process that only plans, before anything uses the devices.
    """
    prepare_libtpu()
    jax.config.update("jax_platforms", "cpu")
    for name, value in LIBTPU_ALONE.items():
        os.environ.setdefault(name, value)


def plan(config: ConfigDict, topology: str) -> dict[str, Any]:
    """Compiles the training step of an experiment for a TPU and says what it needs.

    Call `prepare_to_plan` before.

    Args:
      config: the experiment. The whole run is estimated if it names its store, or its steps.
      topology: a machine such as `v3-8`, or a slice as libtpu names it, such as `v3:4x4`.

    Returns:
      {quantity: value}: whether it fits, memory per core in GiB by kind, floating-point operations,
      and the roofline of a step and of the whole run. Where it does not fit, only what is known
      without a compiled program.
    """
    experiment = resolve_to_plan(config)
    model_config = ModelConfig(**experiment.network)
    return plan_step(model_config, experiment.step, experiment.batches, topology)


def resolve_to_plan(config: ConfigDict) -> Experiment:
    """Resolves an experiment, which may name no store: then with a published vocabulary."""
    if config.data.store:
        return resolve(config, open_store(Path(config.data.store)))
    vocabulary = lookup(BACKBONES, config.model.model_type, "backbone").published_vocabulary
    return resolve_without_store(config, config.train.steps, vocabulary.size, vocabulary.pad_id)


def plan_step(
    model_config: ModelConfig, settings: StepSettings, spec: BatchSpec, topology: str
) -> dict[str, Any]:
    """Returns the plan of a step, see `plan`."""
    limits, devices = find_topology(topology)
    check_batch(spec, settings.loss.chunk_size, model_config.max_length, len(devices))
    n_spans = spec.n_rows // len(devices)
    logger.info(
        "compiling for %d x %s (BERT-base takes minutes) ...", len(devices), devices[0].device_kind
    )
    state = state_shapes(model_config, settings.optimizer)
    work = step_work(model_config, settings.loss, spec, n_spans, _bytes(state.params) // 4)
    facts = {
        "topology": topology,
        "cores": len(devices),
        "hosts": len({device.process_index for device in devices}),
        "spans per core": n_spans,
        "chunk size": settings.loss.chunk_size or n_spans,
        "model GFLOP per span": work.model_flops / 1e9,
        "computed GFLOP per span, with repetitions": work.computed_flops / 1e9,
        "model TFLOP per step": work.model_flops * n_spans * len(devices) / 1e12,
    }
    try:
        program = compile_step(model_config, settings, spec, devices)
    except jax.errors.JaxRuntimeError as error:
        _, exhausted, reason = str(error).partition("RESOURCE_EXHAUSTED: ")
        if not exhausted:
            raise
        return {"fits": f"no: {reason.splitlines()[0]}", **facts}
    seconds = roofline(limits, work, n_spans, len(devices))
    estimates = {"fits": "yes"} | facts | _memory(limits, program.memory_analysis(), state)
    for what, value in seconds.items():
        estimates[f"roofline, {what} (ms)"] = 1e3 * value
    if n_steps := settings.optimizer.n_steps:
        estimates["steps"] = n_steps
        estimates[WHOLE_RUN] = seconds["step"] * n_steps / 3600
    return estimates


class StepWork(NamedTuple):
    """What one device has to do in a step, at least."""

    model_flops: int  # floating-point operations of one span: forward pass and gradient
    computed_flops: int  # of one span, with what the gradient cache repeats
    traffic: int  # bytes of parameters, gradients and optimizer state to and from memory
    gradients: int  # bytes
    vectors: int  # bytes of those that a contrastive loss compares on all devices


def step_work(
    model_config: ModelConfig, settings: LossSettings, spec: BatchSpec, n_spans: int, n_params: int
) -> StepWork:
    """Counts the work of a step on one device, which has `n_spans`.

    Of the memory traffic only what cannot be avoided: in each chunk the parameters are read once
    for every pass and direction, and the gradient sum is read and written; AdamW reads four arrays
    and writes three.
    """
    objective = OBJECTIVES[settings.objective]
    flops = model_flops(model_config, settings, spec)
    n_chunks = n_spans // (settings.chunk_size or n_spans)
    computed = flops
    n_reads = 2
    if objective.contrast and n_chunks > 1:
        computed += encode_flops(model_config, spec.length)
        n_reads += 1
    per_chunk = n_reads * jnp.dtype(settings.dtype).itemsize + 8
    n_vectors = n_spans * objective.n_contrasted // 2
    sizes = model_config.representation.sizes or (model_config.vector_size,)
    return StepWork(
        model_flops=flops,
        computed_flops=computed,
        traffic=n_params * (n_chunks * per_chunk + 28),
        gradients=4 * n_params,
        vectors=4 * n_vectors * sum(sizes),
    )


def find_topology(name: str) -> tuple[DeviceLimits, list[Any]]:
    """Returns what a device of a machine can do, and all of its devices, which are not here.

    Call `prepare_to_plan` before.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(
            "planning needs libtpu, which compiles for TPUs without having one:"
            " pip install -c constraints.txt -e '.[tpu]'"
        )
    layout = MACHINES.get(name, name)
    generation = layout.partition(":")[0]
    expected = f"expected one of {', '.join(MACHINES)}, or a slice such as v3:4x4"
    if generation not in TPUS or ":" not in layout:
        raise UserError(f"unknown topology {name!r}: {expected}")
    chip_config = "megacore" if generation == "v4" else "default"  # both cores are one device
    options: dict[str, Any] = {"chip_config_name": chip_config}
    if name in MACHINES:  # else libtpu would give the eight chips of v5e-8 and v6e-8 two hosts
        chips = [int(size) for size in f"{_CHIPS[generation]}x1".split("x")]
        options["chips_per_host_bounds"] = chips[:3]
    try:
        description = topologies.get_topology_desc(platform="tpu", topology_name=layout, **options)
    except jax.errors.JaxRuntimeError as error:
        reason = first_line(error).partition(": ")[2]
        raise UserError(f"unknown topology {name!r} ({reason}): {expected}") from error
    return TPUS[generation], list(description.devices)


def _memory(limits: DeviceLimits, analysis: Any, state: Any) -> dict[str, float]:
    """Returns the memory of one device by kind; XLA lays out temporaries as one block."""
    parameters = _bytes(state.params)
    optimizer = _bytes(state.optimizer_state)
    arguments = analysis.argument_size_in_bytes
    temporaries = analysis.temp_size_in_bytes
    outputs = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    program = analysis.generated_code_size_in_bytes
    kinds = {
        "parameters": parameters,
        "optimizer": optimizer,
        "batch and padding of the above": arguments - parameters - optimizer,
        "gradient sum": parameters,
        "activations and temporaries": temporaries - parameters,
        "program": program,
        "in all": arguments + outputs + temporaries + program,
    }
    in_gib = {f"memory, {kind} (GiB)": size / GIB for kind, size in kinds.items()}
    return {**in_gib, "memory of a core (GiB)": float(limits.memory)}


def roofline(
    limits: DeviceLimits, work: StepWork, n_spans: int, n_devices: int
) -> dict[str, float]:
    """Returns the seconds that a step takes at least, and its three bounds.

    Arithmetic and memory overlap. The vectors are gathered, their cotangents and the gradients
    added up, in rings that overlap with nothing.
    """
    gathered = work.vectors * n_devices
    moved = (gathered + 2 * (gathered + work.gradients)) * (n_devices - 1) / n_devices
    bounds = {
        "arithmetic": work.computed_flops * n_spans / (limits.compute * 1e12),
        "memory": work.traffic / (limits.bandwidth * 1e9),
        "network": moved / (limits.network * 1e9),
    }
    return {**bounds, "step": max(bounds["arithmetic"], bounds["memory"]) + bounds["network"]}


def _bytes(tree: Any) -> int:
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))
