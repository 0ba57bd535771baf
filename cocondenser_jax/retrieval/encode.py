"""Encodes a corpus into vectors, in shards on disk."""

import functools
import hashlib
import json
import logging
import math
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from tqdm import tqdm

from cocondenser_jax.collection.folder import Passage, corpus_file, passage_text, read_corpus
from cocondenser_jax.errors import UserError
from cocondenser_jax.retrieval.embeddings import (
    MANIFEST,
    MOVED,
    PASSAGES,
    map_shard,
    open_shards,
    passage_table,
    read_manifest,
    shard_file,
    shard_rows,
    write_shard,
)
from cocondenser_jax.retrieval.models import (
    load_retriever,
    model_sha256,
    passage_tokens,
    pooling_of,
    towers,
    uses_bfloat16,
)
from cocondenser_jax.storage.files import read_object
from cocondenser_jax.storage.hub import find_folder
from cocondenser_jax.storage.runs import lock_folder, start_or_compare, task_folder
from cocondenser_jax.workers import Engine, run_tasks

logger = logging.getLogger(__name__)

# Replaces the transformer of a retriever: given its folder, a batch size and a precision.
Backend = Callable[[SentenceTransformer, Path, int, str], None]

_BLOCK = 5_000  # passages that are tokenized and sorted together


class Loading(NamedTuple):
    """How a retriever is loaded: arguments of `encode_corpus`."""

    model_folder: Path
    passage_length: int | None
    pooling: str | None
    batch_size: int | None
    precision: str
    backend: Backend | None


def encode_corpus(  # noqa: PLR0913
    model_folder: Path,
    corpus: Path,
    out: Path,
    *,
    batch_size: int | None = None,
    passage_length: int | None = None,
    shard_size: int | None = None,
    task: tuple[int, int] = (0, 1),
    engine: Engine | None = None,
    dtype: Literal["float32", "float16"] = "float32",
    precision: Literal["auto", "float32", "bfloat16"] = "auto",
    pooling: str | None = None,
    backend: Backend | None = None,
) -> dict[str, Any]:
    """Encodes all passages into `out`, shard by shard; resumes an interrupted run.

    `embeddings.py` describes the folder. A shard that was cut short or whose passages differ from
    the corpus is encoded again.

    Args:
      model_folder: see `models.load_retriever`.
      corpus: a data folder, or its file of passages.
      out: the folder for the shards; with several tasks, for their folders.
      batch_size: passages per forward pass; None: 32 where PyTorch computes on a CPU, else 128.
      passage_length: tokens kept of a passage; None: as the model folder says.
      shard_size: passages per shard, which are held in memory; None: see `default_shard_size`.
      task: (i, n): encodes the shards of task i of n alone, from 0: see `embeddings.py`.
      engine: runs all tasks, on workers; the vectors are those of one task.
      dtype: number format on disk.
      precision: see `models.uses_bfloat16`; bfloat16 moves a vector by 0.6 % of its length.
      pooling: see `models.load_retriever`.
      backend: runs the transformer instead of PyTorch: `flax_encoder.run_in_flax`.

    Returns:
      The manifest: model, its hash, dimension, number of passages and the settings above. Each
      task returns that of the whole corpus.
    """
    path = corpus_file(corpus)
    if task[1] > 1 and (out / MANIFEST).exists():
        raise UserError(f"{out} holds the embeddings of one task: choose a new folder")
    loading = Loading(model_folder, passage_length, pooling, batch_size, precision, backend)
    with lock_folder(task_folder(out, task)):
        # A first reading of the whole file: a broken line stops the run before there is a shard.
        n_passages, sha256 = count_and_hash(path)
        shard_size = shard_size or default_shard_size(n_passages // task[1])
        data = {
            "corpus": str(path),
            "corpus_sha256": sha256,
            "passages": n_passages,
            "shard_size": shard_size,
            "shards": math.ceil(n_passages / shard_size),
            "dtype": dtype,
        }
        if engine:
            return _encode_in_tasks(loading, data, out, engine)
        return _encode_task(*load_encoder(loading), data, out, task)


def load_encoder(loading: Loading) -> tuple[SentenceTransformer, dict[str, Any]]:
    """Loads a retriever as `encode_corpus` says, and returns what a manifest says of it."""
    backend = loading.backend
    folder = find_folder(loading.model_folder)
    model = load_retriever(folder, passage_length=loading.passage_length, pooling=loading.pooling)
    halved = uses_bfloat16(loading.precision, on_cpu=backend is None)
    products = "bfloat16" if halved else "float32"
    is_small = model.device.type == "cpu" and backend is None
    batch_size = loading.batch_size or (32 if is_small else 128)
    for tower in towers(model).values():
        tower.unpad_inputs = False  # as it is with flash attention, which would join all texts
    if backend:
        backend(model, folder, batch_size, products)
    settings = {
        "model": str(loading.model_folder),
        "model_sha256": model_sha256(folder),
        "pooling": pooling_of(model),
        "given_pooling": loading.pooling,
        "passage_length": passage_tokens(model),
        "precision": products,
        "backend": "jax" if backend else "torch",
        "dimension": model.get_embedding_dimension() or 0,
        "batch_size": batch_size,
    }
    return model, settings


# A worker runs one task after another with the same model.
_kept_encoder = functools.lru_cache(maxsize=1)(load_encoder)


def encode_task(
    loading: Loading, data: Mapping[str, Any], out: Path, task: tuple[int, int]
) -> None:
    """Encodes the shards of task i of n, in a worker."""
    with lock_folder(task_folder(out, task)):
        _encode_task(*_kept_encoder(loading), data, out, task)


def _encode_task(
    model: SentenceTransformer,
    settings: Mapping[str, Any],
    data: Mapping[str, Any],
    out: Path,
    task: tuple[int, int],
) -> dict[str, Any]:
    """Writes the shards of task i of n that are missing from its folder or damaged."""
    folder = task_folder(out, task)
    manifest = {**settings, **data}
    if (folder / MANIFEST).exists():
        logger.info("resuming with the shards in %s", folder)
    start_or_compare(folder / MANIFEST, manifest, MOVED)
    passages = read_corpus(Path(manifest["corpus"]))
    index, n_tasks = task
    own = range(index, manifest["shards"], n_tasks)
    n_own = sum(shard_rows(manifest, number) for number in own)
    halved = manifest["precision"] == "bfloat16"
    with (
        torch.autocast(model.device.type, torch.bfloat16, enabled=halved),
        tqdm(total=n_own, desc="encode", unit=" passages") as progress,
    ):
        for number in range(manifest["shards"]):
            rows = list(islice(passages, manifest["shard_size"]))
            if number not in own:
                continue
            passages_in_shard = passage_table(rows)
            found = map_shard(folder, manifest, number)
            if found is not None and found.select(PASSAGES.names).equals(passages_in_shard):
                progress.update(len(rows))
                continue
            path = shard_file(folder, number)
            if path.exists():
                logger.warning("%s is damaged: encoding it again", path)
            blocks = [rows[start : start + _BLOCK] for start in range(0, len(rows), _BLOCK)]
            vectors_NxD = np.concatenate(
                [_encode(model, block, settings["batch_size"], progress) for block in blocks]
            )
            write_shard(path, passages_in_shard, vectors_NxD.astype(manifest["dtype"]))
    return manifest


def _encode_in_tasks(
    loading: Loading, data: Mapping[str, Any], out: Path, engine: Engine
) -> dict[str, Any]:
    n = engine.tasks
    settings = loading._asdict() | {
        "tasks": n,
        "model_folder": model_sha256(loading.model_folder),
        "backend": "jax" if loading.backend else "torch",
    }
    start_or_compare(out / "tasks.json", {**settings, **data}, MOVED)

    def is_done(index: int) -> bool:
        folder = task_folder(out, (index, n))
        manifest = read_object(folder / MANIFEST, {})
        numbers = range(index, data["shards"], n)
        return bool(manifest) and None not in (map_shard(folder, manifest, k) for k in numbers)

    run_tasks("encode", partial(encode_task, loading, data, out), is_done, engine, out / "work")
    manifest = read_manifest(out)
    open_shards(out, manifest)
    shutil.rmtree(out / "work", ignore_errors=True)
    return manifest


def default_shard_size(n_passages: int) -> int:
    """Returns passages per shard: a twentieth of the corpus, within 500 to 5,000.

    A kill loses the shard in progress. 500 passages are half a minute of a CPU (11 TFLOP with
    BERT-base and 128 tokens), and enough to sort by length; with 5,000, MS MARCO has 1,769 shards.
    """
    return min(max(n_passages // 20, 500), 5_000)


def count_and_hash(corpus: Path) -> tuple[int, str]:
    """Returns the number of passages in a file, and their SHA-256."""
    digest = hashlib.sha256()
    n_passages = 0
    for passage in read_corpus(corpus):
        digest.update(json.dumps(passage).encode())
        n_passages += 1
    return n_passages, digest.hexdigest()


@torch.inference_mode()
def _encode(
    model: SentenceTransformer, passages: list[Passage], batch_size: int, progress: "tqdm[Any]"
) -> np.ndarray:
    """Tokenizes passages once, and encodes those of about as many tokens together.

    `encode_document` sorts by characters; in batches of short texts, a fifth is padding.
    """
    texts = [passage_text(passage) for passage in passages]
    names = ("document", "passage", "corpus", model.default_prompt_name)  # as `encode_document`
    prompt = next((model.prompts[name] for name in names if name in model.prompts), None)
    features = model.preprocess(texts, prompt=prompt, task="document")
    mask_NxL = features["attention_mask"]
    order_N = mask_NxL.sum(dim=1).argsort(descending=True, stable=True)
    vectors_NxD = torch.empty(len(texts), model.get_embedding_dimension() or 0)
    model.eval()
    for rows_B in order_N.split(batch_size):
        columns_L = mask_NxL[rows_B].any(dim=0)
        batch = {
            name: value[rows_B][:, columns_L].to(model.device) if torch.is_tensor(value) else value
            for name, value in features.items()
        }
        vectors_BxD = model(batch, task="document")["sentence_embedding"]
        vectors_NxD[rows_B] = vectors_BxD[:, : model.truncate_dim].float().cpu()
        progress.update(len(rows_B))
    return vectors_NxD.numpy()
