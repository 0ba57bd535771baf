"""Embeddings and an index that tests only read."""

import shutil

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


@pytest.fixture
def hybrid_folder(index, tmp_path):
    """A copy of the index, in which nothing was searched yet."""
    folder = shutil.copytree(index, tmp_path / "fresh", ignore=shutil.ignore_patterns("bm25*"))
    assert sorted(p.name for p in folder.iterdir()) == [
        "index.faiss", "manifest.json", "passages.arrow",
    ]  # fmt: skip
    return folder
