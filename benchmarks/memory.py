"""Device memory of the compiled step for growing batches at a constant chunk size.

Documents are counted over all eight devices. Memory is that of one device without its parameters,
optimizer and batch: activations, the gradient sum and other temporaries.

  python -m benchmarks.memory --json_out=benchmarks/results/memory.json
"""

import argparse
import os
from pathlib import Path
from typing import Any

from benchmarks.results import report
from benchmarks.step import SIZES, model_config

N_DEVICES = 8
DOCUMENTS = (256, 512, 1024, 2048, 4096)


def main() -> None:
    """Compiles the step for each batch and prints its memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="4x256")
    parser.add_argument("--chunk_size", type=int, default=32, help="default: %(default)s spans")
    parser.add_argument("--json_out", type=Path)
    arguments = parser.parse_args()
    # Must be set before JAX is imported.
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={N_DEVICES}"
    rows = [
        {
            "size": arguments.size,
            "chunk size": arguments.chunk_size,
            "documents": n_documents,
            "MiB per device": round(temporaries(arguments, n_documents) / 2**20, 1),
        }
        for n_documents in DOCUMENTS
    ]
    report(rows, arguments.json_out)


def temporaries(arguments: argparse.Namespace, n_documents: int) -> int:
    """Returns the bytes of one device that the compiled step needs, without its arguments."""
    import jax

    from cocondenser_jax.configs import default
    from cocondenser_jax.corpus.batches import BatchSpec
    from cocondenser_jax.pretrain.devices import compile_step
    from cocondenser_jax.pretrain.experiment import resolve_without_store

    config = default.get_config().unlock()
    config.train.chunk_size = arguments.chunk_size
    model = model_config(SIZES[arguments.size])
    spec = BatchSpec(seed=config.seed, batch_size=n_documents, length=config.data.length)
    settings = resolve_without_store(config, 4, model.vocab_size, model.pad_token_id).step
    analysis: Any = compile_step(model, settings, spec, jax.devices()).memory_analysis()
    return int(analysis.temp_size_in_bytes)


if __name__ == "__main__":
    main()
