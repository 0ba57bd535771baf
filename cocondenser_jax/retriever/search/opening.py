"""Opens an index or embeddings for search, with the model that encoded them."""

import hashlib
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import pyarrow  # type: ignore[import-untyped]

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.remote import local_copy
from cocondenser_jax.model_folder.folder import ModelFolder
from cocondenser_jax.representation import Given, Representation, with_given
from cocondenser_jax.representation import query_prompt as query_prompt_of
from cocondenser_jax.retriever.search.bm25 import Bm25Index, open_bm25_index
from cocondenser_jax.retriever.search.embeddings import (
    FREE_FIELDS,
    Manifest,
    open_shards,
    read_manifest,
    shard_vectors,
)
from cocondenser_jax.retriever.search.exact import Nearest, nearest, nearest_in_torch
from cocondenser_jax.retriever.search.fuse import METHODS, Method
from cocondenser_jax.retriever.search.gpus import require_gpu
from cocondenser_jax.retriever.search.index import nearest_in_index, read_index
from cocondenser_jax.retriever.search.quantized import (
    BINARY,
    QUANTIZED,
    BitVectors,
    nearest_by_bits,
)
from cocondenser_jax.retriever.search.terms import require_language

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


class Faiss(NamedTuple):
    """Searches an index with faiss."""

    # In faiss's notation, such as "nprobe=16" for IVF or "efSearch=64" for HNSW; larger values are
    # slower and more exact.
    parameters: str = ""


class Exact(NamedTuple):
    """Searches float or int8 embeddings exhaustively, block by block."""

    # The device for matrix multiplications, in float32 on both.
    device: Literal["cpu", "cuda"] = "cpu"


class Bits(NamedTuple):
    """Searches binary embeddings on the CPU."""

    oversampling: int = 4  # candidates per returned passage


VectorSearch = Faiss | Exact | Bits


class OpenIndex(NamedTuple):
    """Vectors opened for search, with their passages and the model that encoded them."""

    model: "SentenceTransformer"
    nearest: Nearest
    passages: pyarrow.Table  # `id`, `title` and `text` of the rows


class HybridIndex(NamedTuple):
    """An index for fusing the results of vectors and of BM25 over the same passages."""

    dense: OpenIndex
    bm25: Bm25Index
    method: Method

    @property
    def passages(self) -> pyarrow.Table:
        """The passages of both."""
        return self.dense.passages


Index = OpenIndex | HybridIndex


def open_index(
    folder: Path,
    model: ModelFolder,
    *,
    vectors: VectorSearch | None = None,
    hybrid: Method | None = None,
    query_prompt: str | None = None,
    language: str | None = None,
) -> Index:
    """Opens an index or embeddings for search.

    Float embeddings give the same results as an index with the factory string "Flat".

    Args:
      folder: a folder of `index.build_index` or `encode.encode_corpus`, or its URL.
      model: the model that encoded the passages; its folder may have been moved.
      vectors: the kind of search, which must match the folder's vectors; None: the default.
      hybrid: the method of `fuse.fuse_runs` for fusing the first 100 passages of the model and of
        BM25, or more if `k` is larger. The first call writes `bm25` to the folder.
      query_prompt: the text before each query if the passages were encoded without one; None: the
        prompt of the encoding.
      language: the language for BM25, see `terms.languages`; None: that of `bm25` or, for a new
        one, English.

    Raises:
      UserError: also if the passages were encoded by another model or for another prompt.
    """
    if hybrid not in (None, *METHODS):
        raise UserError(f"hybrid={hybrid!r}: expected {' or '.join(METHODS)}")
    if language is not None:
        require_language(language)
    folder = local_copy(folder)
    manifest = read_manifest(folder)
    vectors = _fitting(folder, manifest, vectors)
    _require_model(folder, manifest, model)
    representation = _with_query_prompt(folder, manifest.representation, query_prompt)
    loaded = _load(model._replace(representation=representation))
    nearest, passages = _open_vectors(folder, manifest, vectors)
    dense = OpenIndex(loaded, nearest, passages)
    if hybrid is None:
        return dense
    return HybridIndex(dense, open_bm25_index(folder, passages, language), hybrid)


def _fitting(folder: Path, manifest: Manifest, given: VectorSearch | None) -> VectorSearch:
    """Returns the kind of search for a folder's vectors.

    Raises:
      UserError: if `given` does not match the vectors, or needs a missing GPU.
    """
    is_bits = manifest.dtype == BINARY
    default = Faiss() if manifest.is_index else Bits() if is_bits else Exact()
    if given is not None and type(given) is not type(default):
        embeddings = "binary embeddings" if is_bits else "embeddings"
        held = "an index" if manifest.is_index else embeddings
        expected, others = default._fields[0], given._fields[0]
        raise UserError(f"{folder} holds {held}, searched with {expected}, not {others}")
    if isinstance(given, Exact):
        require_gpu(given.device)
    return given or default


def _open_vectors(
    folder: Path, manifest: Manifest, vectors: VectorSearch
) -> tuple[Nearest, pyarrow.Table]:
    """Returns a search function for a folder's vectors, and their passages."""
    if isinstance(vectors, Faiss):
        index, passages = read_index(folder, manifest, vectors.parameters)
        return partial(nearest_in_index, index), passages
    passages = open_shards(folder, manifest)
    shards = shard_vectors(passages)
    if isinstance(vectors, Exact):
        if vectors.device == "cpu":
            return partial(nearest, shards), passages
        return partial(nearest_in_torch, shards, device=vectors.device), passages
    bits = [each for each in shards if isinstance(each, BitVectors)]
    return partial(nearest_by_bits, bits, vectors.oversampling), passages


def open_query_model(folder: Path, model: ModelFolder) -> tuple["SentenceTransformer", str]:
    """Loads the model that encoded embeddings, for searching them in a database.

    Args:
      folder: the embeddings; only the manifest is read.
      model: see `open_index`.

    Returns:
      The model with the prompts and pooling of the encoding, and a unique name in the database for
      these passages and vectors.

    Raises:
      UserError: also if another model encoded the passages, or if the vectors are codes.
    """
    manifest = read_manifest(folder)
    if manifest.dtype in QUANTIZED:
        raise UserError(
            f"{folder} holds {manifest.dtype} codes: expected --dtype=float32 or float16 for a"
            " database"
        )
    _require_model(folder, manifest, model)
    fields = {k: value for k, value in manifest.to_json().items() if k not in FREE_FIELDS}
    digest = hashlib.sha256(json.dumps(fields).encode()).hexdigest()
    loaded = _load(model._replace(representation=manifest.representation))
    return loaded, f"passages_{digest[:12]}"


def _load(model: ModelFolder) -> "SentenceTransformer":
    from cocondenser_jax.retriever.search.models import load  # slow to import

    return load(model)


def _require_model(folder: Path, manifest: Manifest, model: ModelFolder) -> None:
    if model.sha256() != manifest.model_sha256:
        raise UserError(
            f"{folder} was built with another model ({manifest.model}) than {model.name}"
        )


def _with_query_prompt(folder: Path, encoded: Representation, prompt: str | None) -> Representation:
    expected = query_prompt_of(dict(encoded.prompts))
    if prompt is not None and expected and prompt != expected:
        raise UserError(
            f"{folder} was encoded for queries that begin with {expected!r}, not with {prompt!r}"
        )
    return with_given(encoded, Given(query_prompt=prompt))
