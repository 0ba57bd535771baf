"""Encodes a corpus into vectors, in shards on disk."""

import functools
import hashlib
import json
import logging
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

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
    machine_shards,
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
    uses_bfloat16,
)
from cocondenser_jax.storage.files import read_object
from cocondenser_jax.storage.hub import find_folder
from cocondenser_jax.storage.runs import lock_folder, shard_folder, start_or_compare

if TYPE_CHECKING:
    from cocondenser_jax.storage.parts import Engine

logger = logging.getLogger(__name__)

# Replaces the transformer of a retriever: given its folder, a batch size and a precision.
Backend = Callable[[SentenceTransformer, Path, int, str], None]
Load = Callable[..., tuple[SentenceTransformer, int, str]]  # as `load_model`

_LARGEST = 10_000_000  # a larger shard would not fit in memory


def encode_corpus(
    model_folder: Path,
    corpus: Path,
    out: Path,
    *,
    batch_size: int | None = None,
    passage_length: int | None = None,
    shard_size: int | None = None,
    shard: tuple[int, int] = (0, 1),
    dtype: Literal["float32", "float16"] = "float32",
    precision: Literal["auto", "float32", "bfloat16"] = "auto",
    pooling: str | None = None,
    backend: Backend | None = None,
    counted: tuple[int, str] | None = None,
    load: Load | None = None,
) -> dict[str, Any]:
    """Encodes all passages into `out`, shard by shard; resumes an interrupted run.

    `embeddings.py` describes the folder. A shard that was cut short or whose passages differ from
    the corpus is encoded again.

    Args:
      model_folder: see `models.load_retriever`.
      corpus: a data folder, or its file of passages.
      out: the folder for the shards; with several machines, for their folders.
      batch_size: passages per forward pass; None: 32 where PyTorch computes on a CPU, else 128.
      passage_length: tokens kept of a passage; None: as the model folder says.
      shard_size: passages per shard, which are held in memory; None: see `default_shard_size`.
      shard: (i, n): what machine i of n is to encode, from 0: see `embeddings.py`.
      dtype: number format on disk.
      precision: see `models.uses_bfloat16`; bfloat16 moves a vector by 0.6 % of its length.
      pooling: see `models.load_retriever`.
      backend: runs the transformer instead of PyTorch: `flax_encoder.run_in_flax`.
      counted: what `count_and_hash` says of the corpus, if that is known.
      load: loads the model instead of `load_model`.

    Returns:
      The manifest: model, its hash, dimension, number of passages and the settings above. With
      several machines, each returns that of the whole corpus.
    """
    for name, value in (("batch_size", batch_size), ("shard_size", shard_size)):
        if value is not None and not 1 <= value <= _LARGEST:
            raise UserError(f"{name}={value}: expected 1 to {_LARGEST:,} passages")
    corpus = corpus_file(corpus)
    folder = find_folder(model_folder)
    if shard[1] > 1 and (out / MANIFEST).exists():
        raise UserError(f"{out} holds the embeddings of one machine: choose a new folder")
    out = shard_folder(out, shard)
    with lock_folder(out):
        # A first reading of the whole file: a broken line stops the run before there is a shard.
        n_passages, corpus_sha256 = counted or count_and_hash(corpus)
        load = load or load_model
        model, batch_size, products = load(
            folder, passage_length, pooling, batch_size, precision, backend
        )
        shard_size = shard_size or default_shard_size(n_passages // shard[1])
        manifest = {
            "model": str(model_folder),
            "model_sha256": model_sha256(folder),
            "pooling": pooling_of(model),
            "given_pooling": pooling,
            "passage_length": passage_tokens(model),
            "corpus": str(corpus),
            "corpus_sha256": corpus_sha256,
            "passages": n_passages,
            "shard_size": shard_size,
            "dtype": dtype,
            "precision": products,
            "backend": "jax" if backend else "torch",
            "dimension": model.get_embedding_dimension() or 0,
            "shards": -(-n_passages // shard_size),
        }
        if (out / MANIFEST).exists():
            logger.info("resuming with the shards in %s", out)
        start_or_compare(out / MANIFEST, manifest, MOVED)
        with torch.autocast(model.device.type, torch.bfloat16, enabled=products == "bfloat16"):
            _encode_shards(model, read_corpus(corpus), out, manifest, shard, batch_size)
    return manifest


def load_model(
    folder: Path,
    passage_length: int | None,
    pooling: str | None,
    batch_size: int | None,
    precision: str,
    backend: Backend | None,
) -> tuple[SentenceTransformer, int, str]:
    """Loads a retriever as `encode_corpus` says; returns batch size and precision too."""
    model = load_retriever(folder, passage_length=passage_length, pooling=pooling)
    halved = uses_bfloat16(precision, on_cpu=backend is None)
    products = "bfloat16" if halved else "float32"
    if batch_size is None:
        batch_size = 32 if model.device.type == "cpu" and backend is None else 128
    if backend:
        backend(model, folder, batch_size, products)
    return model, batch_size, products


# A worker makes one part after another with the same model.
_kept_model = functools.lru_cache(maxsize=1)(load_model)


def encode_part(**arguments: Any) -> None:
    """Makes a part, as `encode_corpus`, in a worker that keeps the model for the next one."""
    encode_corpus(**arguments, load=_kept_model)


def encode_in_parts(
    model_folder: Path, corpus: Path, out: Path, engine: "Engine", **options: Any
) -> dict[str, Any]:
    """Encodes as `encode_corpus`, in `engine.tasks` parts; resumes where it was stopped.

    The folder is that of as many machines, and its vectors are those of one. The options are those
    of `encode_corpus`.
    """
    from cocondenser_jax.storage.parts import make_parts  # needs datatrove

    n = engine.tasks
    out = out.absolute()
    corpus = corpus_file(corpus)
    folder = find_folder(model_folder)
    with lock_folder(out):
        counted = count_and_hash(corpus)
        size = options.get("shard_size") or default_shard_size(counted[0])
        options = {**options, "shard_size": size}
        free = ("batch_size", "backend")
        settings = {name: value for name, value in options.items() if name not in free}
        settings |= {"tasks": n, "model_sha256": model_sha256(folder), "corpus_sha256": counted[1]}
        settings["backend"] = "jax" if options.get("backend") else "torch"
        start_or_compare(out / "tasks.json", settings)
        parts = [shard_folder(out, (index, n)) for index in range(n)]
        n_shards = math.ceil(counted[0] / size)

        def files(index: int) -> list[Path]:
            return [shard_file(parts[index], number) for number in range(index, n_shards, n)]

        def is_done(index: int) -> bool:
            return all(path.exists() for path in [parts[index] / MANIFEST, *files(index)])

        for index in filter(is_done, range(n)):
            manifest = read_object(parts[index] / MANIFEST)
            for number, path in zip(range(index, n_shards, n), files(index), strict=True):
                if map_shard(parts[index], manifest, number) is None:
                    logger.warning("%s is damaged: encoding it again", path)
                    path.unlink()
        place = {"model_folder": model_folder, "corpus": corpus, "out": out, "counted": counted}
        work = out / "tasks"
        function = "cocondenser_jax.retrieval.encode:encode_part"
        make_parts("encode", function, {**place, **options}, is_done, engine, work)
        manifest = read_manifest(out)
        open_shards(out, manifest)
        shutil.rmtree(work, ignore_errors=True)
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


def _encode_shards(
    model: SentenceTransformer,
    passages: Iterator[Passage],
    out: Path,
    manifest: Mapping[str, Any],
    machine: tuple[int, int],
    batch_size: int,
) -> None:
    """Writes the shards of a machine that are missing from its folder or damaged."""
    own = machine_shards(manifest, machine)
    n_own = sum(shard_rows(manifest, number) for number in own)
    with tqdm(total=n_own, desc="encode", unit=" passages") as progress:
        for number in range(manifest["shards"]):
            rows = list(islice(passages, manifest["shard_size"]))
            if number not in own:
                continue
            passages_in_shard = passage_table(rows)
            found = map_shard(out, manifest, number)
            if found is None or not found.select(PASSAGES.names).equals(passages_in_shard):
                path = shard_file(out, number)
                if path.exists():
                    logger.warning("%s is damaged: encoding it again", path)
                show_bar = len(rows) == n_own  # that of the corpus only moves between shards
                vectors_NxD = _encode(model, rows, batch_size, show_bar)
                write_shard(path, passages_in_shard, vectors_NxD.astype(manifest["dtype"]))
            progress.update(len(rows))


def _encode(
    model: SentenceTransformer, passages: list[Passage], batch_size: int, show_bar: bool
) -> np.ndarray:
    texts = [passage_text(passage) for passage in passages]
    vectors_NxD = model.encode_document(texts, batch_size=batch_size, show_progress_bar=show_bar)
    return np.asarray(vectors_NxD)
