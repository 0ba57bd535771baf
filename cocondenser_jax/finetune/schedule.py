"""Batches of training pairs that are hard for each other: adaptive batch scheduling.

With in-batch negatives, the passage p_j of a pair is a negative of the query q_i of each other pair
in its batch. A batch B teaches more the larger its hardness

  h(B) = Σ_{i ≠ j ∈ B} s(q_i, p_j)

(Choi et al., *Adaptive batch scheduling for open-domain question answering*, IEEE Access 2021).
Here s is known for some candidates of each query only, as the current model or BM25 scores them.
From each score the smallest kept score of its query is subtracted, and all others count 0: a
passage outside a list is taken to be as hard as the last one in it.

A plan is an array of pair numbers, one batch a row; every pair occurs at most once, and those that
do not fill a batch are left out.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.sparse
from numba import njit

from cocondenser_jax.errors import UserError, first_line
from cocondenser_jax.storage.files import new_file

# indptr, indices and values of a scipy.sparse.csr_array.
_Matrix = tuple[np.ndarray, np.ndarray, np.ndarray]


def pair_scores(candidates: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """Returns the symmetric matrix s(q_i, p_j) + s(q_j, p_i), shifted as above, diagonal empty."""
    if not np.isfinite(candidates.data).all():
        raise UserError("the scores of candidates must be finite")
    query_E = candidates.tocoo().row
    smallest_N = np.full(candidates.shape[0], np.inf)
    np.minimum.at(smallest_N, query_E, candidates.data)
    matrix = candidates.astype(np.float64)
    matrix.data -= smallest_N[query_E]
    matrix.data[query_E == matrix.indices] = 0.0
    both = scipy.sparse.csr_array(matrix + matrix.T)
    both.eliminate_zeros()
    both.sort_indices()  # the order in which `_exchange` adds
    return both


def false_negatives(queries: Sequence[str], passages: Sequence[str]) -> scipy.sparse.csr_array:
    """Returns which pairs must not meet: the passage of one is relevant to the query of the other.

    A passage is relevant to a query if they are a pair, so two pairs of one query, or of one
    passage, must not meet either. `queries` and `passages` are ids, one per pair.
    """
    _, query_N = np.unique(np.asarray(queries), return_inverse=True)
    _, passage_N = np.unique(np.asarray(passages), return_inverse=True)
    relevant = scipy.sparse.csr_array((np.ones(len(query_N), bool), (query_N, passage_N)))
    answers = relevant[query_N][:, passage_N]
    return scipy.sparse.csr_array(answers + answers.T)


def random_plan(n_pairs: int, batch_size: int, seed: int, epoch: int = 0) -> np.ndarray:
    """Plans batches at random, by seed and epoch."""
    order_N = np.random.default_rng((seed, epoch)).permutation(n_pairs)
    return order_N[: n_pairs - n_pairs % batch_size].reshape(-1, batch_size)


def sequential_plan(n_pairs: int, batch_size: int) -> np.ndarray:
    """Plans batches in the order of the pairs."""
    return np.arange(n_pairs - n_pairs % batch_size).reshape(-1, batch_size)


def hard_plan(
    candidates: scipy.sparse.csr_array,
    batch_size: int,
    *,
    seed: int,
    epoch: int = 0,
    conflicts: scipy.sparse.csr_array | None = None,
    sweeps: int = 5,
) -> np.ndarray:
    """Plans hard batches: greedy exchanges improve a random plan.

    In a sweep, each pair is exchanged for the pair that raises Σ h most, of those in the batches
    that it has scores with. Of 100,000 pairs in batches of 64, that gives 606 times a random plan's
    Σ h; batches grown by beam search first had 547 times (benchmarks/README.md).

    Args:
      candidates: [N, N], the scores of the best passages of each query, numbered as their pairs.
      batch_size: pairs per batch.
      seed: of the random plan, like `epoch`.
      epoch: from 0.
      conflicts: symmetric; pairs that must not meet, as `false_negatives` returns. They meet only
        where no exchange of two pairs leaves fewer conflicts. If conflicts are disjoint groups,
        none with more pairs than there are batches, and no pair is left out, they never meet.
      sweeps: at most; a sweep without an exchange is the last. Conflicts are removed in any case.

    Returns:
      batches_MxB.

    Raises:
      UserError: for scores that are not finite.
    """
    batches_MxB = random_plan(candidates.shape[0], batch_size, seed=seed, epoch=epoch)
    scores = pair_scores(candidates)
    # Twice what the scores in two batches can add up to, so that no conflict is ever worth them.
    penalty = 2.0 * batch_size**2 * (scores.data.max(initial=0) or 1)
    if conflicts is not None:
        above = scipy.sparse.triu(conflicts, 1)  # without the diagonal
        scores = scipy.sparse.csr_array(scores - penalty * (above + above.T))
    _exchange((scores.indptr, scores.indices, scores.data), batches_MxB, sweeps, penalty)
    return batches_MxB


def save_plan(path: Path, batches_MxB: np.ndarray) -> None:
    """Writes a plan to an .npz file that is whole or absent."""
    with new_file(path) as partial, partial.open("wb") as file:
        np.savez(file, batches=batches_MxB)


def load_plan(path: Path) -> np.ndarray:
    """Reads a plan, batches_MxB."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            batches_MxB: np.ndarray = arrays["batches"]
    except Exception as error:  # what a damaged archive raises has no end
        raise UserError(f"cannot read the plan {path}: {first_line(error)}") from error
    if batches_MxB.ndim != 2 or batches_MxB.dtype.kind != "i":
        raise UserError(f"{path} is not a plan: expected batches of pair numbers")
    return batches_MxB


@njit(cache=True)
def _exchange(matrix: _Matrix, batches_MxB: np.ndarray, sweeps: int, penalty: float) -> None:
    """Exchanges pairs of a plan, in place, for as long as that raises Σ h.

    `matrix` is what two pairs add to Σ h by sharing a batch: their scores, less `penalty` if they
    conflict. It is symmetric, the diagonal empty.

    After `sweeps` sweeps only pairs in conflict are visited. They are exchanged for any pair if
    none in the batches that they have scores with helps: an exchange that leaves fewer conflicts
    takes one of its two pairs out of a conflict, so trying these with all others is enough.
    """
    n_pairs = len(matrix[0]) - 1
    n_batches = len(batches_MxB)
    batch_N = np.full(n_pairs, n_batches)  # that of the pairs left out
    own_N = np.zeros(n_pairs)  # the scores of a pair with the others in its batch
    for b in range(n_batches):
        for i in batches_MxB[b]:
            _move(matrix, batch_N, own_N, i, b)
    to_batch_M = np.zeros(n_batches + 1)  # the scores of the pair visited with each batch
    with_batch_N = np.zeros(n_pairs)  # the scores of each pair with the batch visited
    sweep = 0
    exchanged = True
    while exchanged:
        exchanged = False
        for b in range(n_batches):
            for i in batches_MxB[b]:
                near_J, score_J = _row(matrix, i)
                with_batch_N[near_J] += score_J
            for place in range(batches_MxB.shape[1]):
                i = batches_MxB[b, place]
                in_conflict = own_N[i] < -penalty / 2
                if sweep >= sweeps and not in_conflict:
                    continue
                near_J, score_J = _row(matrix, i)
                for j, score in zip(near_J, score_J):  # noqa: B905
                    to_batch_M[batch_N[j]] += score
                # Two pairs that change places lose what they add to each other's new batch.
                with_batch_N[near_J] -= 2 * score_J
                to_batch_M[b] = to_batch_M[n_batches] = -np.inf
                scores = to_batch_M, with_batch_N, own_N
                least = own_N[i] + 1e-12 * penalty  # above the rounding of sums
                y = _best_partner(batches_MxB, batch_N[near_J], scores, least)
                if y < 0 and in_conflict:
                    y = _best_partner(batches_MxB, np.arange(n_batches), scores, least)
                to_batch_M[:] = 0.0
                with_batch_N[near_J] += 2 * score_J
                if y >= 0:
                    batches_MxB[b, place] = y
                    target = batch_N[y]
                    batches_MxB[target][batches_MxB[target] == y] = i
                    _move(matrix, batch_N, own_N, i, target)
                    _move(matrix, batch_N, own_N, y, b)
                    with_batch_N[near_J] -= score_J
                    near_J, score_J = _row(matrix, y)
                    with_batch_N[near_J] += score_J
                    exchanged = True
            for i in batches_MxB[b]:
                with_batch_N[_row(matrix, i)[0]] = 0.0
        sweep += 1


@njit(cache=True)
def _best_partner(
    batches_MxB: np.ndarray,
    targets_T: np.ndarray,
    scores: tuple[np.ndarray, np.ndarray, np.ndarray],
    least: float,
) -> int:
    """Returns the pair of the target batches to exchange for; -1 if none adds more than `least`.

    The targets' places in `to_batch_M` become −inf, which marks a batch as done.
    """
    to_batch_M, with_batch_N, own_N = scores
    best = least
    partner = -1
    for target in targets_T:
        if to_batch_M[target] > -np.inf:
            for y in batches_MxB[target]:
                gain = to_batch_M[target] + with_batch_N[y] - own_N[y]
                if gain > best:
                    best = gain
                    partner = y
            to_batch_M[target] = -np.inf
    return partner


@njit(cache=True)
def _move(matrix: _Matrix, batch_N: np.ndarray, own_N: np.ndarray, pair: int, target: int) -> None:
    own = batch_N[pair]
    own_N[pair] = 0.0
    for j, score in zip(*_row(matrix, pair)):  # noqa: B905
        if batch_N[j] == own:
            own_N[j] -= score
        elif batch_N[j] == target:
            own_N[j] += score
            own_N[pair] += score
    batch_N[pair] = target


@njit(cache=True)
def _row(matrix: _Matrix, pair: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the pairs that a pair has scores with, and the scores."""
    indptr, indices, values = matrix
    row = slice(indptr[pair], indptr[pair + 1])
    return indices[row], values[row]
