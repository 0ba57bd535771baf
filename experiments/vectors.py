"""Opens embeddings that `encode` or `compare` has made, with the model that made them."""

from pathlib import Path

import numpy as np
import pyarrow  # type: ignore[import-untyped]

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.search.embeddings import shard_vectors
from cocondenser_jax.retriever.search.exact import float_blocks
from cocondenser_jax.retriever.search.opening import OpenIndex, open_index


def open_embeddings(embeddings: Path, model: Path) -> OpenIndex:
    """Opens embeddings; a UserError for an index, and for embeddings of another model."""
    opened = open_index(embeddings, model)
    if not isinstance(opened, OpenIndex) or "vector" not in opened.passages.column_names:
        raise UserError(f"{embeddings} is an index: expected embeddings")
    return opened


def read_vectors(passages: pyarrow.Table) -> np.ndarray:
    """Returns the vectors of opened embeddings, N x D, float32."""
    return np.concatenate([*float_blocks(shard_vectors(passages))])
