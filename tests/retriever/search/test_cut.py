"""Vectors that are cut, beside sentence-transformers: what a search of whole embeddings finds."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from cocondenser_jax.retriever.search.cut import cut_vectors


@pytest.mark.parametrize(("similarity", "norms"), [("cosine", [1.0, 1.0]), ("dot", [5.0, 2.0])])
def test_a_cut_vector_has_length_one_for_a_cosine_alone(model_folder, similarity, norms):
    model = SentenceTransformer(str(model_folder), similarity_fn_name=similarity)
    vectors_NxD = torch.tensor([[3.0, 4.0, 12.0], [0.0, 2.0, 1.0]])
    found = cut_vectors(vectors_NxD, 2, model.similarity_fn_name).norm(dim=1)
    np.testing.assert_allclose(found, norms, rtol=1e-6)
