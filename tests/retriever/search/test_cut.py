"""Vectors that are cut, beside sentence-transformers: what a search of whole embeddings finds."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.data.folder import passage_text, read_corpus, read_queries
from cocondenser_jax.retriever.search.cut import cut_vectors
from cocondenser_jax.retriever.search.encode import Encoding, encode_corpus
from cocondenser_jax.retriever.search.opening import open_cut
from cocondenser_jax.retriever.search.search import search_run
from tests.world import write_retriever


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_the_first_numbers_of_embeddings_are_those_of_the_library(
    model_folder, beir, tmp_path, similarity
):
    folder = write_retriever(
        model_folder, tmp_path / "model", "mean", similarity_fn_name=similarity
    )
    encode_corpus(Encoding(folder, precision="float32"), beir, tmp_path / "out", shard_size=25)
    queries = read_queries(beir)
    run = search_run(open_cut(tmp_path / "out", folder, 5), queries)

    library = SentenceTransformer(str(folder), truncate_dim=5)
    passages = {passage.id: passage_text(passage) for passage in read_corpus(beir)}
    scores = library.similarity(
        library.encode_query([*queries.values()]), library.encode_document([*passages.values()])
    )
    for query, scores_P in zip(queries, scores.tolist(), strict=True):
        assert run[query].keys() == passages.keys()
        for passage, score in zip(passages, scores_P, strict=True):
            assert run[query][passage] == pytest.approx(score, abs=1e-5)


def test_the_vectors_of_another_model_are_not_cut(model_folder, make_model, beir, tmp_path):
    encode_corpus(Encoding(model_folder), beir, tmp_path / "out")
    other = make_model(seed=1)
    with pytest.raises(UserError, match=r"out was built with another model .* than "):
        open_cut(tmp_path / "out", other, 5)


@pytest.mark.parametrize(("similarity", "norms"), [("cosine", [1.0, 1.0]), ("dot", [5.0, 2.0])])
def test_a_cut_vector_has_length_one_for_a_cosine_alone(model_folder, similarity, norms):
    model = SentenceTransformer(str(model_folder), similarity_fn_name=similarity)
    vectors_NxD = torch.tensor([[3.0, 4.0, 12.0], [0.0, 2.0, 1.0]])
    found = cut_vectors(vectors_NxD, 2, model.similarity_fn_name).norm(dim=1)
    np.testing.assert_allclose(found, norms, rtol=1e-6)
