"""Makes batches of training pairs with hard in-batch negatives: adaptive batch scheduling.

With in-batch negatives, the passage p_j of a pair is a negative for the query q_i of every other
pair in its batch. The hardness of a batch B is

  h(B) = Σ_{i ≠ j ∈ B} s(q_i, p_j)

(Choi et al., *Adaptive batch scheduling for open-domain question answering*, IEEE Access 2021).
Here s is known only for some candidates of each query, scored by the current model or by BM25. The
lowest candidate score of each query is subtracted from its scores, and all other scores are 0: a
passage outside the list counts as hard as the last candidate.

The batches of an epoch are an array of pair numbers, one batch per row. Each pair occurs at most
once; pairs that do not fill a batch are omitted.

Letters in names of arrays: N pairs, M batches of B pairs, K candidates of a query, J pairs near a
pair, T batches near a pair, E entries of a sparse matrix.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.sparse

from cocondenser_jax.errors import UserError, whole_message
from cocondenser_jax.files.whole import new_file


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
    return both


def false_negatives(
    queries: Sequence[str], passages: Sequence[str | int]
) -> scipy.sparse.csr_array:
    """Returns the pairs that must not share a batch, as false negatives of each other.

    That is, the passage of one is relevant to the query of the other. A passage is relevant to a
    query if they form a pair; so pairs with the same query or passage must not share a batch.

    Args:
      queries: the query id of each pair.
      passages: the passage of each pair, by id or by a key of its text.

    Returns:
      A symmetric boolean matrix, [N, N].
    """
    _, query_N = np.unique(np.asarray(queries), return_inverse=True)
    _, passage_N = np.unique(np.asarray(passages), return_inverse=True)
    relevant = scipy.sparse.csr_array((np.ones(len(query_N), bool), (query_N, passage_N)))
    answers = relevant[query_N][:, passage_N]
    return scipy.sparse.csr_array(answers + answers.T)


def separate(
    scores: scipy.sparse.csr_array, batch_size: int, conflicts: scipy.sparse.csr_array | None
) -> tuple[scipy.sparse.csr_array, float]:
    """Lowers the scores of conflicting pairs by more than any batch's hardness.

    Returns:
      The scores, and the smallest increase of hardness that exceeds rounding errors.
    """
    penalty = batch_size**2 * (scores.data.max(initial=0) or 1)
    if conflicts is not None:
        above = scipy.sparse.triu(conflicts, 1)  # without the diagonal
        scores = scipy.sparse.csr_array(scores - penalty * (above + above.T))
    return scores, 1e-12 * penalty


def greedy_batches(
    candidates: scipy.sparse.csr_array,
    batch_size: int,
    *,
    seed: int,
    epoch: int = 0,
    conflicts: scipy.sparse.csr_array | None = None,
) -> np.ndarray:
    """Makes hard batches, one after the other, by the greedy algorithm of Choi et al.

    A batch B starts with random unused pairs. While this increases its hardness, its pair d_r is
    replaced by the unused pair d_a:

      d_r = argmax_{d ∈ B} h(B − d),   d_a = argmax_{d ∉ B} h(B − d_r + d).

    Args:
      candidates: [N, N], the scores of each query's best passages, numbered like the pairs.
      batch_size: B, pairs per batch.
      seed: determines the random order, together with `epoch`.
      epoch: from 0.
      conflicts: the result of `false_negatives`. A replacement that leaves fewer conflicts always
        counts as harder. Some conflicts may remain, mostly in the last batches; `InBatchLoss`
        excludes relevant passages from the negatives anyway.

    Returns:
      batches_MxB.
    """
    scores, least_gain = separate(pair_scores(candidates), batch_size, conflicts)

    def add(sums_N: np.ndarray, pair: int, sign: int) -> None:
        row = slice(scores.indptr[pair], scores.indptr[pair + 1])
        sums_N[scores.indices[row]] += sign * scores.data[row]

    n_pairs = len(scores.indptr) - 1
    order_N = np.random.default_rng((seed, epoch)).permutation(n_pairs)
    mask_N = np.zeros(n_pairs)  # −inf for the pairs in a batch
    batches_MxB = np.empty((n_pairs // batch_size, batch_size), int)
    for batch_B in batches_MxB:
        batch_B[:] = order_N[mask_N[order_N] == 0][:batch_size]
        mask_N[batch_B] = -np.inf
        to_batch_N = scores[batch_B].sum(axis=0)  # of each pair with the batch
        while True:
            place = to_batch_N[batch_B].argmin()
            least = to_batch_N[batch_B[place]]
            add(to_batch_N, batch_B[place], -1)
            left_N = to_batch_N + mask_N
            best = left_N.argmax()
            if left_N[best] <= least + least_gain:
                break
            add(to_batch_N, best, 1)
            mask_N[batch_B[place]] = 0
            mask_N[best] = -np.inf
            batch_B[place] = best
    return batches_MxB


def save_batches(path: Path, batches_MxB: np.ndarray) -> None:
    """Writes the batches of an epoch to an .npz file atomically."""
    with new_file(path) as partial, partial.open("wb") as file:
        np.savez(file, batches=batches_MxB)


def load_batches(path: Path) -> np.ndarray:
    """Reads the batches of an epoch, batches_MxB."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            batches_MxB: np.ndarray = arrays["batches"]
    except Exception as error:  # a damaged archive may raise anything
        raise UserError(
            f"cannot read the batches in {path}, delete it to make them again: "
            f"{whole_message(error)}"
        ) from error
    if batches_MxB.ndim != 2 or batches_MxB.dtype.kind != "i":
        raise UserError(f"{path} holds no batches: expected rows of pair numbers")
    return batches_MxB
