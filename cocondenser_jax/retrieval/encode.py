"""Passages to vectors, in shards on disk."""

import json
import logging
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from tqdm import tqdm

from cocondenser_jax import files
from cocondenser_jax.collection.folder import Passage, corpus_file, passage_text, read_corpus
from cocondenser_jax.errors import UserError
from cocondenser_jax.retrieval import models
from cocondenser_jax.retrieval.shards import MANIFEST, map_vectors, passages_file, vectors_file

log = logging.getLogger(__name__)

# At most this much is lost to a kill: 110 TFLOP with BERT-base and 128 tokens, minutes of a CPU.
# Still many batches to sort by length, and MS MARCO's 8.8 million passages are only 1,769 shards.
SHARD_SIZE = 5_000
# Written before the first shard: what a resumed run must agree with.
_SETTINGS = "settings.json"


def encode_corpus(
    model_folder: Path,
    corpus: Path,
    out: Path,
    *,
    batch_size: int = 128,
    passage_length: int | None = None,
    shard_size: int = SHARD_SIZE,
    dtype: Literal["float32", "float16"] = "float32",
    precision: Literal["auto", "float32", "bfloat16"] = "auto",
    pooling: str | None = None,
) -> dict[str, Any]:
    """Encodes all passages into `out`, shard by shard, going on where an earlier run stopped.

    The folder is described in `shards.py`; its rows are in the order of the corpus. `manifest.json`
    comes last: without it, the folder is not complete. A shard that was cut short or whose passages
    differ from the corpus is encoded again.

    Args:
      model_folder: see `models.load_retriever`.
      corpus: a data folder, or its file of passages: see `data.read_corpus`.
      out: the folder for the shards.
      batch_size: passages per forward pass.
      passage_length: tokens kept of a passage; None: as the model folder says.
      shard_size: passages per shard. One shard is held in memory.
      dtype: of the numbers on disk.
      precision: of the matrix products, see `models.uses_bfloat16`; bfloat16 is faster where the
        processor has it, and changes a vector by about 0.4 % of its length.
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
    model = models.load_retriever(model_folder, passage_length=passage_length, pooling=pooling)
    settings = {
        "model": str(model_folder),
        "model_sha256": models.model_sha256(model_folder),
        "pooling": pooling,
        "passage_length": models.passage_tokens(model),
        "corpus": str(source),
        "corpus_sha256": files.file_sha256(source),
        "passages": n_passages,
        "shard_size": shard_size,
        "dtype": dtype,
        "precision": "bfloat16" if models.uses_bfloat16(precision) else "float32",
    }
    _start_or_resume(out, settings)
    dimension = model.get_embedding_dimension() or 0
    with (
        tqdm(total=n_passages, desc="encode", unit=" passages") as progress,
        torch.autocast(model.device.type, torch.bfloat16, enabled=models.uses_bfloat16(precision)),
    ):
        for shard, passages in enumerate(_shards(read_corpus(source), shard_size)):
            path, beside = vectors_file(out, shard), passages_file(out, shard)
            lines = _to_lines(passages)
            if path.exists():
                shape = len(passages), dimension
                if map_vectors(path, shape, dtype) is not None and _holds(beside, lines):
                    progress.update(len(passages))
                    continue
                log.warning("%s or its passages are damaged: encoding them again", path)
                path.unlink()
            beside.write_bytes(lines)
            _write_array(path, _encode(model, passages, batch_size, progress).astype(dtype))
    manifest = settings | {
        "dimension": dimension,
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
    earlier = files.read_object(path)
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


def _to_lines(passages: list[Passage]) -> bytes:
    records = ({"_id": p.id, "title": p.title, "text": p.text} for p in passages)
    return "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records).encode()


def _holds(path: Path, content: bytes) -> bool:
    return path.is_file() and path.read_bytes() == content


def _write_array(path: Path, array: np.ndarray) -> None:
    """Writes an array, whole or not at all."""
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        np.save(file, array)
    partial.replace(path)
