"""LangChain and LlamaIndex, as docs/python.md uses them, give the vectors of our retriever."""

import re
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

import cocondenser_jax as cj
from tests.test_python_interface import page_blocks
from tests.world import write_retriever

PROMPTS = {"query": "hgf ", "document": "abc "}
LONG = " ".join(["abc def gh"] * 9)  # longer than a passage that is read to the end


@pytest.fixture(params=["dot", "cosine"])
def retriever(request, model_folder, tmp_path, monkeypatch):
    """Our retriever, whose folder is `retriever` in the current one; with prompts and lengths."""
    pooling, dense = {"dot": ("cls", ()), "cosine": ("mean", (True,))}[request.param]
    published = tmp_path / "published"
    write_retriever(
        model_folder, published, pooling, dense, prompts=PROMPTS, similarity_fn_name=request.param
    )
    cj.load_retriever(published, query_length=8, passage_length=16).save(
        str(tmp_path / "retriever")
    )
    monkeypatch.chdir(tmp_path)
    return cj.load_retriever(Path("retriever"))


def run_example(library):
    """Runs the example of the page that imports a library, and returns what it names."""
    (block,) = [block for block in page_blocks() if re.search(library, block)]
    names = {"cj": cj, "Path": Path}
    exec(compile(block, "docs/python.md", "exec"), names)
    return names


def vectors_of_the_page(retriever):
    return (
        retriever.encode_query("how do birds navigate"),
        retriever.encode_document(["Birds find their way by the sun.", "A recipe."]),
    )


def assert_same(found, expected):
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_langchain_gives_our_vectors(retriever):
    pytest.importorskip("langchain_huggingface", reason="make databases")
    names = run_example("langchain")
    query_D, passages_PxD = vectors_of_the_page(retriever)
    assert_same(names["query_D"], query_D)
    assert_same(names["passages_PxD"], passages_PxD)
    embeddings = names["embeddings"]
    assert_same(embeddings.embed_query(LONG), retriever.encode_query(LONG))
    assert_same(embeddings.embed_documents([LONG]), retriever.encode_document([LONG]))


def test_llama_index_gives_our_vectors(retriever):
    pytest.importorskip("llama_index.embeddings.huggingface", reason="make databases")
    names = run_example("llama_index")
    query_D, passages_PxD = vectors_of_the_page(retriever)
    assert_same(names["query_D"], query_D)
    assert_same(names["passages_PxD"], passages_PxD)
    embedding = names["embedding"]
    assert_same(embedding.get_text_embedding(LONG), retriever.encode_document(LONG))
    # As the page says of long queries.
    assert np.abs(embedding.get_query_embedding(LONG) - retriever.encode_query(LONG)).max() > 1e-3


def test_without_what_the_page_says_the_vectors_are_others(retriever):
    """Otherwise the tests above prove nothing."""
    plain = SentenceTransformer("retriever")
    expected_D = retriever.encode_document(LONG)
    assert np.abs(plain.encode(LONG) - expected_D).max() > 1e-3
    assert np.abs(plain.encode(LONG, prompt_name="document") - expected_D).max() > 1e-3
