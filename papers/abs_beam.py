"""Fine-tune with batches made by the beam search of the study of adaptive batches.

python -m papers.abs_beam --config=configs/finetune.py:adaptive --workdir=runs/beam ...

takes the flags of `cocondenser finetune`. Hard batches are made by `beam_batches` instead of the
package's `greedy_batches`: on random clustered pairs that takes eight times as
long, and batches are at most 1 % harder.
"""

import sys
from collections.abc import Sequence
from unittest.mock import patch

import numpy as np
import scipy.sparse

from cocondenser_jax import cli
from cocondenser_jax.retriever.train import samplers
from cocondenser_jax.retriever.train.hard_batches import pair_scores, separate

BEAM = 3  # k of the study's code; the report names none


def beam_batches(
    candidates: scipy.sparse.csr_array,
    batch_size: int,
    *,
    seed: int,
    epoch: int = 0,
    conflicts: scipy.sparse.csr_array | None = None,
) -> np.ndarray:
    """Makes hard batches, one after the other, by the study's beam search (its section 3.2).

    A batch B starts with random unused pairs. While this increases its hardness, a pair d_r is
    replaced by an unused pair d_a. Candidates are the k pairs d_r with the largest h(B − d_r), and
    for each of them the k pairs d_a with the largest h(B − d_r + d_a); the hardest B is chosen.

    As in the study, d_a is among the best passages of the queries in B, `candidates`, 100 of each
    query by `data.batch_depth`, or its query is near a passage in B: here, has that passage among
    its best; the study takes the 100 best queries of each passage.

    Args:
      candidates: see `hard_batches.greedy_batches`, also for the other arguments.
      batch_size: pairs per batch.
      seed: determines the random order, together with `epoch`.
      epoch: from 0.
      conflicts: pairs that should not share a batch.

    Returns:
      batches_MxB.
    """
    scores, least_gain = separate(pair_scores(candidates), batch_size, conflicts)
    n_pairs = candidates.shape[0]
    order_N = np.random.default_rng((seed, epoch)).permutation(n_pairs)
    is_left_N = np.ones(n_pairs, bool)
    batches_MxB = np.empty((n_pairs // batch_size, batch_size), int)
    for batch_B in batches_MxB:
        batch_B[:] = order_N[is_left_N[order_N]][:batch_size]
        while _make_harder(batch_B, scores, is_left_N, least_gain):
            pass
        is_left_N[batch_B] = False
    return batches_MxB


def _make_harder(
    batch_B: np.ndarray, scores: scipy.sparse.csr_array, is_left_N: np.ndarray, least_gain: float
) -> bool:
    """Replaces a pair of a batch; returns whether its hardness increased by over `least_gain`."""
    rows_BxN = scores[batch_B]
    contribution_B = rows_BxN[:, batch_B].sum(axis=1)  # what h(B) loses without a pair
    near_C = np.setdiff1d(rows_BxN.indices, batch_B)
    near_C = near_C[is_left_N[near_C]]
    if not len(near_C):
        return False
    with_pair_BxC = rows_BxN[:, near_C].toarray()
    removed_K = np.argsort(contribution_B, kind="stable")[:BEAM]
    # Of the k pairs d_a for a d_r, only the first can be the hardest of all.
    gain_KxC = (
        with_pair_BxC.sum(axis=0) - with_pair_BxC[removed_K] - contribution_B[removed_K, None]
    )
    place, best = np.unravel_index(gain_KxC.argmax(), gain_KxC.shape)
    if gain_KxC[place, best] <= least_gain:
        return False
    batch_B[removed_K[place]] = near_C[best]
    return True


def main(argv: Sequence[str]) -> int:
    """Runs `cocondenser finetune` with these batches."""
    with patch.object(samplers, "greedy_batches", beam_batches):
        return cli.main(["finetune", *argv])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
