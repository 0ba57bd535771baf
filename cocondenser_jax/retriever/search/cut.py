"""Vectors that are cut: their first numbers alone, as Matryoshka representations are used.

sentence-transformers (6.2.0) cuts what `encode` returns, after all modules: the vectors of a cosine
model then have lengths below 1, and inner products are no cosines. Here they get length 1 again.
"""

import torch
from sentence_transformers import SentenceTransformer


def cut_vectors(
    vectors_NxD: torch.Tensor, size: int | None, similarity: str | None
) -> torch.Tensor:
    """Returns the first `size` numbers of vectors (None: all), of length 1 for a cosine."""
    vectors_NxE = vectors_NxD[:, :size]
    if similarity == "cosine":
        return torch.nn.functional.normalize(vectors_NxE, dim=1)
    return vectors_NxE


def cut_output(
    model: SentenceTransformer, inputs: object, features: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Cuts the vectors of a forward pass to the model's `truncate_dim`; to be hooked to it."""
    vectors_NxE = cut_vectors(
        features["sentence_embedding"], model.truncate_dim, model.similarity_fn_name
    )
    return features | {"sentence_embedding": vectors_NxE}
