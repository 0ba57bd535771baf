"""What accelerators can do at most, and the arithmetic of a span: together they give the MFU."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from cocondenser_jax.corpus.batches import BatchSpec
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model.flops import encode_flops, forward_flops
from cocondenser_jax.pretrain.objectives import OBJECTIVES
from cocondenser_jax.pretrain.step import LossSettings


class DeviceLimits(NamedTuple):
    """What one JAX device of a TPU can do at most: half a chip of v2 and v3, else a chip."""

    memory: float  # GiB of HBM
    compute: float  # bfloat16 TFLOP/s
    bandwidth: float  # GB/s from HBM
    network: float  # GB/s, all links to other chips together


# Google Cloud's TPU documentation; links of v2 and v3 from Jouppi et al., *A
# domain-specific supercomputer for training deep neural networks*, CACM 2020: four links of 496 and
# 656 Gbit/s a chip.
TPUS = {
    "v2": DeviceLimits(memory=8, compute=22.5, bandwidth=350, network=124),
    "v3": DeviceLimits(memory=16, compute=61.5, bandwidth=450, network=164),
    "v4": DeviceLimits(memory=32, compute=275, bandwidth=1228, network=300),
    "v5e": DeviceLimits(memory=16, compute=197, bandwidth=819, network=200),
    "v5p": DeviceLimits(memory=95, compute=459, bandwidth=2765, network=600),
    "v6e": DeviceLimits(memory=32, compute=918, bandwidth=1640, network=448),
}
# Those whose `device_kind` in JAX is not "TPU " and the name of the generation.
_TPU_KINDS = {"v5 lite": "v5e", "v5": "v5p", "v6 lite": "v6e"}
# bfloat16 TFLOP/s of NVIDIA's data sheets, without sparsity, by `device_kind`.
_GPU_TFLOPS = {
    "NVIDIA A100-SXM4-40GB": 312,
    "NVIDIA A100-SXM4-80GB": 312,
    "NVIDIA H100 80GB HBM3": 989,
    "NVIDIA H200": 989,
}


def peak_flops(devices: Sequence[Any], dtype: str) -> float | None:
    """Returns the floating-point operations a second of devices together, as published.

    None where they are not known, or the computation is not in bfloat16.
    """
    if dtype != "bfloat16":
        return None
    kind = devices[0].device_kind
    generation = kind.removeprefix("TPU ")
    limits = TPUS.get(_TPU_KINDS.get(generation, generation))
    tflops = limits.compute if limits else _GPU_TFLOPS.get(kind)
    return None if tflops is None else len(devices) * tflops * 1e12


def model_flops(model_config: ModelConfig, settings: LossSettings, spec: BatchSpec) -> int:
    """Returns the floating-point operations of one span: forward pass and gradient, once."""
    objective = OBJECTIVES[settings.objective]
    if not objective.predicts_tokens:
        return 3 * encode_flops(model_config, spec.length)
    # Of two copies, the backbone reads the first, and the head the second.
    return 3 * (forward_flops(model_config, spec.length, spec.n_slots) // objective.n_copies)
