"""Vectors of the model that searches, beside those of a program that is right, or nearly so."""

import numpy as np
import pytest
import torch

from cocondenser_jax.corpus.same_tokens import TEXTS
from cocondenser_jax.errors import UserError
from cocondenser_jax.representation import Given
from cocondenser_jax.retriever.search.models import load_retriever
from cocondenser_jax.retriever.search.same_vectors import require_same_vectors


@pytest.mark.parametrize(
    ("row", "error", "is_refused"),
    [(0, 0.0, False), (1, 5e-5, False), (2, 2e-4, True), (5, -2e-4, True), (3, np.nan, True)],
)
def test_vectors_that_are_apart_by_more_than_rounding_are_refused(
    model_folder, row, error, is_refused
):
    model = load_retriever(model_folder, given=Given("mean", "dot"))
    expected_BxD = model.encode([*TEXTS])

    def encode(ids_BxL, mask_BxL):
        assert mask_BxL.any(axis=1).all()
        assert ids_BxL.shape == (len(TEXTS), 64)  # the longest text is as long as the model reads
        assert (np.diff(mask_BxL.astype(int), axis=1) <= 0).all()  # padded at the end
        features = {"input_ids": torch.tensor(ids_BxL), "attention_mask": torch.tensor(mask_BxL)}
        with torch.inference_mode():
            found_BxD = model(features)["sentence_embedding"].numpy().copy()
        found_BxD[row] *= 1 + error
        return found_BxD

    np.testing.assert_array_less(0.1, np.linalg.norm(expected_BxD, axis=1))
    if not is_refused:
        require_same_vectors(model_folder, model, model.tokenizer, encode, "elsewhere")
        return
    text = TEXTS[row][:40]
    with pytest.raises(UserError, match="makes other vectors elsewhere than it is searched") as e:
        require_same_vectors(model_folder, model, model.tokenizer, encode, "elsewhere")
    assert repr(text) in str(e.value)
