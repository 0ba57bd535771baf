"""Opens an index, or embeddings as they are, with the model that encoded them."""

import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import pyarrow  # type: ignore[import-untyped]
from sentence_transformers import SentenceTransformer

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.remote import local_copy
from cocondenser_jax.model_folder.model import ModelFolder
from cocondenser_jax.representation import Given, Representation, with_given
from cocondenser_jax.representation import query_prompt as query_prompt_of
from cocondenser_jax.retriever.search.bm25 import Bm25Index, open_bm25_index
from cocondenser_jax.retriever.search.embeddings import (
    FREE_FIELDS,
    Manifest,
    open_shards,
    read_manifest,
    require_finite_rows,
    shard_vectors,
)
from cocondenser_jax.retriever.search.exact import Nearest, nearest_checked
from cocondenser_jax.retriever.search.fuse import METHODS, Method
from cocondenser_jax.retriever.search.gpus import require_gpu
from cocondenser_jax.retriever.search.index import nearest_in_index, read_index
from cocondenser_jax.retriever.search.models import load
from cocondenser_jax.retriever.search.quantized import BINARY, BitVectors, nearest_by_bits
from cocondenser_jax.retriever.search.terms import require_language

_OVERSAMPLING = 4


class VectorSearch(NamedTuple):
    """How vectors are compared."""

    # Of an index, in faiss's notation, such as "nprobe=16" for IVF, "efSearch=64" for HNSW: slower
    # and more exact.
    parameters: str = ""
    # What multiplies embeddings; for the same ranks as on the CPU, in float32.
    device: Literal["cpu", "cuda"] = "cpu"
    # Of embeddings of bits: candidates for each passage that is asked for; None: 4.
    oversampling: int | None = None


_DEFAULTS = VectorSearch()


class OpenIndex(NamedTuple):
    """The vectors of passages, opened for search; the passages; the model that encoded them."""

    model: SentenceTransformer
    nearest: Nearest
    passages: pyarrow.Table  # `id`, `title` and `text` of the rows


class HybridIndex(NamedTuple):
    """An index whose results are fused with those of BM25 over the same passages."""

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
    vectors: VectorSearch = _DEFAULTS,
    hybrid: Method | None = None,
    query_prompt: str | None = None,
    language: str | None = None,
) -> Index:
    """Opens an index, or embeddings as they are, with the model that encoded them.

    A search of embeddings reads all of them, block by block, and is exact, as with "Flat".

    Args:
      folder: of `index.build_index` or `encode.encode_corpus`, or its URL on an object store.
      model: that model, whose folder may have moved.
      vectors: how vectors are compared; embeddings have no parameters, an index no device.
      hybrid: the method of `fuse.fuse_runs` for fusing the best 100 passages of BM25 and of the
        model, or more if more are asked for. The first call writes `bm25` to the folder.
      query_prompt: is put before queries, where the passages were encoded for none; None: what
        they were encoded for.
      language: of BM25's terms, see `terms.languages`; None: that of `bm25`, at first English.

    Raises:
      UserError: also if the model or the prompt is not the one that the passages were encoded for.
    """
    if hybrid not in (None, *METHODS):
        raise UserError(f"hybrid={hybrid!r}: expected {' or '.join(METHODS)}")
    if language is not None:
        require_language(language)
    require_gpu(vectors.device)
    folder = local_copy(folder)
    manifest = read_manifest(folder)
    if vectors.parameters and not manifest.is_index:
        raise UserError(f"{folder} holds embeddings: only an index has parameters")
    if vectors.device != "cpu" and manifest.is_index:
        raise UserError(f"{folder} is an index, for the CPU: {vectors.device} searches embeddings")
    is_bits = manifest.dtype == BINARY and not manifest.is_index
    if vectors.oversampling is not None and not is_bits:
        raise UserError(f"{folder} holds no embeddings of bits: only these have oversampling")
    if vectors.device != "cpu" and is_bits:
        raise UserError(f"{folder} holds embeddings of bits, which are searched on the CPU")
    _require_model(folder, manifest, model)
    representation = _with_query_prompt(folder, manifest.representation, query_prompt)
    loaded = load(model._replace(representation=representation))
    if manifest.is_index:
        index, passages = read_index(folder, manifest, vectors.parameters)
        dense = OpenIndex(loaded, partial(nearest_in_index, index), passages)
    else:
        passages = open_shards(folder, manifest)
        dense = OpenIndex(loaded, _nearest_in_shards(passages, vectors), passages)
    if hybrid is None:
        return dense
    return HybridIndex(dense, open_bm25_index(folder, passages, language), hybrid)


def _nearest_in_shards(passages: pyarrow.Table, vectors: VectorSearch) -> Nearest:
    """Returns what searches the vectors of `open_shards`."""
    shards = shard_vectors(passages)
    if bits := [each for each in shards if isinstance(each, BitVectors)]:
        return partial(nearest_by_bits, bits, vectors.oversampling or _OVERSAMPLING)
    return nearest_checked(shards, partial(require_finite_rows, passages), vectors.device)


def open_query_model(folder: Path, model: ModelFolder) -> tuple[SentenceTransformer, str]:
    """Loads the model that encoded embeddings, to search where a database has them.

    Args:
      folder: the embeddings, of which the manifest alone is read.
      model: see `open_index`.

    Returns:
      The model, with the prompts and the pooling that the passages were encoded with; and a name
      for them in the database, which other passages or other vectors do not have.

    Raises:
      UserError: also if another model encoded them.
    """
    manifest = read_manifest(folder)
    _require_model(folder, manifest, model)
    fields = {k: value for k, value in manifest.to_json().items() if k not in FREE_FIELDS}
    digest = hashlib.sha256(json.dumps(fields).encode()).hexdigest()
    loaded = load(model._replace(representation=manifest.representation))
    return loaded, f"passages_{digest[:12]}"


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
