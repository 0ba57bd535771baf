"""Time of a training step on a GPU by part of the network, from a trace of its kernels.

  python -m benchmarks.kernels --json_out=benchmarks/results/kernels.json

BERT-base's stage 2, without dropout, in bfloat16. CUDA graphs are off, so that each kernel keeps
its name, which makes the step a few percent slower. A row has the milliseconds per step of matrix
products and of all other kernels.
"""

import argparse
import glob
import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.results import report
from benchmarks.step import Size, alone, ready_step, write_model

# Patterns for JAX's name of a kernel's place in the program; the first match counts.
PARTS = {
    "feed-forward": r"_feed_forward",
    "attention, linear maps": r"_attend(_jointly)?/(query|key|value|output|bld,de->ble)",
    "attention, scores and weights": r"_attend",
    "MLM": r"/mlm/",
    "layer norms, residuals, embeddings": r"norm|embeddings",
}
REST = "gradient sums, losses, optimizer, kernels without a place"
PRODUCT = re.compile(r"nvjet|gemm|cutlass|xmma|cublas|splitK")
N_STEPS = 2  # traced


class Kernel(NamedTuple):
    """All executions of a kernel for one instruction of the program."""

    instruction: str
    name: str  # of the kernel
    seconds: float  # a step


def main() -> None:
    """Traces some steps and prints a row for each part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=512, help="default: %(default)s")
    parser.add_argument("--chunk_size", type=int, default=128, help="default: %(default)s")
    parser.add_argument("--json_out", type=Path)
    arguments = parser.parse_args()
    size = Size(12, 768, arguments.documents, arguments.chunk_size)
    with tempfile.TemporaryDirectory() as dump:
        os.environ["XLA_FLAGS"] = (
            f"--xla_gpu_enable_command_buffer= --xla_dump_to={dump} --xla_dump_hlo_as_text"
        )
        kernels = alone(trace, size)
        texts = Path(dump).glob("*after_optimizations.txt")
        program = max(texts, key=lambda path: path.stat().st_size).read_text(encoding="utf-8")
    report(by_part(kernels, program), arguments.json_out)


def trace(size: Size) -> list[Kernel]:
    """Returns the kernels of a step on the first GPU."""
    import jax
    from jax.profiler import ProfileData

    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), size)
        step, state, batch = ready_step(Path(folder), size, "bfloat16", jax.local_devices()[:1])
        state, metrics = step(state, batch)
        float(metrics["loss"])
        with jax.profiler.trace(f"{folder}/trace"):
            for _ in range(N_STEPS):
                state, metrics = step(state, batch)
            float(metrics["loss"])
        (file,) = glob.glob(f"{folder}/trace/**/*.xplane.pb", recursive=True)
        planes = ProfileData.from_file(file).planes
        return [
            Kernel(
                str(dict(event.stats).get("hlo_op")), event.name, event.duration_ns / 1e9 / N_STEPS
            )
            for plane in planes
            if "GPU" in plane.name
            for line in plane.lines
            if "Compute" in line.name
            for event in line.events
        ]


def by_part(kernels: Iterable[Kernel], program: str) -> list[dict[str, Any]]:
    """Returns a row for each part of the network, from the kernels and the compiled text."""
    places = dict(re.findall(r'%?(\S+) = .*op_name="([^"]*)"', program))
    seconds: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for kernel in kernels:
        place = places.get(kernel.instruction, "")
        part = next((name for name, found in PARTS.items() if re.search(found, place)), REST)
        seconds[part][not PRODUCT.search(kernel.name)] += kernel.seconds
    whole = sum(map(sum, seconds.values()))
    return [
        {
            "part": part,
            "products, ms": 1e3 * seconds[part][0],
            "others, ms": 1e3 * seconds[part][1],
            "share": sum(seconds[part]) / whole,
        }
        for part in [*PARTS, REST]
    ]


if __name__ == "__main__":
    main()
