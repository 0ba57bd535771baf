"""Vectors with NaN or infinity: no search finds them, so none is written.

A vector counts as finite if its squared length is a finite number in float32. The inner products of
such vectors are finite too, by the inequality of Cauchy and Schwarz.
"""

from typing import Any

import numpy as np

from cocondenser_jax.errors import UserError


def broken_rows(vectors_NxD: np.ndarray) -> np.ndarray:
    """Returns the numbers of the rows that are not finite."""
    numbers_NxD = np.asarray(vectors_NxD, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.flatnonzero(~np.isfinite(np.einsum("nd,nd->n", numbers_NxD, numbers_NxD)))


def require_finite(vectors_NxD: np.ndarray, what: str, names: Any, reason: str) -> None:
    """Raises a UserError that names the first vector that is not finite.

    Args:
      vectors_NxD: any vectors.
      what: has vectors, such as "passage".
      names: of the rows: a sequence, or a column of a table.
      reason: what may have caused it, and what to do.
    """
    rows = broken_rows(vectors_NxD)
    if len(rows):
        raise UserError(
            f"{len(rows)} of {len(vectors_NxD)} vectors are not finite, first that of {what}"
            f" {names[int(rows[0])]}: {reason}"
        )
