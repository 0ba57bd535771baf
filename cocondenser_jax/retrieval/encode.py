"""Texts to vectors: a corpus into shards on disk, sentences into memory."""

import json
import logging
from collections.abc import Callable, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from tqdm import tqdm

from cocondenser_jax.collection.folder import Passage, corpus_file, passage_text, read_corpus
from cocondenser_jax.errors import UserError
from cocondenser_jax.retrieval.models import (
    load_retriever,
    model_sha256,
    passage_tokens,
    pooling_of,
    uses_bfloat16,
)
from cocondenser_jax.retrieval.shards import (
    MANIFEST,
    MOVED,
    map_array,
    save_array,
    shard_files,
    write_parquet,
)
from cocondenser_jax.storage.files import file_sha256, new_file, write_json
from cocondenser_jax.storage.hub import find_folder
from cocondenser_jax.storage.paths import shard_folder
from cocondenser_jax.storage.runs import lock_folder, start_or_compare

logger = logging.getLogger(__name__)

# Replaces what computes the transformer of a retriever: of a folder, for batches of a size, with
# matrix products of a precision.
Backend = Callable[[SentenceTransformer, Path, int, str], None]

# Above it, a shard would not fit in memory.
_LARGEST = 10_000_000
# Written before the first shard: what a resumed run must agree with.
_SETTINGS = "settings.json"


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
    parquet: Path | None = None,
    backend: Backend | None = None,
) -> dict[str, Any]:
    """Encodes all passages into `out`, shard by shard; resumes an interrupted run.

    `shards.py` describes the folder; its rows are in the order of the corpus. `manifest.json` comes
    last: without it, the folder is not complete. A shard that was cut short or whose passages
    differ from the corpus is encoded again.

    Args:
      model_folder: see `models.load_retriever`.
      corpus: a data folder, or its file of passages.
      out: the folder for the shards; of several machines, for their folders.
      batch_size: passages per forward pass; None: 32 where PyTorch computes on a CPU, else 128.
      passage_length: tokens kept of a passage; None: as the model folder says.
      shard_size: passages per shard, which are held in memory; None: see `default_shard_size`.
      shard: (i, n): what machine i of n is to encode, from 0: see `shards.py`.
      dtype: of the numbers on disk.
      precision: of the matrix products, see `models.uses_bfloat16`; where the processor has no
        units for it, bfloat16 is slower; it changes a vector by about 0.4 % of its length.
      pooling: see `models.load_retriever`.
      parquet: a file for ids and vectors, see `shards.write_parquet`.
      backend: what runs the transformer instead of PyTorch: `flax_encoder.run_in_flax`.

    Returns:
      The manifest: model, its hash, dimension, number of passages and the settings above. On n
      machines, it is each time that of all.
    """
    for name, value in (("batch_size", batch_size), ("shard_size", shard_size)):
        if value is not None and not 1 <= value <= _LARGEST:
            raise UserError(f"{name}={value}: expected 1 to {_LARGEST:,} passages")
    source, folder = corpus_file(corpus), find_folder(model_folder)
    if shard[1] > 1 and (out / _SETTINGS).exists():
        raise UserError(f"{out} holds the embeddings of one machine: choose a new folder")
    out = shard_folder(out, shard)
    with lock_folder(out):
        # A first reading of the whole file: a broken line stops the run before there is a shard.
        n_passages = sum(1 for _ in read_corpus(source))
        shard_size = shard_size or default_shard_size(n_passages // shard[1])
        model = load_retriever(folder, passage_length=passage_length, pooling=pooling)
        products = "bfloat16" if uses_bfloat16(precision) else "float32"
        settings = {
            "model": str(model_folder),
            "model_sha256": model_sha256(folder),
            "pooling": pooling_of(model),
            "pooling_from": "flag" if pooling else "model",
            "passage_length": passage_tokens(model),
            "corpus": str(source),
            "corpus_sha256": file_sha256(source),
            "passages": n_passages,
            "shard_size": shard_size,
            "dtype": dtype,
            "precision": products,
            "backend": "jax" if backend else "torch",
        }
        if batch_size is None:
            batch_size = 32 if model.device.type == "cpu" and backend is None else 128
        if (out / _SETTINGS).exists():
            logger.info("resuming with the shards in %s", out)
        start_or_compare(out / _SETTINGS, settings, MOVED)
        if backend:
            backend(model, folder, batch_size, products)
        dimension, n_shards = model.get_embedding_dimension() or 0, -(-n_passages // shard_size)
        numbers = range(shard[0], n_shards, shard[1])
        n_own = sum(min(shard_size, n_passages - number * shard_size) for number in numbers)
        passages = read_corpus(source)
        with (
            tqdm(total=n_own, desc="encode", unit=" passages") as progress,
            torch.autocast(model.device.type, torch.bfloat16, enabled=products == "bfloat16"),
        ):
            for number in range(n_shards):
                rows = list(islice(passages, shard_size))
                if number not in numbers:
                    continue
                vectors_file, passages_file = shard_files(out, number)
                lines = "".join(map(_to_line, rows)).encode()
                if vectors_file.exists():
                    whole = map_array(vectors_file, (len(rows), dimension), dtype) is not None
                    if whole and passages_file.is_file() and passages_file.read_bytes() == lines:
                        progress.update(len(rows))
                        continue
                    logger.warning(
                        "%s or its passages are damaged: encoding them again", vectors_file
                    )
                    vectors_file.unlink()
                with new_file(passages_file) as partial:
                    partial.write_bytes(lines)
                show_bar = len(rows) == n_own  # that of the corpus only moves between shards
                vectors_NxD = _encode(model, rows, batch_size, show_bar)
                with new_file(vectors_file) as partial:
                    save_array(partial, vectors_NxD.astype(dtype))
                progress.update(len(rows))
        manifest = settings | {"dimension": dimension, "shards": n_shards}
        write_json(out / MANIFEST, manifest)
        if parquet:
            write_parquet(out, parquet, numbers)
    return manifest


def default_shard_size(n_passages: int) -> int:
    """Returns passages per shard: a twentieth of the corpus, within 500 to 5,000.

    A kill loses the shard in progress. 500 passages are 11 TFLOP with BERT-base and 128 tokens,
    half a minute of a CPU, and batches enough to sort by length; with 5,000, MS MARCO's 8.8 million
    passages are only 1,769 shards.
    """
    return min(max(n_passages // 20, 500), 5_000)


def encode_sentences(
    columns: Sequence[Sequence[str]], folder: Path, pooling: str | None = None
) -> list[np.ndarray]:
    """Returns the vectors (N x D) of each column of sentences; a sentence is encoded once.

    `models.load_retriever` describes the folder and the pooling.
    """
    sentences = dict.fromkeys(chain.from_iterable(columns))
    rows = {sentence: row for row, sentence in enumerate(sentences)}
    model = load_retriever(folder, pooling=pooling)
    vectors_NxD = model.encode(list(rows), show_progress_bar=True)
    return [vectors_NxD[[rows[sentence] for sentence in column]] for column in columns]


def _encode(
    model: SentenceTransformer, passages: list[Passage], batch_size: int, show_bar: bool
) -> np.ndarray:
    """Returns `vectors_NxD` of a shard."""
    texts = [passage_text(passage) for passage in passages]
    vectors_NxD = model.encode_document(texts, batch_size=batch_size, show_progress_bar=show_bar)
    return np.asarray(vectors_NxD)


def _to_line(passage: Passage) -> str:
    record = {"_id": passage.id, "title": passage.title, "text": passage.text}
    return json.dumps(record, ensure_ascii=False) + "\n"
