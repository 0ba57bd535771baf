"""Compares the vectors that a model makes where it searches with those that a program makes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cocondenser_jax.corpus.same_tokens import TEXTS
from cocondenser_jax.errors import UserError

# Of a vector's length: how far two programs may be apart. Rounding gives 1e-6 or so; the other
# formula of GELU gives 1e-3.
TOLERANCE = 1e-4
_LONGEST = 96  # tokens: more than ModernBERT's local attention sees

# From token ids and attention mask, both BxL and padded at the end, to vectors_BxD.
EncodeRows = Callable[[np.ndarray, np.ndarray], np.ndarray]


def require_same_vectors(
    folder: Path, model: torch.nn.Module, tokenizer: Any, encode: EncodeRows, program: str
) -> None:
    """Raises a UserError where a program makes other vectors than the model that searches.

    Args:
      folder: of the model, for the message.
      model: maps features to a `sentence_embedding`, as sentence-transformers' modules do.
      tokenizer: transformers' of the model, which pads as it is set to.
      encode: the program, in float32.
      program: what the message calls it.
    """
    longest = min(tokenizer.model_max_length or _LONGEST, _LONGEST)
    features = tokenizer(
        [*TEXTS], padding=True, truncation=True, max_length=longest, return_tensors="pt"
    )
    device = next(model.parameters()).device
    with torch.inference_mode():
        moved = {name: value.to(device) for name, value in features.items()}
        expected_BxD = model(moved)["sentence_embedding"].float().cpu().numpy()
    ids_BxL, mask_BxL = features["input_ids"].numpy(), features["attention_mask"].numpy() > 0
    order_BxL = np.argsort(~mask_BxL, axis=1, kind="stable")  # padding comes last
    found_BxD = encode(
        np.take_along_axis(ids_BxL, order_BxL, axis=1),
        np.take_along_axis(mask_BxL, order_BxL, axis=1),
    )
    lengths_B = np.linalg.norm(expected_BxD, axis=1)
    differences_B = np.linalg.norm(found_BxD - expected_BxD, axis=1) / np.maximum(lengths_B, 1e-12)
    worst = int(np.argmax(differences_B))
    if not (differences_B <= TOLERANCE).all():
        raise UserError(
            f"{folder} makes other vectors {program} than it is searched with: of"
            f" {TEXTS[worst][:40]!r} they are {differences_B[worst]:.1e} of their length apart,"
            f" where rounding gives less than {TOLERANCE:g}"
        )
