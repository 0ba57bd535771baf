"""The machines that `plan` compiles for; none has to be present.

libtpu compiles for TPUs that you do not have, and JAX's CUDA plugin for GPUs that are described to
it. Neither needs a driver or the device.
"""

import importlib.util
import os
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies

from cocondenser_jax.errors import UserError, first_line
from cocondenser_jax.plan.names import CHIPS, EXPECTED, MACHINES, require_machine
from cocondenser_jax.pretrain.devices import prepare_libtpu
from cocondenser_jax.pretrain.limits import CARDS, TPUS, Card, DeviceLimits

# Keeps libtpu from asking the network which machine this is, and from claiming its TPU.
LIBTPU_ALONE = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v3-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
}

# Without a GPU, kernels cannot be autotuned: matrix products are cuBLAS calls, because Triton's
# would need tile sizes that XLA finds by timing.
_GPU_OPTIONS = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}
_GPU_MEMORY_FRACTION = 0.75  # JAX's default fraction of a GPU's memory
# Fields of every card's description that affect neither memory nor speed.
_GPU_LIBRARIES = {
    "driver_version": "13.0.0",
    "runtime_version": "13.0.0",
    "compile_time_toolkit_version": "13.0.0",
    "dnn_version": "9.12.0",
}


class Machine(NamedTuple):
    """A machine with several devices, for which a program can be compiled."""

    devices: list[Any]  # of JAX
    limits: DeviceLimits  # of a device
    gpu_memory: float | None  # GiB of a GPU that a program may use; None for TPUs
    options: dict[str, Any]  # of the compiler


def prepare_to_plan() -> None:
    """Lets this process compile for absent devices, and leaves present ones alone.

    Call it in a process that only plans, before anything uses the devices.
    """
    prepare_libtpu()
    jax.config.update("jax_platforms", "cpu")
    for name, value in LIBTPU_ALONE.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # otherwise XLA reports that there is no GPU


def find_machine(name: str) -> Machine:
    """Returns a machine by its name.

    Call `prepare_to_plan` first.

    Args:
      name: for TPUs, a machine such as `v3-8`, or libtpu's name of a slice, such as `v3:4x4`; for
        GPUs, the card and the number of GPUs, such as `h100-8`.
    """
    require_machine(name)
    card, _, number = name.rpartition("-")
    if card not in CARDS:
        return _find_tpus(name)
    return _find_gpus(CARDS[card], int(number))


def _find_tpus(name: str) -> Machine:
    layout = MACHINES.get(name, name)
    generation = layout.partition(":")[0]
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(
            "planning for a TPU needs libtpu, which compiles without having one:"
            " pip install -c constraints.txt -e '.[tpu]'"
        )
    chip_config = "megacore" if generation == "v4" else "default"  # both cores are one device
    options: dict[str, Any] = {"chip_config_name": chip_config}
    # Otherwise libtpu would split the eight chips of v5e-8 and v6e-8 between two hosts.
    if name in MACHINES:
        chips = [int(size) for size in f"{CHIPS[generation]}x1".split("x")]
        options["chips_per_host_bounds"] = chips[:3]
    try:
        description = topologies.get_topology_desc(platform="tpu", topology_name=layout, **options)
    except jax.errors.JaxRuntimeError as error:
        reason = first_line(error).partition(": ")[2]
        raise UserError(f"unknown topology {name!r} ({reason}): {EXPECTED}") from error
    return Machine(list(description.devices), TPUS[generation], gpu_memory=None, options={})


def _find_gpus(card: Card, n_devices: int) -> Machine:
    if importlib.util.find_spec("jax_plugins") is None or not any(
        importlib.util.find_spec(f"jax_plugins.xla_cuda{version}") for version in (13, 12)
    ):
        raise no_compiler("JAX's plugin for CUDA")
    description = topologies.get_topology_desc(
        card.kind,
        "cuda",
        target_config=describe_to_xla(card),
        topology=f"1x1x{n_devices}",  # of one machine
    )
    memory = card.limits.memory * _memory_fraction()
    return Machine(list(description.devices), card.limits, gpu_memory=memory, options=_GPU_OPTIONS)


def no_compiler(missing: str) -> UserError:
    """Returns the error for a missing part of the GPU compiler."""
    return UserError(
        f"planning for a GPU needs {missing}, but neither a GPU nor its driver:"
        " pip install -c constraints.txt -e '.[plan-gpu]'"
    )


def _memory_fraction() -> float:
    """Returns the fraction of a GPU's memory that JAX takes, set as JAX reads it."""
    for name in ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"):
        if given := os.environ.get(name):
            try:
                fraction = float(given)
            except ValueError:
                fraction = 0.0
            if not 0 < fraction <= 1:
                raise UserError(f"{name} is {given!r}: expected a number above 0 and up to 1")
            return fraction
    return _GPU_MEMORY_FRACTION


def describe_to_xla(card: Card) -> str:
    """Returns a card as XLA's GpuTargetConfigProto, in the text format of protocol buffers."""
    kib, gib = 2**10, 2**30
    architecture = card.architecture
    facts = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "threads_per_core_limit": architecture.threads,
        "thread_dim_limit_x": 1024,
        "thread_dim_limit_y": 1024,
        "thread_dim_limit_z": 64,
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 2**16 - 1,
        "block_dim_limit_z": 2**16 - 1,
        "shared_memory_per_block": 48 * kib,
        "shared_memory_per_block_optin": (architecture.shared_memory - 1) * kib,
        "shared_memory_per_core": architecture.shared_memory * kib,
        "registers_per_block_limit": 2**16,
        "registers_per_core_limit": 2**16,
        "core_count": card.multiprocessors,
        "fpus_per_core": architecture.float32_units,
        "clock_rate_ghz": card.clock,
        "memory_bandwidth": int(card.limits.bandwidth * 1e9),
        "device_memory_size": int(card.limits.memory * gib),
        "l2_cache_size": card.cache * kib**2,
    }
    capability = f"{{ major: {architecture.major} minor: {architecture.minor} }}"
    return "\n".join(
        [
            "gpu_device_info {",
            *(f"  {name}: {value}" for name, value in facts.items()),
            f"  cuda_compute_capability {capability}",
            *(f'  {name}: "{version}"' for name, version in _GPU_LIBRARIES.items()),
            "}",
            'platform_name: "CUDA"',
            f'device_description_str: "{card.kind}"',
        ]
    )
