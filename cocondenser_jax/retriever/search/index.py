"""Builds and reads faiss indexes.

An index folder contains all that search needs except the model: `index.faiss`, `passages.arrow`
(id, title and text of each row of the index) and `manifest.json` (that of the embeddings, plus the
factory string and the checksum of `index.faiss`).
"""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import faiss
import numpy as np
import pyarrow  # type: ignore[import-untyped]
from tqdm import tqdm, trange

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.remote import local_copy
from cocondenser_jax.files.whole import file_sha256, new_folder, require_absent, write_json
from cocondenser_jax.retriever.search.embeddings import (
    MANIFEST,
    PASSAGES,
    Manifest,
    map_table,
    open_shards,
    read_manifest,
    shard_vectors,
    write_table,
)
from cocondenser_jax.retriever.search.exact import float_blocks
from cocondenser_jax.retriever.search.quantized import Vectors

_PASSAGES_FILE = "passages.arrow"
# Vectors for training a compressed index: the minimum, and the number per list of an IVF. faiss
# uses at most 256 per centroid, and warns below 39.
_TRAINING_ROWS = 262_144
_ROWS_PER_LIST = 64
_QUERIES_AT_ONCE = 256
# Transformations that preserve inner products, except for dimensions that they drop.
_NEUTRAL = (
    faiss.OPQMatrix,
    faiss.RandomRotationMatrix,
    faiss.HadamardRotation,
    faiss.RemapDimensionsTransform,
)
# What faiss (1.15) builds, and then ranks wrongly or ends the process with.
# `direct` codes are whole numbers, and a graph needs some links.
_UNFIT = re.compile(r"SQ\w*_direct\w*|(HNSW0*[01]|NSG0*[0-4])(?!\d)")


def build_index(embeddings: Path, out: Path, factory: str = "Flat") -> Manifest:
    """Builds an inner-product index from the shards of `encode.encode_corpus`.

    `factory` is faiss's index string: "Flat" is exact; "IVF1024,Flat", "HNSW32" and "IVF1024,PQ32"
    trade exactness for speed or memory. Memory contains the index and, before that, the training
    vectors as float32; all others are added from the mapped shards, block by block.

    Raises:
      UserError: also if `out` exists, if faiss does not know the string or needs more passages, or
        if the index would not rank by inner products.
    """
    require_absent(out)
    embeddings = local_copy(embeddings)
    manifest = read_manifest(embeddings)
    if manifest.is_index:
        raise UserError(f"{embeddings} is an index already: expected the folder that encode wrote")
    table = open_shards(embeddings, manifest)
    vectors = shard_vectors(table)
    if unfit := _UNFIT.search(factory):
        raise UserError(
            f"an index {factory!r} has {unfit[0]}, which ranks wrongly or not at all: expected, for"
            " instance, SQ8 or HNSW32"
        )
    try:
        index = faiss.index_factory(manifest.dimension, factory, faiss.METRIC_INNER_PRODUCT)
    except (RuntimeError, TypeError) as error:
        raise UserError(
            f"faiss does not know the index string {factory!r} for vectors of"
            f" {manifest.dimension} dimensions"
        ) from error
    _require_inner_products(index, factory, has_unit_length=manifest.representation.has_unit_length)
    with new_folder(out) as folder:
        if not index.is_trained:
            _train(index, vectors, factory)
        for block_NxD in float_blocks(tqdm(vectors, desc="index", unit=" shards")):
            try:
                index.add(block_NxD)
            except RuntimeError as error:  # such as IDMap, which needs an id for each vector
                raise UserError(
                    f"an index {factory!r} takes no vectors by themselves: expected, for instance,"
                    " Flat, HNSW32 or IVF1024,Flat"
                ) from error
        # With a file name, faiss (1.15) only prints an error if the last block cannot be written.
        with (folder / "index.faiss").open("wb") as file:
            writer = faiss.PyCallbackIOWriter(file.write)  # type: ignore[attr-defined]
            faiss.write_index(index, writer)
        write_table(folder / _PASSAGES_FILE, table.select(PASSAGES.names).replace_schema_metadata())
        checksum = file_sha256(folder / "index.faiss")
        manifest = manifest._replace(factory=factory, index_sha256=checksum)
        write_json(folder / MANIFEST, manifest.to_json())
    return manifest


def read_index(
    folder: Path, manifest: Manifest, parameters: str
) -> tuple[faiss.Index, pyarrow.Table]:
    """Reads an index of `build_index`, and maps the passages of its rows."""
    path = folder / "index.faiss"
    # With a damaged file, faiss may allocate any memory, loop endlessly, or return wrong results.
    try:
        if file_sha256(path) != manifest.index_sha256:
            raise UserError(f"{path} is damaged, or its manifest is another's: build it again")
        index = faiss.read_index(str(path))
    except (OSError, RuntimeError, MemoryError) as error:
        raise UserError(f"{path} is missing or damaged: build the index again") from error
    passages = map_table(folder / _PASSAGES_FILE, PASSAGES, index.ntotal)
    if passages is None:
        raise UserError(f"{folder / _PASSAGES_FILE} is missing or damaged: build the index again")
    _set_parameters(index, parameters, manifest.factory)
    return index, passages


def nearest_in_index(
    index: faiss.Index, queries_QxD: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Searches for some queries at a time, for the progress bar; returns scores and rows."""
    n_queries = len(queries_QxD)
    starts = trange(0, n_queries, _QUERIES_AT_ONCE, desc="search", disable=n_queries == 1)
    blocks = [index.search(queries_QxD[i : i + _QUERIES_AT_ONCE], k) for i in starts]
    scores, rows = zip(*blocks, strict=True)
    return np.concatenate(scores), np.concatenate(rows)


def _layers(index: faiss.Index) -> Iterator[faiss.Index]:
    """Yields an index and those inside it that search passages, each as its own class."""
    index = faiss.downcast_index(index)
    yield index
    if isinstance(index, faiss.IndexPreTransform):
        yield from _layers(index.index)
    if isinstance(index, faiss.IndexRefine):
        yield from _layers(index.base_index)
        yield from _layers(index.refine_index)


def _require_inner_products(index: faiss.Index, factory: str, *, has_unit_length: bool) -> None:
    """Raises a UserError for an index that would not rank by inner products.

    PCA and ITQ subtract the passages' mean, also from queries, and L2norm removes lengths, which
    matter unless vectors are normalized. faiss builds some kinds, such as HNSW32,PQ32, only for
    distances, whatever the requested metric.
    """
    neutral = (*_NEUTRAL, faiss.NormalizationTransform) if has_unit_length else _NEUTRAL
    for layer in _layers(index):
        others = set()
        if isinstance(layer, faiss.IndexPreTransform):
            chain = cast(Any, layer.chain)  # a C++ vector, despite faiss's type annotation
            steps = [faiss.downcast_VectorTransform(chain.at(i)) for i in range(chain.size())]
            others = {type(step).__name__ for step in steps if not isinstance(step, neutral)}
        if layer.metric_type != faiss.METRIC_INNER_PRODUCT:
            others.add(f"{type(layer).__name__} of distances")
        if others:
            raise UserError(
                f"an index {factory!r} does not rank by"
                f" {'cosines' if has_unit_length else 'inner products'}"
                f" ({', '.join(sorted(others))}):"
                " expected, for instance, Flat, OPQ32,PQ32, HNSW32 or IVF1024,PQ32"
            )


def _set_parameters(index: faiss.Index, parameters: str, factory: str | None) -> None:
    try:
        if not re.fullmatch(r"(\w+=[1-9]\d*(,(?=.)|$))*", parameters):
            raise ValueError(parameters)
        faiss.ParameterSpace().set_index_parameters(index, parameters)  # type: ignore[arg-type]
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"an index {factory} cannot be searched with {parameters!r}: expected faiss's "
            "notation, such as nprobe=16 (IVF) or efSearch=64 (HNSW)"
        ) from error


def _train(index: faiss.Index, vectors: Sequence[Vectors], factory: str) -> None:
    """Trains a compressed index on every n-th vector of each shard."""
    lists = faiss.try_extract_index_ivf(index)
    n_sampled = _TRAINING_ROWS
    if lists:
        n_sampled = max(n_sampled, _ROWS_PER_LIST * lists.nlist)
    n_rows = sum(map(len, vectors))
    step = math.ceil(n_rows / n_sampled)
    sample = [vectors_NxD[::step] for vectors_NxD in vectors]
    try:
        index.train(np.concatenate(sample, dtype=np.float32))
    except RuntimeError as error:
        raise UserError(f"{n_rows} passages are too few to train the index {factory!r}") from error
