"""The machines that `plan` compiles for, none of which has to be here.

libtpu compiles for TPUs that you do not have, and JAX's plugin for CUDA for GPUs that it is told
about: neither needs a driver or the device.
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

# Where no GPU is, none can be asked for the fastest kernels: matrix products are cuBLAS calls.
# Triton's own would need tile sizes, which XLA finds by trying.
_GPU_OPTIONS = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}
_GPU_MEMORY_FRACTION = 0.75  # JAX's default, of what a GPU has
# What a card is told to have beside its own facts; no memory or speed depends on it.
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
    gpu_memory: float | None  # GiB that a program may take of a GPU; None for TPUs
    options: dict[str, Any]  # of the compiler


def prepare_to_plan() -> None:
    """Lets this process compile for devices that are not here, and leaves those that are alone.

    For a process that only plans, before anything uses the devices.
    """
    prepare_libtpu()
    jax.config.update("jax_platforms", "cpu")
    for name, value in LIBTPU_ALONE.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # else XLA says that there is no GPU


def find_machine(name: str) -> Machine:
    """Returns a machine by its name.

    Call `prepare_to_plan` before.

    Args:
      name: of TPUs, a machine such as `v3-8`, or a slice as libtpu names it, such as `v3:4x4`; of
        GPUs a card and their number, such as `h100-8`.
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
    if name in MACHINES:  # else libtpu would give the eight chips of v5e-8 and v6e-8 two hosts
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
    """Returns the error where something is missing that a GPU's program is compiled with."""
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
