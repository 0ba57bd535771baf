"""Compares the training step with a plain PyTorch coCondenser: same weights, batch and machine.

The PyTorch side has Hugging Face's model with logits at every position, a Condenser head of Hugging
Face's layers, a two-pass gradient cache (the first pass only through the backbone), scaled
dot-product attention and AdamW. The sides run one after the other, each in its own process. Times
are printed only if both report the same loss.

  python -m benchmarks.step --json_out=benchmarks/results/step.json
  python -m benchmarks.step --sizes=BERT-base --documents=256 --chunk_size=64 --dtype=bfloat16

Spans are full: no padding on either side. Both sides run on a GPU if there is one.
"""

import argparse
import concurrent.futures
import dataclasses
import multiprocessing
import os
import resource
import statistics
import tempfile
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.results import report

LENGTH = 128
LOSS_TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2}


class Size(NamedTuple):
    """A network and a batch for it."""

    layers: int
    hidden: int
    documents: int
    chunk_size: int


SIZES = {"4x256": Size(4, 256, 32, 16), "BERT-base": Size(12, 768, 4, 4)}


class Measured(NamedTuple):
    """The measurements of one side."""

    loss: float
    seconds: float  # a step, median
    peak_bytes: int  # of a device; on a CPU, of the process without its libraries
    device: str
    matmul_flops: float  # per second on all devices, see `matmul_flops`


def main() -> None:
    """Measures all sizes and prints them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default=",".join(SIZES), help="default: %(default)s")
    parser.add_argument("--documents", type=int, help="per step, instead of the size's own")
    parser.add_argument("--chunk_size", type=int, help="spans, instead of the size's own")
    parser.add_argument("--dtype", choices=LOSS_TOLERANCE, default="float32")
    parser.add_argument("--steps", type=int, default=5, help="timed on each side")
    parser.add_argument("--json_out", type=Path)
    arguments = parser.parse_args()
    rows = []
    for name in arguments.sizes.split(","):
        size = SIZES[name]._replace(
            **{
                key: value
                for key in ("documents", "chunk_size")
                if (value := getattr(arguments, key))
            }
        )
        rows.append(_compare(name, size, arguments))
    report(rows, arguments.json_out)


def _compare(name: str, size: Size, arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), size)
        ours = alone(flax_side, Path(folder), size, arguments.dtype, arguments.steps)
        theirs = alone(torch_side, Path(folder), size, arguments.dtype, arguments.steps)
    tolerance = LOSS_TOLERANCE[arguments.dtype]
    if abs(ours.loss - theirs.loss) > tolerance * abs(theirs.loss):
        raise SystemExit(f"{name}: the losses differ: {ours.loss} and {theirs.loss}")
    tokens = 2 * size.documents * LENGTH
    work = model_flops(size)
    return {
        "size": name,
        "documents": size.documents,
        "chunk size": size.chunk_size,
        "dtype": arguments.dtype,
        "device": ours.device,
        "loss": ours.loss,
        "tokens/s": round(tokens / ours.seconds),
        "tokens/s, PyTorch": round(tokens / theirs.seconds),
        "times PyTorch": round(theirs.seconds / ours.seconds, 2),
        "peak MiB": round(ours.peak_bytes / 2**20),
        "peak MiB, PyTorch": round(theirs.peak_bytes / 2**20),
        "model FLOP/s": work / ours.seconds,
        "of the matmul peak": round(work / ours.seconds / ours.matmul_flops, 3),
        "work per span, of full sequences": round(work_ratio(size), 3),
    }


def alone(side: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function in a new process, which shares no memory or threads with this one."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(side, *arguments).result()


def model_flops(size: Size) -> float:
    """Floating-point operations of a step's forward passes and gradients, without repetition."""
    from cocondenser_jax.corpus.masking import mask_capacity
    from cocondenser_jax.model.flops import forward_flops

    span = 3 * forward_flops(model_config(size), LENGTH, mask_capacity(LENGTH))
    return float(2 * size.documents * span)


def work_ratio(size: Size) -> float:
    """Work of our two passes, relative to passes with all layers and heads at every position."""
    from cocondenser_jax.corpus.masking import mask_capacity
    from cocondenser_jax.model.flops import encode_flops, forward_flops

    config = model_config(size)
    ours = 3 * forward_flops(config, LENGTH, mask_capacity(LENGTH)) + encode_flops(config, LENGTH)
    # All positions are predicted, and the first pass goes through the whole model, too.
    full = dataclasses.replace(config, skip_from=config.num_hidden_layers)
    return ours / (4 * forward_flops(full, LENGTH, LENGTH))


def model_config(size: Size) -> Any:
    """The network of a size, with the vocabulary of bert-base-uncased."""
    from cocondenser_jax.model.config import ModelConfig

    return ModelConfig(
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.hidden // 64,
        intermediate_size=4 * size.hidden,
        skip_from=size.layers // 2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


def write_model(folder: Path, size: Size) -> None:
    """Writes random weights as a Hugging Face folder with `model.pt`, and a batch as .npz."""
    import torch
    from transformers import BertConfig, BertForMaskedLM
    from transformers.models.bert.modeling_bert import BertLayer

    from cocondenser_jax.corpus.masking import mask_capacity

    config = model_config(size)
    shapes = {k: v for k, v in config.to_dict().items() if hasattr(BertConfig(), k)}
    torch.manual_seed(0)
    lm = BertForMaskedLM(BertConfig(**shapes))
    lm.save_pretrained(folder)
    head = torch.nn.ModuleList(BertLayer(lm.config) for _ in range(config.n_head_layers))
    torch.save({f"c_head.{k}": v for k, v in head.state_dict().items()}, folder / "model.pt")

    rng = np.random.default_rng(0)
    n_spans, capacity = 2 * size.documents, mask_capacity(LENGTH)
    ids_SxL = rng.integers(1000, config.vocab_size, (n_spans, LENGTH))
    positions_SxM = np.stack([1 + rng.permutation(LENGTH - 2)[:capacity] for _ in range(n_spans)])
    used_SxM = np.arange(capacity) < round(0.15 * LENGTH) + np.zeros((n_spans, 1))
    np.savez(
        folder / "batch.npz",
        input_ids_SxL=ids_SxL.astype(np.int32),
        attention_mask_SxL=np.ones(ids_SxL.shape, bool),
        masked_positions_SxM=np.where(used_SxM, positions_SxM, 0).astype(np.int32),
        labels_SxM=rng.integers(1000, config.vocab_size, used_SxM.shape, np.int32) * used_SxM,
        weights_SxM=used_SxM.astype(np.float32),
        origins_Sx2=np.stack([np.arange(n_spans) // 2, np.arange(n_spans)], 1).astype(np.int32),
        prompt_lengths_S=np.zeros(n_spans, np.int32),
    )


def flax_side(
    folder: Path, size: Size, dtype: str, n_steps: int, n_devices: int = 1, width: int | None = None
) -> Measured:
    """Times our step and matrix products of a given width over some devices."""
    import jax

    devices = jax.local_devices()[:n_devices]
    before = resident_bytes()
    step, state, batch = ready_step(folder, size, dtype, devices)

    def train_step() -> float:
        nonlocal state
        state, metrics = step(state, batch)
        return float(metrics["loss"])

    loss, seconds = time_steps(train_step, n_steps)
    if devices[0].platform == "cpu":
        used = resident_bytes() - before
    else:
        used = max(device.memory_stats()["peak_bytes_in_use"] for device in devices)
    width = width or (2048 if devices[0].platform == "cpu" else 8192)
    peak = matmul_flops(width, dtype, n_devices)
    return Measured(loss, seconds, used, device_name(), peak)


def time_steps(train_step: Callable[[], float], n_steps: int) -> tuple[float, float]:
    """Returns the loss of a first, untimed step, and the median seconds of the others."""
    losses, seconds = [], []
    for _ in range(n_steps + 1):
        start = time.perf_counter()
        losses.append(train_step())
        seconds.append(time.perf_counter() - start)
    return losses[0], statistics.median(seconds[1:])


def ready_step(
    folder: Path, size: Size, dtype: str, devices: list[Any], objective: str = "cocondenser"
) -> tuple[Callable[..., Any], Any, Any]:
    """Returns our step over some devices, its initial state and the batch, from a folder."""
    from cocondenser_jax.configs import default
    from cocondenser_jax.convert.from_torch import load_folder
    from cocondenser_jax.corpus.batches import Batch
    from cocondenser_jax.pretrain.devices import mapped_step, prepare_libtpu, replicate
    from cocondenser_jax.pretrain.experiment import resolve_without_store
    from cocondenser_jax.pretrain.objectives import OBJECTIVES
    from cocondenser_jax.pretrain.step import initial_state, new_memory

    prepare_libtpu()
    config = default.get_config().unlock()
    config.data.update({"batch_size": size.documents, "length": LENGTH})
    config.train.update({"chunk_size": size.chunk_size, "dtype": dtype, "objective": objective})
    head = {"skip_from": model_config(size).skip_from}
    if not OBJECTIVES[objective].has_head:
        head = {"skip_from": 0, "n_head_layers": 0}
    loaded, params = load_folder(str(folder), **head)
    loaded = dataclasses.replace(loaded, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    batch = Batch(**np.load(folder / "batch.npz"))
    settings = resolve_without_store(config, 4, loaded.vocab_size, loaded.pad_token_id).step
    step = mapped_step(loaded, settings, devices)
    state = initial_state(params, settings.optimizer, new_memory(loaded, settings.loss))
    return step, replicate(state, devices), batch


def matmul_flops(width: int, dtype: str, n_devices: int = 1) -> float:
    """Returns the FLOP/s of the fastest of ten products of square matrices, one on each device."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((n_devices,), ("devices",), devices=jax.local_devices()[:n_devices])
    one_each = NamedSharding(mesh, PartitionSpec("devices"))
    shape = (n_devices, width, width)
    # A GPU multiplies equal numbers faster than random ones, since fewer transistors switch.
    random = jax.jit(
        lambda: jax.random.normal(jax.random.key(0), shape, dtype), out_shardings=one_each
    )
    squares = random()
    multiply = jax.jit(lambda x: x @ x, out_shardings=one_each)
    times = timeit.repeat(lambda: multiply(squares).block_until_ready(), number=1, repeat=11)
    return 2 * n_devices * width**3 / min(times[1:])  # the first compiles


def torch_side(
    folder: Path, size: Size, dtype: str, n_steps: int, compiled: bool = False
) -> Measured:
    """Times the plain PyTorch implementation."""
    import torch

    from checks.reference import contrastive_loss, full_labels, mlm_sum, open_reference
    from cocondenser_jax.corpus.batches import Batch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    before = resident_bytes()
    model = open_reference(folder, attention="sdpa").to(device)
    optimizer = adamw(model)
    batch = Batch(**np.load(folder / "batch.npz"))
    ids, mask = torch.from_numpy(batch.input_ids_SxL), torch.from_numpy(batch.attention_mask_SxL)
    forward = torch.compile(model) if compiled else model
    encode = torch.compile(model.encode) if compiled else model.encode
    inputs = [x.to(device).split(size.chunk_size) for x in (ids, mask, full_labels(batch))]
    n_masked = int(batch.weights_SxM.sum())

    def train_step() -> float:
        with torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16"):
            with torch.no_grad():
                cls = torch.cat([encode(x, m) for x, m, _ in zip(*inputs, strict=True)])
            with torch.autocast(device, enabled=False):
                contrast = contrastive_loss(cls.requires_grad_())
                cotangents = torch.autograd.grad(contrast, cls)[0].split(size.chunk_size)
            value = contrast.item()
            for x, m, y, cotangent in zip(*inputs, cotangents, strict=True):
                out = forward(x, m)
                mlm = mlm_sum(out.head_logits_BxLxV, y) + mlm_sum(out.late_logits_BxLxV, y)
                surrogate = (out.late_BxLxD[:, 0].float() * cotangent).sum()
                (mlm / n_masked + surrogate).backward()
                value += mlm.item() / n_masked
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return value

    loss, seconds = time_steps(train_step, n_steps)
    on_gpu = device == "cuda"
    used = torch.cuda.max_memory_allocated() if on_gpu else resident_bytes() - before
    return Measured(loss, seconds, used, device_name(), 0.0)


def adamw(model: Any, fused: bool | None = None) -> Any:
    """Returns PyTorch's AdamW with weight decay on matrices alone."""
    import torch

    decayed = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    return torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}],
        lr=1e-6,
        fused=fused,
    )


def resident_bytes() -> int:
    """Returns the peak memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def device_name() -> str:
    """Returns the name of the GPU, else of the CPU."""
    import torch

    if torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return f"{line.partition(': ')[2]}, {os.cpu_count()} cores"
    return "CPU"


if __name__ == "__main__":
    main()
