"""Refuses vectors with NaN or infinity, which no search could find.

A vector counts as finite if its squared length is finite in float32. By the Cauchy-Schwarz
inequality, inner products of such vectors are finite, too.
"""

from typing import Any

import numpy as np

from cocondenser_jax.errors import UserError


def broken_rows(vectors_NxD: np.ndarray) -> np.ndarray:
    """Returns the indices of rows that are not finite."""
    numbers_NxD = np.asarray(vectors_NxD, np.float32)
    return np.flatnonzero(~np.isfinite(np.einsum("nd,nd->n", numbers_NxD, numbers_NxD)))


def require_finite(vectors_NxD: np.ndarray, what: str, names: Any, reason: str) -> None:
    """Raises a UserError that names the first vector that is not finite.

    Args:
      vectors_NxD: the vectors.
      what: the kind of rows, such as "passage", for the message.
      names: the rows' names: a sequence, or a column of a table.
      reason: the likely cause and remedy, for the message.
    """
    rows = broken_rows(vectors_NxD)
    if len(rows):
        raise UserError(
            f"{len(rows)} of {len(vectors_NxD)} vectors are not finite, first that of {what}"
            f" {names[int(rows[0])]}: {reason}"
        )
