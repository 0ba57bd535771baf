"""Batches of training pairs that are hard for each other: adaptive batch scheduling.

With in-batch negatives, the passage p_j of a pair is a negative of the query q_i of each other pair
in its batch. A batch B teaches more the larger its hardness

  h(B) = Σ_{i ≠ j ∈ B} s(q_i, p_j)

(Choi et al., *Adaptive batch scheduling for open-domain question answering*, IEEE Access 2021).
Here s is known for some candidates of each query only, as the current model or BM25 scores them.
From each score the smallest kept score of its query is subtracted, and all others count 0: a
passage outside a list is taken to be as hard as the last one in it.

A plan is an array of pair numbers, one batch a row; every pair occurs at most once.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from cocondenser_jax.errors import UserError
from cocondenser_jax.finetune import batch_search


class Candidates(NamedTuple):
    """The best passages of each query, both by the number of their pair."""

    passages_NxK: np.ndarray  # -1 where a query has fewer than K
    scores_NxK: np.ndarray  # not read where the passage is -1


def pair_scores(candidates: Candidates) -> scipy.sparse.csr_array:
    """Returns the symmetric matrix s(q_i, p_j) + s(q_j, p_i), shifted as above, diagonal empty.

    Raises:
      UserError: for arrays of different shapes, pairs that do not exist, or scores not finite.
    """
    passages_NxK, scores_NxK = candidates
    n = len(passages_NxK)
    if passages_NxK.ndim != 2 or passages_NxK.shape != scores_NxK.shape:
        raise UserError(
            f"candidates and scores must have one shape N x K, not {passages_NxK.shape} and "
            f"{scores_NxK.shape}"
        )
    keep_NxK = passages_NxK >= 0
    if (passages_NxK >= n).any() or (passages_NxK < -1).any():
        raise UserError(f"candidates must be numbers of the {n} pairs, or -1 for none")
    if not np.isfinite(scores_NxK[keep_NxK]).all():
        raise UserError("the scores of candidates must be finite")
    known_NxK = scores_NxK.astype(np.float64)
    smallest_Nx1 = known_NxK.min(axis=1, keepdims=True, where=keep_NxK, initial=np.inf)
    shifted_NxK = np.subtract(known_NxK, smallest_Nx1, out=known_NxK, where=keep_NxK)
    queries_NxK = np.broadcast_to(np.arange(n)[:, None], keep_NxK.shape)
    keep_NxK &= passages_NxK != queries_NxK
    cells = queries_NxK[keep_NxK], passages_NxK[keep_NxK]
    matrix = scipy.sparse.csr_array((shifted_NxK[keep_NxK], cells), shape=(n, n))
    both = scipy.sparse.csr_array(matrix + matrix.T)
    both.eliminate_zeros()
    return both


def false_negatives(queries: Sequence[str], passages: Sequence[str]) -> scipy.sparse.csr_array:
    """Returns which pairs must not meet: the passage of one is relevant to the query of the other.

    Args:
      queries: ids, one a pair.
      passages: ids, one a pair. Relevant is what some pair says, so that pairs of one query or of
        one passage are among the answer.
    """
    _, query_N = np.unique(np.asarray(queries), return_inverse=True)
    _, passage_N = np.unique(np.asarray(passages), return_inverse=True)
    relevant = scipy.sparse.csr_array((np.ones(len(query_N), bool), (query_N, passage_N)))
    answers = relevant[query_N][:, passage_N]
    return scipy.sparse.csr_array(answers + answers.T)


def hardness(batches_MxB: np.ndarray, scores: scipy.sparse.csr_array) -> np.ndarray:
    """Returns h of each batch.

    Args:
      batches_MxB: a plan.
      scores: `pair_scores`, or `scipy.sparse.csr_array(s + s.T)` of a full matrix s.
    """
    batch_N = np.full(scores.shape[0], -1)
    rows_E, columns_E = np.nonzero(batches_MxB >= 0)
    batch_N[batches_MxB[rows_E, columns_E]] = rows_E
    entries = scores.tocoo()
    left_E, right_E = entries.coords
    together_E = (batch_N[left_E] == batch_N[right_E]) & (batch_N[left_E] >= 0) & (left_E < right_E)
    return np.bincount(
        batch_N[left_E[together_E]], entries.data[together_E], minlength=len(batches_MxB)
    )


def left_out(batches_MxB: np.ndarray, n_pairs: int) -> np.ndarray:
    """Returns the pairs that a plan does not use."""
    return np.setdiff1d(np.arange(n_pairs), batches_MxB)


def random_plan(
    n_pairs: int, batch_size: int, *, seed: int, epoch: int = 0, keep_last: bool = False
) -> np.ndarray:
    """Plans batches at random; arguments, result and errors as `hard_plan`'s."""
    if batch_size < 1:
        raise UserError(f"a batch must hold at least one pair, not {batch_size}")
    if n_pairs < batch_size:
        raise UserError(f"{n_pairs} pairs do not fill one batch of {batch_size}")
    order_N = np.random.default_rng((seed, epoch)).permutation(n_pairs)
    if keep_last:
        order_N = np.pad(order_N, (0, -n_pairs % batch_size), constant_values=-1)
    return order_N[: len(order_N) - len(order_N) % batch_size].reshape(-1, batch_size)


def sequential_plan(n_pairs: int, batch_size: int) -> np.ndarray:
    """Plans batches in the order of the pairs; what does not fill a batch is left out."""
    return np.arange(n_pairs - n_pairs % batch_size).reshape(-1, batch_size)


def hard_plan(
    candidates: Candidates,
    batch_size: int,
    *,
    seed: int,
    epoch: int = 0,
    keep_last: bool = False,
    conflicts: scipy.sparse.csr_array | None = None,
    width: int = 1,
    sweeps: int = 5,
) -> np.ndarray:
    """Plans hard batches: beam search grows them, then greedy replacement improves them.

    Beam search fills one batch after the other, from a random pair. Replacement begins with these
    batches, or with random ones: in a sweep, each pair goes to the batch it is hardest with, in
    exchange for the pair least hard there, if Σ h grows. Both together give the hardest batches,
    and to them a wider beam adds next to nothing: benchmarks/schedule.py compares the methods.

    Args:
      candidates: the passages scored for each query.
      batch_size: pairs per batch.
      seed: of the pairs left out and of those that batches grow from.
      epoch: of the same.
      keep_last: whether N mod batch_size pairs make a last batch, filled up with -1. Otherwise as
        many random pairs are left out.
      conflicts: symmetric; pairs that must not meet, as `false_negatives` returns. They meet only
        where no exchange of two pairs makes conflicts fewer. If conflicts are disjoint groups, none
        with more pairs than there are batches, and all batches are full, that means nowhere.
      width: partial batches kept after each step; 1 is greedy growth, 0 begins with random batches.
      sweeps: at most; 0 is beam search alone.

    Returns:
      batches_MxB.

    Raises:
      UserError: for fewer pairs than a batch holds, or candidates or conflicts that do not fit.
    """
    if width < 0 or sweeps < 0:
        raise UserError(f"width={width}, sweeps={sweeps}: expected at least 0")
    n = len(candidates.passages_NxK)
    batches_MxB = random_plan(n, batch_size, seed=seed, epoch=epoch, keep_last=keep_last)
    order_P = batches_MxB[batches_MxB >= 0]
    scores = pair_scores(candidates)
    # Twice what the scores in two batches can add up to, so that no conflict is ever worth them.
    penalty = 2.0 * batch_size**2 * (scores.data.max(initial=0) or 1)
    both = scores if conflicts is None else _penalised(scores, conflicts, penalty)
    matrix = both.indptr, both.indices, both.data
    if width:
        key_N = np.random.default_rng(0).integers(1 << 62, size=n)
        batch_search.grow(matrix, order_P, key_N, width, batches_MxB)
    # Above the rounding of sums.
    batch_search.replace(matrix, order_P, batches_MxB, sweeps, 1e-12 * penalty)
    if conflicts is not None:
        batch_search.part(matrix, order_P, batches_MxB, penalty / 2)
    return batches_MxB


def save_plan(path: Path, batches_MxB: np.ndarray, settings: dict[str, Any]) -> None:
    """Writes a plan, and the settings it was made with, to an .npz file that is whole or absent."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        np.savez(file, batches=batches_MxB, settings=json.dumps(settings))
    os.replace(partial, path)


def load_plan(path: Path, settings: dict[str, Any]) -> np.ndarray:
    """Reads a plan.

    Raises:
      UserError: if the file cannot be read, or its plan was made with other settings.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            batches_MxB, earlier = arrays["batches"], json.loads(str(arrays["settings"]))
    except Exception as error:  # what a damaged archive raises has no end
        raise UserError(f"cannot read the plan {path}: {error}") from error
    if not isinstance(earlier, dict) or batches_MxB.ndim != 2 or batches_MxB.dtype.kind != "i":
        raise UserError(f"{path} is no plan: expected batches of pair numbers, and settings")
    for name in earlier | settings:
        if earlier.get(name) != settings.get(name):
            raise UserError(
                f"{path} was planned with {name}={earlier.get(name)!r}, expected "
                f"{settings.get(name)!r}"
            )
    return batches_MxB


def _penalised(
    scores: scipy.sparse.csr_array, conflicts: scipy.sparse.csr_array, penalty: float
) -> scipy.sparse.csr_array:
    if conflicts.shape != scores.shape:
        raise UserError(f"conflicts must be {scores.shape}, not {conflicts.shape}")
    if (conflicts != conflicts.T).nnz:
        raise UserError("conflicts must be symmetric: two pairs that must not meet, both ways")
    rows_E, columns_E = conflicts.nonzero()
    apart_E = rows_E != columns_E
    cells = rows_E[apart_E], columns_E[apart_E]
    costs = scipy.sparse.csr_array((np.full(len(cells[0]), penalty), cells), scores.shape)
    return scipy.sparse.csr_array(scores - costs)
