"""Embeddings and an index that tests only read."""

import pytest

from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.retriever.search import encode
from cocondenser_jax.retriever.search.encode import Encoding
from cocondenser_jax.retriever.search.index import build_index


@pytest.fixture(scope="session")
def embeddings(model_folder, beir, tmp_path_factory):
    out = tmp_path_factory.mktemp("encoded") / "embeddings"
    encode.encode_corpus(
        Encoding(open_model(model_folder), max_length=16), beir, out, shard_size=25
    )
    return out


@pytest.fixture(scope="session")
def index(embeddings, tmp_path_factory):
    out = tmp_path_factory.mktemp("indexed") / "index"
    build_index(embeddings, out)
    return out
