"""Vectors to a faiss index.

An index folder holds everything that search needs beside the model: `index.faiss`,
`passages.jsonl` (id, title, text, one line per row of the index), `offsets.npy` (the byte at which
each line starts) and `manifest.json` (of the embeddings, with the factory and the checksum of
`index.faiss`).
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from tqdm import tqdm

from cocondenser_jax.errors import UserError
from cocondenser_jax.retrieval.shards import (
    BLOCK_ROWS,
    MANIFEST,
    PassageLines,
    map_array,
    open_shards,
    read_manifest,
    save_array,
)
from cocondenser_jax.storage.files import file_sha256, new_folder, write_json
from cocondenser_jax.storage.paths import plain_path

# Vectors to train a compressed index on; faiss takes at most 256 of them per centroid.
_TRAINING_ROWS = 1_000_000


def build_index(embeddings: Path, out: Path, factory: str = "Flat") -> dict[str, Any]:
    """Builds an inner-product index from the shards of `encode.encode_corpus`.

    `factory` is faiss' index string: "Flat" is exact; "IVF1024,Flat", "HNSW32" or "IVF1024,PQ32"
    trade exactness for speed or memory.

    Raises:
      UserError: also if `out` exists, or faiss does not know the string or needs more passages.
    """
    manifest = read_manifest(embeddings)
    shards, lines = open_shards(embeddings, manifest)
    dimension = manifest["dimension"]
    try:
        index = faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
    except (RuntimeError, TypeError) as error:
        raise UserError(
            f"faiss does not know the index string {factory!r} for vectors of {dimension} numbers"
        ) from error
    with new_folder(out) as folder:
        if not index.is_trained:
            _train(index, shards, factory)
        for shard in tqdm(shards, desc="index", unit=" shards"):
            for start in range(0, len(shard), BLOCK_ROWS):
                index.add(np.asarray(shard[start : start + BLOCK_ROWS], np.float32))
        # Given a name, faiss (1.15) only prints that the last block could not be written.
        with (folder / "index.faiss").open("wb") as file:
            writer = faiss.PyCallbackIOWriter(file.write)  # type: ignore[attr-defined]
            faiss.write_index(index, writer)
        with (folder / "passages.jsonl").open("wb") as joined:
            offsets = []
            for path, starts in lines:
                offsets.append(starts + joined.tell())
                joined.write(path.read_bytes())
        save_array(folder / "offsets.npy", np.concatenate(offsets))
        checksum = file_sha256(folder / "index.faiss")
        manifest = manifest | {"factory": factory, "index_sha256": checksum}
        write_json(folder / MANIFEST, manifest)
    return manifest


def read_index(
    folder: Path, manifest: Mapping[str, Any], parameters: str
) -> tuple[faiss.Index, PassageLines]:
    """Reads an index that is as `build_index` wrote it, and where its passages are."""
    path = folder / "index.faiss"
    # faiss trusts what it reads: of a damaged file it may allocate any amount of memory, search
    # endlessly, or give wrong results.
    try:
        if file_sha256(path) != manifest.get("index_sha256"):
            raise UserError(f"{path} is damaged, or its manifest is another's: build it again")
        with plain_path(path) as plain:
            index = faiss.read_index(str(plain))
    except (OSError, RuntimeError, MemoryError) as error:
        raise UserError(f"{path} is missing or damaged: build the index again") from error
    if (index.d, index.ntotal) != (manifest["dimension"], manifest["passages"]):
        raise UserError(f"{path} holds other vectors than its manifest says")
    offsets = map_array(folder / "offsets.npy", (index.ntotal,), "int64")
    if offsets is None:
        raise UserError(f"{folder}/offsets.npy is missing or damaged: build the index again")
    try:
        if not re.fullmatch(r"(\w+=[1-9]\d*(,(?=.)|$))*", parameters):
            raise ValueError(parameters)
        faiss.ParameterSpace().set_index_parameters(index, parameters)  # type: ignore[arg-type]
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"an index {manifest.get('factory')} cannot be searched with {parameters!r}: expected "
            "faiss's notation, such as nprobe=16 (IVF) or efSearch=64 (HNSW)"
        ) from error
    return index, PassageLines(folder / "passages.jsonl", offsets)


def _train(index: faiss.Index, shards: list[np.ndarray], factory: str) -> None:
    n_rows = sum(map(len, shards))
    share = min(1.0, _TRAINING_ROWS / n_rows)
    rng = np.random.default_rng(0)
    sample = [
        shard[np.sort(rng.choice(len(shard), int(np.ceil(share * len(shard))), replace=False))]
        for shard in shards
    ]
    try:
        index.train(np.concatenate(sample).astype(np.float32))
    except RuntimeError as error:
        raise UserError(f"{n_rows} passages are too few to train the index {factory!r}") from error
