"""All measurements on a GPU or a TPU: `make bench-gpu`, `make bench-tpu`.

  python -m benchmarks.accelerator gpu --json_out=benchmarks/results/gpu.json
  python -m benchmarks.accelerator tpu --json_out=benchmarks/results/tpu.json

In this order, each part in its own process; rows are written as they come:

  peak          the fastest of several large matrix products, one on each device
  step          stage 2 with BERT-base and 2,048 documents, by chunk size, over all devices
  PyTorch       on a GPU: the same in plain PyTorch (`benchmarks.step`), plain and compiled
  exactness     the gradient by chunks against the one of a single pass, in float32
  encode        passages per second: in JAX; on a GPU also in PyTorch, and sentence-transformers
  pretraining   coCondenser from scratch on the docstrings of this machine, with the probe

A row records the number of devices; rates are totals over all devices, memory is that of one.
Texts are the docstrings of installed packages; weights are random.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.step import (
    LENGTH,
    Size,
    alone,
    device_name,
    flax_side,
    matmul_flops,
    model_flops,
    torch_side,
    write_model,
)

Row = dict[str, Any]


class Machine(NamedTuple):
    """The devices of JAX."""

    platform: str  # cpu, gpu or tpu
    n_devices: int
    name: str  # of one device


class Scale(NamedTuple):
    """The sizes of the measurements."""

    platform: str
    parts: tuple[str, ...]
    encoders: tuple[str, ...]
    matrix: int  # rows and columns of the matrices that are multiplied
    size: Size
    chunk_sizes: tuple[int, ...]  # of a device
    steps: int  # timed on each side
    exact_documents: int
    passages: int
    rows: int  # passages that a device encodes at a time
    texts: str  # a source of `corpus`
    documents: int  # a step of pre-training
    seconds: float  # of pre-training, if its steps take longer
    pretraining_steps: int

    n_devices: int = 1  # that JAX has


GPU = Scale(
    platform="gpu",
    parts=("peak", "step", "PyTorch", "exactness", "encode", "pretraining"),
    encoders=("torch", "jax", "sentence-transformers"),
    matrix=8192,
    size=Size(12, 768, 2048, 128),
    chunk_sizes=(128, 256),
    steps=5,
    exact_documents=64,
    passages=5_000,
    rows=128,
    texts="pydocs",
    documents=256,
    seconds=150.0,
    pretraining_steps=5_000,
)
# A TPU has no PyTorch part. A v3 core has memory for chunks of 128 spans; compiling a step takes
# minutes, which are part of the pre-training time.
TPU = GPU._replace(
    platform="tpu",
    parts=("peak", "step", "exactness", "encode", "pretraining"),
    encoders=("jax",),
    chunk_sizes=(32, 64, 128),
    documents=2048,
    seconds=900.0,
)
SCALES = {scale.platform: scale for scale in (GPU, TPU)}
# Everything once, on any machine; the tests have eight devices.
TINY: dict[str, Any] = {
    "matrix": 64,
    "size": Size(2, 64, 16, 4),
    "chunk_sizes": (2,),
    "steps": 1,
    "exact_documents": 4,
    "passages": 10,
    "rows": 4,
    "texts": "pydocs:click",
    "documents": 16,
    "seconds": 600.0,
    "pretraining_steps": 2,
}


def machine() -> Machine:
    """Returns the devices of JAX."""
    import jax

    devices = jax.local_devices()
    platform = devices[0].platform
    name = device_name() if platform == "cpu" else devices[0].device_kind
    return Machine(platform, len(devices), name)


def peak(scale: Scale, dtype: str) -> Iterator[Row]:
    """Times matrix multiplications on all devices."""
    flops = alone(matmul_flops, scale.matrix, dtype, scale.n_devices)
    setting = f"{scale.matrix} x {scale.matrix}, {dtype}"
    yield _row("peak", setting, scale.n_devices, "FLOP/s", flops)
    yield _row("peak", "", scale.n_devices, "device", alone(machine).name)


def step(scale: Scale, dtype: str) -> Iterator[Row]:
    """Times our training step over all devices, for each chunk size up to a device's spans."""
    n_spans = 2 * scale.size.documents // scale.n_devices
    side = partial(flax_side, n_devices=scale.n_devices, width=scale.matrix)
    for chunk_size in sorted({min(chunk_size, n_spans) for chunk_size in scale.chunk_sizes}):
        size = scale.size._replace(chunk_size=chunk_size)
        yield from _side("step", side, size, dtype, scale.steps, scale.n_devices)


def plain_pytorch(scale: Scale, dtype: str) -> Iterator[Row]:
    """Times plain PyTorch at the chunk size of `scale`, and compiled PyTorch on a GPU."""
    yield from _side("PyTorch", torch_side, scale.size, dtype, scale.steps)
    if alone(machine).platform == "gpu":
        compiled = partial(torch_side, compiled=True)
        yield from _side("PyTorch, compiled", compiled, scale.size, dtype, scale.steps)


def _side(
    part: str, side: Callable[..., Any], size: Size, dtype: str, steps: int, n_devices: int = 1
) -> Iterator[Row]:
    """Times one side; a failure, such as for lack of memory, becomes a row."""
    setting = f"chunks of {size.chunk_size}, {dtype}"
    try:
        with tempfile.TemporaryDirectory() as folder:
            write_model(Path(folder), size)
            measured = alone(side, Path(folder), size, dtype, steps)
    except Exception as error:
        yield _failure(part, setting, n_devices, error)
        return
    flops = model_flops(size) / measured.seconds
    values = {"spans/s": 2 * size.documents / measured.seconds, "model FLOP/s": flops}
    if measured.matmul_flops:
        values["of the matmul peak"] = flops / measured.matmul_flops
    values |= {"peak MiB": round(measured.peak_bytes / 2**20), "loss": measured.loss}
    for measure, value in values.items():
        yield _row(part, setting, n_devices, measure, value)


def exactness(scale: Scale, _: str) -> Iterator[Row]:
    """Compares the gradients of two passes and of XLA's attention with that of one pass."""
    size = scale.size._replace(documents=scale.exact_documents)
    for setting, changes in (
        ("float32, chunks", {"chunk_size": size.documents // 2}),
        ("float32, attention by XLA", {"attention": "xla"}),
    ):
        yield _row("exactness", setting, 1, "relative error", alone(gradient_error, size, changes))


def gradient_error(size: Size, changes: dict[str, Any]) -> float:
    """Returns |g - g'| / |g'|, where g has changed settings and g' is by one pass."""
    import jax
    import optax

    from cocondenser_jax.convert.from_torch import load_folder
    from cocondenser_jax.corpus.batches import Batch
    from cocondenser_jax.pretrain.devices import batch_gradient, prepare_libtpu
    from cocondenser_jax.pretrain.step import LossSettings

    prepare_libtpu()
    # By default a GPU multiplies float32 with 10 bits of precision, and a TPU with 7.
    jax.config.update("jax_default_matmul_precision", "highest")
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), size)
        config, params = load_folder(folder, skip_from=size.layers // 2)
        batch = Batch(**np.load(Path(folder) / "batch.npz"))
    whole = LossSettings(dtype="float32")
    _, expected = batch_gradient(config, whole, params, batch)
    _, gradient = batch_gradient(config, whole._replace(**changes), params, batch)
    difference = jax.tree.map(lambda a, b: a - b, gradient, expected)
    return float(optax.tree.norm(difference) / optax.tree.norm(expected))


def encode(scale: Scale, dtype: str) -> Iterator[Row]:
    """Times the encoders on docstrings; PyTorch's run on one device."""
    with tempfile.TemporaryDirectory() as folder:
        _write_encoder(Path(folder), scale)
        for side in scale.encoders:
            n_devices = scale.n_devices if side == "jax" else 1
            n_rows = n_devices * scale.rows
            seconds = alone(encode_seconds, Path(folder), side, dtype, n_rows)
            rate = scale.passages / seconds
            yield _row("encode", f"{side}, {dtype}", n_devices, "passages/s", rate)


def _write_encoder(folder: Path, scale: Scale) -> None:
    """Writes a random `model` with a vocabulary of the docstrings, and passages from them."""
    from cocondenser_jax.corpus.pydocs import read_docstrings
    from cocondenser_jax.corpus.tokenizer import save_tokenizer, train_tokenizer

    texts = [text for _, text in islice(read_docstrings(), scale.passages)]
    texts = [texts[i % len(texts)] for i in range(scale.passages)]
    write_model(folder / "model", scale.size._replace(documents=4))
    save_tokenizer(train_tokenizer(texts, 8_000), folder / "model")
    lines = (json.dumps({"_id": str(i), "text": text}) for i, text in enumerate(texts))
    (folder / "corpus.jsonl").write_text("".join(f"{line}\n" for line in lines))


def encode_seconds(folder: Path, side: str, dtype: str, n_rows: int) -> float:
    """Returns the seconds for encoding a folder's passages a second time, `n_rows` at once."""
    import torch

    from cocondenser_jax.flax_encoder import run_in_flax
    from cocondenser_jax.model_folder.model import open_model
    from cocondenser_jax.retriever.data.folder import passage_text, read_corpus
    from cocondenser_jax.retriever.search.encode import Encoding, encode_corpus
    from cocondenser_jax.retriever.search.models import load_retriever

    def ours(out: Path) -> None:
        encoding = Encoding(
            open_model(folder / "model"),
            max_length=LENGTH,
            precision=dtype,  # type: ignore[arg-type]
            batch_size=n_rows,
            backend=run_in_flax if side == "jax" else None,
        )
        encode_corpus(encoding, folder / "corpus.jsonl", out)

    def theirs(_: Path) -> None:
        model = load_retriever(folder / "model", passage_length=LENGTH)
        model.to(getattr(torch, dtype))
        texts = [passage_text(passage) for passage in read_corpus(folder / "corpus.jsonl")]
        model.encode_document(texts, batch_size=n_rows)

    seconds = []
    for turn in range(2):  # the first one compiles
        start = time.perf_counter()
        (theirs if side == "sentence-transformers" else ours)(folder / f"{side}{turn}")
        seconds.append(time.perf_counter() - start)
    return seconds[1]


def pretraining(scale: Scale, dtype: str) -> Iterator[Row]:
    """Pre-trains from scratch for some minutes and reads the log."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        command = [sys.executable, "-m", "cocondenser_jax.cli"]
        texts = [f"--corpus={scale.texts}"]
        words = [f"--out={folder / 'words'}", "--size=16000"]
        subprocess.run([*command, "vocabulary", *texts, *words], check=True)
        store = [f"--out={folder / 'store'}", f"--max_length={LENGTH}"]
        tokenizer = f"--tokenizer={folder / 'words'}"
        subprocess.run([*command, "corpus", *texts, *store, tokenizer], check=True)
        run_for([*command, "pretrain", *_flags(scale, dtype, folder)], scale.seconds)
        log = folder / "run" / "metrics.jsonl"
        lines = [json.loads(line) for line in log.read_text().splitlines()]
    last: Row = {}  # of each metric
    for line in lines:
        last |= line
    for name in ("step", "loss", "tokens_per_second", "mfu", "probe/positive_mrr"):
        if name in last:
            setting = f"{scale.documents} documents, {dtype}"
            yield _row("pretraining", setting, scale.n_devices, name, last[name])


def run_for(command: list[str], seconds: float) -> None:
    """Runs a command and ends it by SIGTERM after some seconds; raises if it fails earlier."""
    with subprocess.Popen(command) as process:
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            return
    if status:
        raise subprocess.CalledProcessError(status, command)


def _flags(scale: Scale, dtype: str, folder: Path) -> list[str]:
    size = scale.size
    settings = {
        "data.store": folder / "store",
        "data.length": LENGTH,
        "data.batch_size": scale.documents,
        "model.hidden_size": size.hidden,
        "model.num_hidden_layers": size.layers,
        "model.num_attention_heads": size.hidden // 64,
        "model.intermediate_size": 4 * size.hidden,
        "model.max_position_embeddings": LENGTH,
        "model.skip_from": size.layers // 2,
        "train.objective": "cocondenser",
        "train.steps": scale.pretraining_steps,
        "train.chunk_size": min(size.chunk_size, 2 * scale.documents // scale.n_devices),
        "train.dtype": dtype,
        "optimizer.learning_rate": 3e-4,
        "probe.every": min(100, scale.pretraining_steps),
        "probe.documents": 20,
        "log_every": 1,
    }
    overrides = [f"--config.{name}={value}" for name, value in settings.items()]
    return ["--config=configs/default.py", f"--workdir={folder / 'run'}", *overrides]


def _row(part: str, setting: str, devices: int, measure: str, value: float | str) -> Row:
    row = {"part": part, "setting": setting, "devices": devices}
    return {**row, "measure": measure, "value": value}


def _failure(part: str, setting: str, devices: int, error: Exception) -> Row:
    return _row(part, setting, devices, "failed", f"{type(error).__name__}: {error}"[:300])


PARTS: dict[str, Callable[[Scale, str], Any]] = {
    "peak": peak,
    "step": step,
    "PyTorch": plain_pytorch,
    "exactness": exactness,
    "encode": encode,
    "pretraining": pretraining,
}


def measure(parts: list[str], scale: Scale, dtype: str, json_out: Path | None) -> list[Row]:
    """Runs some parts, and writes all rows after each new one; a failed part is a row, too."""
    rows: list[Row] = []

    def keep(row: Row) -> None:
        rows.append(row)
        print(json.dumps(row), flush=True)
        if json_out:
            json_out.write_text(json.dumps(rows, indent=1) + "\n")

    for part in parts:
        start = time.perf_counter()
        try:
            for row in PARTS[part](scale, dtype):
                keep(row)
        except Exception as error:  # the next part may still be measured
            keep(_failure(part, dtype, scale.n_devices, error))
        seconds = time.perf_counter() - start
        keep(_row(part, dtype, scale.n_devices, "seconds in all", seconds))
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Measures, and returns the exit status: 1 if something failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("machine", choices=SCALES)
    parser.add_argument("--parts", help="with commas; default: all that the machine has")
    parser.add_argument("--dtype", default="bfloat16", help="default: %(default)s")
    parser.add_argument("--tiny", action="store_true", help="two layers and a few texts, anywhere")
    parser.add_argument("--json_out", type=Path)
    given = parser.parse_args(arguments)
    scale = SCALES[given.machine]
    parts = given.parts.split(",") if given.parts else list(scale.parts)
    unknown = [part for part in parts if part not in scale.parts]
    if unknown:
        parser.error(f"no part {unknown[0]!r}: expected some of {', '.join(scale.parts)}")
    devices = alone(machine)
    if given.tiny:
        scale = scale._replace(**TINY)
    elif devices.platform != scale.platform:
        parser.error(
            f"JAX computes on a {devices.platform}: expected a {scale.platform} (or --tiny)"
        )
    scale = scale._replace(n_devices=devices.n_devices)
    if given.json_out:
        given.json_out.parent.mkdir(parents=True, exist_ok=True)
    rows = measure(parts, scale, given.dtype, given.json_out)
    return int(any(row["measure"] == "failed" for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
