"""A projection is a matrix that everyone applies."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from cocondenser_jax.representation import AS_IN_PAPERS
from cocondenser_jax.retriever.search.models import load_retriever
from papers import project
from tests.world import WORDS

TEXTS = [" ".join(WORDS[:4]), " ".join(WORDS[2:9])]


@pytest.mark.parametrize("two_towers", [False, True])
def test_vectors_are_multiplied_by_a_matrix(model_folder, tmp_path, two_towers):
    before = torch.random.get_rng_state()
    words = [f"--model={model_folder}", "--size=5", "--seed=3", f"--out={tmp_path / 'a'}"]
    project.main(words)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(3)
    matrix = torch.nn.Linear(32, 5, bias=False).weight.detach().numpy()
    hidden = load_retriever(model_folder, plain=AS_IN_PAPERS).encode_document(TEXTS)
    loaded = load_retriever(tmp_path / "a", two_towers=two_towers)
    for again in (loaded, SentenceTransformer(str(tmp_path / "a"))):
        for encode in (again.encode_document, again.encode_query):
            np.testing.assert_allclose(encode(TEXTS), hidden @ matrix.T, atol=2e-6)
        assert again.get_embedding_dimension() == 5
