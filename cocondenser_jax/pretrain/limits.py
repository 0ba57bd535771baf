"""Properties and peak rates of accelerators, without JAX: names are checked before it loads."""

from typing import NamedTuple


class DeviceLimits(NamedTuple):
    """Peak rates of one JAX device: a GPU, a TPU chip, or half a chip for v2 and v3."""

    memory: float  # GiB
    compute: float  # bfloat16 TFLOP/s
    bandwidth: float  # GB/s from its memory
    network: float  # GB/s; of a TPU, all links to other chips together; of a GPU, one direction


# Google Cloud's TPU documentation; links of v2 and v3 from Jouppi et al., *A domain-specific
# supercomputer for training deep neural networks*, CACM 2020: four links of 496 and 656 Gbit/s a
# chip.
TPUS = {
    "v2": DeviceLimits(memory=8, compute=22.5, bandwidth=350, network=124),
    "v3": DeviceLimits(memory=16, compute=61.5, bandwidth=450, network=164),
    "v4": DeviceLimits(memory=32, compute=275, bandwidth=1228, network=300),
    "v5e": DeviceLimits(memory=16, compute=197, bandwidth=819, network=200),
    "v5p": DeviceLimits(memory=95, compute=459, bandwidth=2765, network=600),
    "v6e": DeviceLimits(memory=32, compute=918, bandwidth=1640, network=448),
}
# Generations whose `device_kind` in JAX is not "TPU " followed by their name, by what follows it.
TPU_KINDS = {"v5 lite": "v5e", "v5": "v5p", "v6 lite": "v6e"}


class Architecture(NamedTuple):
    """Properties per multiprocessor that GPUs of one compute capability share."""

    major: int
    minor: int
    threads: int  # resident at a time
    float32_units: int
    shared_memory: int  # KiB, of which one is reserved per block


class Card(NamedTuple):
    """A GPU."""

    kind: str  # its `device_kind` in JAX
    architecture: Architecture
    multiprocessors: int
    clock: float  # GHz, maximum
    cache: int  # MiB of L2 cache
    limits: DeviceLimits


AMPERE = Architecture(major=8, minor=0, threads=2048, float32_units=64, shared_memory=164)
ADA = Architecture(major=8, minor=9, threads=1536, float32_units=128, shared_memory=100)
HOPPER = Architecture(major=9, minor=0, threads=2048, float32_units=128, shared_memory=228)

# Multiprocessors, rates and bandwidths are those of NVIDIA's data sheets of the H100 SXM, H200 SXM,
# A100 SXM and L4, and of its white papers on the architectures Hopper, Ampere and Ada (clocks,
# caches, RTX 4090); the architectures are those of "Technical Specifications per Compute
# Capability" in the CUDA C++ programming guide. Rates sum in float32, without sparsity. Memory is
# what CUDA reports, rounded down: a few percent less than the data sheets have.
# NVLink, or PCI Express 4.0 with 16 lanes; both in one direction.
_NVLINK_4, _NVLINK_3, _PCIE_4 = 450, 300, 32

CARDS = {
    "h100": Card(
        kind="NVIDIA H100 80GB HBM3",
        architecture=HOPPER,
        multiprocessors=132,
        clock=1.98,
        cache=50,
        limits=DeviceLimits(memory=79.1, compute=989, bandwidth=3350, network=_NVLINK_4),
    ),
    "h200": Card(
        kind="NVIDIA H200",
        architecture=HOPPER,
        multiprocessors=132,
        clock=1.98,
        cache=50,
        limits=DeviceLimits(memory=139.7, compute=989, bandwidth=4800, network=_NVLINK_4),
    ),
    "a100-80gb": Card(
        kind="NVIDIA A100-SXM4-80GB",
        architecture=AMPERE,
        multiprocessors=108,
        clock=1.41,
        cache=40,
        limits=DeviceLimits(memory=79.2, compute=312, bandwidth=2039, network=_NVLINK_3),
    ),
    "a100-40gb": Card(
        kind="NVIDIA A100-SXM4-40GB",
        architecture=AMPERE,
        multiprocessors=108,
        clock=1.41,
        cache=40,
        limits=DeviceLimits(memory=39.3, compute=312, bandwidth=1555, network=_NVLINK_3),
    ),
    "l4": Card(
        kind="NVIDIA L4",
        architecture=ADA,
        multiprocessors=58,
        clock=2.04,
        cache=48,
        limits=DeviceLimits(memory=21.9, compute=121, bandwidth=300, network=_PCIE_4),
    ),
    "rtx4090": Card(
        kind="NVIDIA GeForce RTX 4090",
        architecture=ADA,
        multiprocessors=128,
        clock=2.52,
        cache=72,
        limits=DeviceLimits(memory=23.6, compute=165, bandwidth=1008, network=_PCIE_4),
    ),
}
