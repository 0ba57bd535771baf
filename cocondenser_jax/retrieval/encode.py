"""Passages to vectors, in shards on disk."""

import json
import logging
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from sentence_transformers import SentenceTransformer
from tqdm import tqdm

from cocondenser_jax import files
from cocondenser_jax.errors import UserError
from cocondenser_jax.retrieval.data import Passage, corpus_file, passage_text, read_corpus
from cocondenser_jax.retrieval.models import load_retriever, model_sha256

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
# Written before the first shard: what a resumed run must agree with.
_SETTINGS = "settings.json"


def encode_corpus(
    model_folder: Path,
    corpus: Path,
    out: Path,
    *,
    batch_size: int = 128,
    passage_length: int | None = None,
    shard_size: int = 50_000,
    dtype: Literal["float32", "float16"] = "float32",
    pooling: str | None = None,
) -> dict[str, Any]:
    """Encodes all passages into `out`, shard by shard, going on where an earlier run stopped.

    Shard i is `embeddings-<i>.npy`, of shape (passages, hidden), beside `passages-<i>.jsonl` with
    id, title and text in the same order. `manifest.json` comes last: without it, the folder is
    not complete.

    Args:
      model_folder: see `models.load_retriever`.
      corpus: a data folder, or its file of passages: see `data.read_corpus`.
      out: the folder for the shards.
      batch_size: passages per forward pass.
      passage_length: tokens kept of a passage; None: as the model folder says.
      shard_size: passages per shard. One shard is held in memory.
      dtype: of the numbers on disk.
      pooling: see `models.load_retriever`.

    Returns:
      The manifest: model, its hash, dimension, number of passages and the settings above.

    Raises:
      UserError: for a corpus or model that cannot be read, or an `out` with something else in it.
    """
    if batch_size < 1 or shard_size < 1:
        raise UserError(f"batch_size={batch_size}, shard_size={shard_size}: expected at least 1")
    source = corpus_file(corpus)
    # Read whole once, so that a broken line stops the run before there are any shards.
    n_passages = sum(1 for _ in read_corpus(source))
    model = load_retriever(model_folder, passage_length=passage_length, pooling=pooling)
    settings = {
        "model": str(model_folder),
        "model_sha256": model_sha256(model_folder),
        "pooling": pooling,
        "passage_length": model[0].document_length or model.max_seq_length,
        "corpus": str(source),
        "corpus_sha256": files.file_sha256(source),
        "passages": n_passages,
        "shard_size": shard_size,
        "dtype": dtype,
    }
    _start_or_resume(out, settings)
    with tqdm(total=n_passages, desc="encode", unit=" passages") as progress:
        for shard, passages in enumerate(_shards(read_corpus(source), shard_size)):
            path = out / f"embeddings-{shard:05d}.npy"
            if not path.exists():
                _write_passages(out / f"passages-{shard:05d}.jsonl", passages)
                _write_array(path, _encode(model, passages, batch_size, progress).astype(dtype))
            else:
                progress.update(len(passages))
    manifest = settings | {
        "dimension": model.get_embedding_dimension(),
        "shards": -(-n_passages // shard_size),
    }
    files.write_json(out / MANIFEST, manifest)
    return manifest


def _encode(
    model: SentenceTransformer, passages: list[Passage], batch_size: int, progress: tqdm
) -> np.ndarray:
    """Returns vectors (passages, hidden), computed in order of length to waste no padding."""
    texts = [passage_text(passage) for passage in passages]
    order = np.argsort([-len(text) for text in texts], kind="stable")
    vectors_NxD = np.empty((len(texts), model.get_embedding_dimension() or 0), np.float32)
    for start in range(0, len(texts), batch_size):
        rows = order[start : start + batch_size]
        vectors_NxD[rows] = model.encode_document(
            [texts[row] for row in rows], batch_size=batch_size, show_progress_bar=False
        )
        progress.update(len(rows))
    return vectors_NxD


def _start_or_resume(out: Path, settings: dict[str, Any]) -> None:
    """Prepares `out`, or makes sure that what lies there was made with the same settings."""
    path = out / _SETTINGS
    if not path.exists():
        files.require_absent(out)
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot create {out}: {error.strerror}") from error
        files.write_json(path, settings)
        return
    earlier = files.read_json(path)
    # Where model and corpus lie may change; what they hold may not.
    for key in settings.keys() - {"model", "corpus"}:
        if earlier.get(key) != settings[key]:
            raise UserError(
                f"{out} was begun with {key}={earlier.get(key)!r}, now it is {settings[key]!r}: "
                "choose a new folder, or remove it first"
            )
    log.info("going on with the shards in %s", out)


def _shards(passages: Iterator[Passage], size: int) -> Iterator[list[Passage]]:
    while shard := list(islice(passages, size)):
        yield shard


def _write_passages(path: Path, passages: list[Passage]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for passage in passages:
            record = {"_id": passage.id, "title": passage.title, "text": passage.text}
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def _write_array(path: Path, array: np.ndarray) -> None:
    """Writes an array, whole or not at all."""
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        np.save(file, array)
    partial.replace(path)
