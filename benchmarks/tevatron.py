"""Compares our contrastive step with Tevatron's training step, on the same weights and texts.

  taskset -c 0 python -m benchmarks.tevatron --json_out=benchmarks/results/tevatron.json

Tevatron (Gao et al., arXiv 2203.05765; https://github.com/texttron/tevatron, dd06310 of July 2026)
fine-tunes a retriever, so neither side predicts masked tokens. Its `GradCacheTrainer` is
reimplemented here in plain PyTorch: the encoder and its [CLS] vector, a gradient cache that repeats
the random state of each chunk, the cross-entropy of queries with the passages of the batch,
clipping and a fused AdamW. Queries are the first spans of pairs, passages the second.

The losses differ, since ours has queries and passages as negatives of both. Therefore our loss is
also computed from Tevatron's vectors; if it differs from our step's, nothing is timed. The sides
alternate in one process; times are CPU seconds of the median step, independent of other load.
"""

import argparse
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModel, logging

from benchmarks.results import report
from benchmarks.step import SIZES, Size, adamw, device_name, ready_step, write_model
from checks.reference import contrastive_loss
from cocondenser_jax.corpus.batches import Batch

TOLERANCE = 1e-5

Chunk = Mapping[str, torch.Tensor]


def main() -> None:
    """Measures all sizes and prints them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default=",".join(SIZES), help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=7, help="timed on each side")
    parser.add_argument("--json_out", type=Path)
    arguments = parser.parse_args()
    logging.set_verbosity_error()  # a pooler of random weights, which nothing reads
    torch.set_num_threads(len(os.sched_getaffinity(0)))  # as many as XLA uses
    rows = (compare(name, SIZES[name], arguments.steps) for name in arguments.sizes.split(","))
    report(rows, arguments.json_out)


def compare(name: str, size: Size, n_steps: int) -> dict[str, Any]:
    """Times both sides; raises if their vectors give different losses."""
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), size)
        ours = our_step(Path(folder), size)
        model = AutoModel.from_pretrained(folder, attn_implementation="sdpa")
        columns = [[*_chunks(Path(folder), first, size.chunk_size)] for first in (0, 1)]
    loss = ours()
    expected = our_loss(model, columns)
    if not math.isclose(loss, expected, rel_tol=TOLERANCE):
        raise SystemExit(f"{name}: the losses differ: {loss} and {expected}")
    optimizer = adamw(model, fused=True)

    def theirs() -> float:
        value = cached_gradient(model, columns)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return value

    theirs()
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    for turn in range(n_steps):
        sides = [("ours", ours), ("theirs", theirs)]
        for side, step in sides if turn % 2 else sides[::-1]:
            start = time.process_time()
            step()
            seconds[side].append(time.process_time() - start)
    medians = {side: statistics.median(of) for side, of in seconds.items()}
    return {
        "size": name,
        "pairs": size.documents,
        "chunk size": size.chunk_size,
        "device": device_name(),
        "cores used": len(os.sched_getaffinity(0)),
        "loss": loss,
        "seconds a step": medians["ours"],
        "seconds a step, Tevatron": medians["theirs"],
        "times Tevatron": round(medians["theirs"] / medians["ours"], 2),
    }


def our_step(folder: Path, size: Size) -> Callable[[], float]:
    """Returns a function that does a step of our contrastive loss and returns the loss."""
    import jax

    devices = jax.local_devices()[:1]
    step, state, batch = ready_step(folder, size, "float32", devices, "contrastive")

    def train_step() -> float:
        nonlocal state
        state, metrics = step(state, batch)
        jax.block_until_ready(state)
        return float(metrics["loss"])

    return train_step


def _chunks(folder: Path, first: int, chunk_size: int) -> Iterator[Chunk]:
    """Yields the chunks of every other text."""
    batch = Batch(**np.load(folder / "batch.npz"))
    ids = torch.from_numpy(batch.input_ids_SxL[first::2]).long()
    mask = torch.from_numpy(batch.attention_mask_SxL[first::2]).long()
    for ids_BxL, mask_BxL in zip(ids.split(chunk_size), mask.split(chunk_size), strict=True):
        yield {"input_ids": ids_BxL, "attention_mask": mask_BxL}


def encode(model: Any, chunk: Chunk) -> torch.Tensor:
    """Returns the [CLS] vectors of texts, B x D."""
    vectors_BxD: torch.Tensor = model(**chunk).last_hidden_state[:, 0]
    return vectors_BxD


def our_loss(model: Any, columns: Sequence[Sequence[Chunk]]) -> float:
    """Returns our step's loss for the vectors of a transformers model."""
    with torch.no_grad():
        first, second = (torch.cat([encode(model, chunk) for chunk in each]) for each in columns)
    return contrastive_loss(torch.stack([first, second], dim=1).flatten(0, 1)).item()


def cached_gradient(model: Any, columns: Sequence[Sequence[Chunk]]) -> float:
    """Adds the gradient of the loss to the model's with a gradient cache; returns the loss.

    Args:
      model: an encoder of transformers.
      columns: chunks of the queries, and of their passages.
    """
    states: list[torch.Tensor] = []
    cached = []
    for chunks in columns:
        vectors = []
        for chunk in chunks:
            states.append(torch.get_rng_state())
            with torch.no_grad():
                vectors.append(encode(model, chunk))
        cached.append(torch.cat(vectors).requires_grad_())
    loss = pair_loss(*cached)
    gradients = torch.autograd.grad(loss, cached)
    left = iter(states)
    for chunks, gradient_NxD in zip(columns, gradients, strict=True):
        size = len(chunks[0]["input_ids"])
        for chunk, gradient_BxD in zip(chunks, gradient_NxD.split(size), strict=True):
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(next(left))
                vectors_BxD = encode(model, chunk)
            (vectors_BxD * gradient_BxD).sum().backward()
    return loss.item()


def pair_loss(queries_NxD: torch.Tensor, passages_NxD: torch.Tensor) -> torch.Tensor:
    """Returns the mean cross-entropy of each query with the passages of all."""
    own_N = torch.arange(len(queries_NxD))
    return torch.nn.functional.cross_entropy(queries_NxD @ passages_NxD.T, own_N)


if __name__ == "__main__":
    main()
