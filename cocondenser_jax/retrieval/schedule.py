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

import concurrent.futures
import hashlib
import multiprocessing
import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from numba import njit

from cocondenser_jax.errors import UserError


class Candidates(NamedTuple):
    """The best passages of each query, both by the number of their pair."""

    passages_NxK: np.ndarray  # -1 where a query has fewer than K
    scores_NxK: np.ndarray  # not read where the passage is -1


def reverse(candidates: Candidates, depth: int) -> Candidates:
    """Returns the best queries of each passage, among those that have it as a candidate."""
    pairs_N = np.arange(len(candidates.passages_NxK))
    keep_NxK = candidates.passages_NxK >= 0
    queries_E = np.broadcast_to(pairs_N[:, None], keep_NxK.shape)[keep_NxK]
    passages_E, scores_E = candidates.passages_NxK[keep_NxK], candidates.scores_NxK[keep_NxK]
    order_E = np.lexsort((queries_E, -scores_E, passages_E))
    passages_E = passages_E[order_E]
    rank_E = np.arange(len(passages_E)) - np.searchsorted(passages_E, passages_E)
    best_E = rank_E < depth
    queries_NxK = np.full((len(pairs_N), depth), -1)
    scores_NxK = np.zeros((len(pairs_N), depth), candidates.scores_NxK.dtype)
    cells = passages_E[best_E], rank_E[best_E]
    queries_NxK[cells] = queries_E[order_E][best_E]
    scores_NxK[cells] = scores_E[order_E][best_E]
    return Candidates(queries_NxK, scores_NxK)


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
    known_NxK = np.where(keep_NxK, scores_NxK, np.inf).astype(np.float64)
    smallest_Nx1 = known_NxK.min(axis=1, keepdims=True, initial=np.inf)
    queries_NxK = np.broadcast_to(np.arange(n)[:, None], keep_NxK.shape)
    keep_NxK = keep_NxK & (passages_NxK != queries_NxK)
    shifted_E = (known_NxK - np.where(np.isfinite(smallest_Nx1), smallest_Nx1, 0))[keep_NxK]
    cells = queries_NxK[keep_NxK], passages_NxK[keep_NxK]
    matrix = scipy.sparse.csr_array((shifted_E, cells), shape=(n, n))
    both = scipy.sparse.csr_array(matrix + matrix.T)
    both.eliminate_zeros()
    return both


def same_text(queries: Sequence[str], passages: Sequence[str]) -> scipy.sparse.csr_array:
    """Returns which pairs share their query or their passage: `conflicts` of the planners."""
    total = scipy.sparse.csr_array((len(queries), len(queries)), dtype=bool)
    for names in (queries, passages):
        _, group_N = np.unique(np.asarray(names), return_inverse=True)
        member = scipy.sparse.csr_array((np.ones(len(names)), (np.arange(len(names)), group_N)))
        total = total + (member @ member.T).astype(bool)
    return scipy.sparse.csr_array(total)


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


def sequential_plan(
    candidates: Candidates, batch_size: int, *, seed: int, epoch: int = 0, keep_last: bool = False
) -> np.ndarray:
    """Plans batches in the order of the pairs; arguments and result as `beam_plan`'s."""
    order_P, _ = _pool(len(candidates.passages_NxK), batch_size, seed, epoch, keep_last)
    return _rows(np.sort(order_P), batch_size)


def random_plan(
    candidates: Candidates, batch_size: int, *, seed: int, epoch: int = 0, keep_last: bool = False
) -> np.ndarray:
    """Plans batches at random; arguments and result as `beam_plan`'s."""
    order_P, _ = _pool(len(candidates.passages_NxK), batch_size, seed, epoch, keep_last)
    return _rows(order_P, batch_size)


def beam_plan(
    candidates: Candidates,
    batch_size: int,
    *,
    seed: int,
    epoch: int = 0,
    keep_last: bool = False,
    conflicts: scipy.sparse.csr_array | None = None,
    width: int = 1,
) -> np.ndarray:
    """Grows one batch after the other from a random pair, by beam search for the largest h.

    Args:
      candidates: the passages scored for each query.
      batch_size: pairs per batch.
      seed: of the pairs left out and of those that batches grow from.
      epoch: of the same.
      keep_last: whether N mod batch_size pairs make a last batch, filled up with -1. Otherwise as
        many random pairs are left out.
      conflicts: symmetric; pairs that must not meet, because one's passage answers the other's
        query. They meet only where no swap of two pairs can part them.
      width: partial batches kept after each step; 1 is greedy growth.

    Returns:
      batches_MxB.

    Raises:
      UserError: for fewer pairs than a batch holds, or candidates that do not fit.
    """
    if width < 1:
        raise UserError(f"the beam must be at least 1 wide, not {width}")
    n = len(candidates.passages_NxK)
    order_P, rng = _pool(n, batch_size, seed, epoch, keep_last)
    matrix = _penalised(pair_scores(candidates), conflicts, batch_size)
    batches_MxB = _rows(np.full(len(order_P), -1), batch_size)
    arrays = matrix.indptr, matrix.indices, matrix.data
    _grow_all(*arrays, order_P, rng.integers(1 << 62, size=n), width, batches_MxB)
    _swap(*arrays, batches_MxB, order_P, only_conflicts=True)
    return batches_MxB


def replacement_plan(
    candidates: Candidates,
    batch_size: int,
    *,
    seed: int,
    epoch: int = 0,
    keep_last: bool = False,
    conflicts: scipy.sparse.csr_array | None = None,
    sweeps: int = 3,
) -> np.ndarray:
    """Begins with random batches and swaps pairs between two of them while Σ h grows.

    In each sweep every pair may move to the batch that it is hardest with, in exchange for the
    pair there that makes the sum largest. Arguments and result as `beam_plan`'s; it ends after
    `sweeps` sweeps or when one finds no swap.
    """
    order_P, _ = _pool(len(candidates.passages_NxK), batch_size, seed, epoch, keep_last)
    matrix = _penalised(pair_scores(candidates), conflicts, batch_size)
    batches_MxB = _rows(order_P, batch_size)
    arrays = matrix.indptr, matrix.indices, matrix.data
    for _ in range(sweeps):
        if not _swap(*arrays, batches_MxB, order_P, only_conflicts=False):
            break
    _swap(*arrays, batches_MxB, order_P, only_conflicts=True)
    return batches_MxB


def plan_in_background(
    planner: Callable[..., np.ndarray], candidates: Candidates, batch_size: int, **options: Any
) -> concurrent.futures.Future[np.ndarray]:
    """Calls a planner in a process of its own and returns the future of its plan."""
    # Spawned, because a forked child would inherit the locks of torch's threads.
    context = multiprocessing.get_context("spawn")
    with_one = concurrent.futures.ProcessPoolExecutor(1, mp_context=context)
    future = with_one.submit(planner, candidates, batch_size, **options)
    with_one.shutdown(wait=False)
    return future


def save_plan(
    path: Path, batches_MxB: np.ndarray, candidates: Candidates, *, seed: int, epoch: int
) -> None:
    """Writes a plan, and what it was made for, to an .npz file that is whole or absent."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        np.savez(
            file, batches=batches_MxB, made_for=_made_for(candidates, batches_MxB, seed, epoch)
        )
    os.replace(partial, path)


def load_plan(
    path: Path, candidates: Candidates, batch_size: int, *, seed: int, epoch: int
) -> np.ndarray:
    """Reads a plan.

    Raises:
      UserError: if the file cannot be read, or was made for other candidates, another batch size,
        seed or epoch.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            batches_MxB, made_for = arrays["batches"], arrays["made_for"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"cannot read the plan {path}: {error}") from error
    wanted = _made_for(candidates, np.empty((0, batch_size)), seed, epoch)
    for name, has, wants in zip(
        ("batch size", "seed", "epoch", "candidates"), made_for, wanted, strict=True
    ):
        if has != wants:
            raise UserError(f"{path} was planned for {name} {has[:12]}, expected {wants[:12]}")
    return batches_MxB


def _made_for(candidates: Candidates, batches_MxB: np.ndarray, seed: int, epoch: int) -> np.ndarray:
    digest = hashlib.sha256()
    for array in candidates:
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return np.array([str(batches_MxB.shape[1]), str(seed), str(epoch), digest.hexdigest()])


def _pool(
    n: int, batch_size: int, seed: int, epoch: int, keep_last: bool
) -> tuple[np.ndarray, np.random.Generator]:
    """Returns the pairs to plan in random order, and the generator that drew it."""
    if batch_size < 1:
        raise UserError(f"a batch must hold at least one pair, not {batch_size}")
    if n < batch_size:
        raise UserError(f"{n} pairs do not fill one batch of {batch_size}")
    rng = np.random.default_rng((seed, epoch))
    order_N = rng.permutation(n)
    return (order_N if keep_last else order_N[: n - n % batch_size]), rng


def _rows(pairs_P: np.ndarray, batch_size: int) -> np.ndarray:
    missing = -len(pairs_P) % batch_size
    return np.pad(pairs_P, (0, missing), constant_values=-1).reshape(-1, batch_size)


def _penalised(
    scores: scipy.sparse.csr_array, conflicts: scipy.sparse.csr_array | None, batch_size: int
) -> scipy.sparse.csr_array:
    """Makes each conflict cost more than all else in two batches can be worth."""
    if conflicts is None:
        return scores
    if conflicts.shape != scores.shape:
        raise UserError(f"conflicts must be {scores.shape}, not {conflicts.shape}")
    penalty = 1 + 2 * batch_size**2 * float(scores.data.max(initial=0))
    matrix = scipy.sparse.csr_array(scores - penalty * conflicts.astype(bool).astype(np.float64))
    matrix.setdiag(0)
    matrix.eliminate_zeros()
    return matrix


@njit(cache=True)
def _grow_all(indptr, indices, values, order_P, key_N, width, batches_MxB):  # type: ignore
    """Fills the batches; the pairs' random keys add up to the identity of a set."""
    n, size = len(indptr) - 1, batches_MxB.shape[1]
    free_N = np.zeros(n, np.bool_)
    free_N[order_P] = True
    gain_N, seen_N = np.zeros(n), np.zeros(n, np.bool_)
    touched_N = np.empty(n, np.int64)
    members_WxB = np.empty((width, size), np.int64)
    grown_WxB = np.empty((width, size), np.int64)
    h_W, best_h_W = np.empty(width), np.empty(width)
    key_W, best_key_W = np.empty(width, np.int64), np.empty(width, np.int64)
    parent_W, pair_W = np.empty(width, np.int64), np.empty(width, np.int64)
    first, n_left = 0, len(order_P)
    for b in range(len(batches_MxB)):
        while not free_N[order_P[first]]:
            first += 1
        members_WxB[0, 0], h_W[0], key_W[0], n_beams = order_P[first], 0.0, key_N[order_P[first]], 1
        n_members = min(size, n_left)
        for step in range(1, n_members):
            n_best = 0
            for w in range(n_beams):
                n_touched = 0
                for m in members_WxB[w, :step]:
                    free_N[m] = False
                for m in members_WxB[w, :step]:
                    for e in range(indptr[m], indptr[m + 1]):
                        j = indices[e]
                        if free_N[j]:
                            gain_N[j] += values[e]
                            if not seen_N[j]:
                                seen_N[j] = True
                                touched_N[n_touched] = j
                                n_touched += 1
                n_scored = n_touched
                # Of all pairs that add nothing, as many as could survive.
                for j in order_P[first:]:
                    if n_touched == n_scored + width:
                        break
                    if free_N[j] and not seen_N[j]:
                        seen_N[j] = True
                        touched_N[n_touched] = j
                        n_touched += 1
                for j in touched_N[:n_touched]:
                    h, key = h_W[w] + gain_N[j], key_W[w] + key_N[j]
                    gain_N[j], seen_N[j] = 0.0, False
                    if (n_best < width or h > best_h_W[n_best - 1]) and not (
                        best_key_W[:n_best] == key
                    ).any():
                        n_best = min(n_best + 1, width)
                        at = n_best - 1
                        while at > 0 and best_h_W[at - 1] < h:
                            best_h_W[at], best_key_W[at] = best_h_W[at - 1], best_key_W[at - 1]
                            parent_W[at], pair_W[at] = parent_W[at - 1], pair_W[at - 1]
                            at -= 1
                        best_h_W[at], best_key_W[at] = h, key
                        parent_W[at], pair_W[at] = w, j
                for m in members_WxB[w, :step]:
                    free_N[m] = True
            for w in range(n_best):
                grown_WxB[w, :step] = members_WxB[parent_W[w], :step]
                grown_WxB[w, step] = pair_W[w]
            members_WxB, grown_WxB, n_beams = grown_WxB, members_WxB, n_best
            h_W[:n_best], key_W[:n_best] = best_h_W[:n_best], best_key_W[:n_best]
        batches_MxB[b, :n_members] = members_WxB[0, :n_members]
        for m in members_WxB[0, :n_members]:
            free_N[m] = False
        n_left -= n_members


@njit(cache=True)
def _attraction(indptr, indices, values, batch_N, pair, batch):  # type: ignore
    """Returns what the scores of a pair with the members of a batch add up to."""
    total = 0.0
    for e in range(indptr[pair], indptr[pair + 1]):
        if batch_N[indices[e]] == batch:
            total += values[e]
    return total


@njit(cache=True)
def _swap(indptr, indices, values, batches_MxB, order_P, only_conflicts):  # type: ignore
    """Goes through the pairs once, swaps each where that raises Σ h; returns how many it did."""
    n_batches = len(batches_MxB)
    batch_N = np.full(len(indptr) - 1, -1)
    slot_N = np.zeros(len(indptr) - 1, np.int64)
    for b in range(n_batches):
        for slot, m in enumerate(batches_MxB[b]):
            if m >= 0:
                batch_N[m], slot_N[m] = b, slot
    attraction_M, score_N, n_swaps = np.zeros(n_batches), np.zeros(len(indptr) - 1), 0
    for i in order_P:
        own = batch_N[i]
        for e in range(indptr[i], indptr[i + 1]):
            score_N[indices[e]] = values[e]
            if batch_N[indices[e]] >= 0:
                attraction_M[batch_N[indices[e]]] += values[e]
        target, conflict = own, attraction_M[own] < 0
        if conflict or not only_conflicts:
            for e in range(indptr[i], indptr[i + 1]):
                b = batch_N[indices[e]]
                if b >= 0 and attraction_M[b] > attraction_M[target]:
                    target = b
        # A pair in conflict goes wherever it can; another only to the batch it is hardest with.
        low, high = (0, n_batches) if conflict else (target, target + 1)
        best, best_pair = 1e-9, -1
        for b in range(low, high):
            if b == own or attraction_M[b] < attraction_M[own]:
                continue
            for y in batches_MxB[b]:
                if y >= 0:
                    change = attraction_M[b] - attraction_M[own] - 2 * score_N[y]
                    change += _attraction(indptr, indices, values, batch_N, y, own)
                    change -= _attraction(indptr, indices, values, batch_N, y, b)
                    if change > best:
                        best, best_pair = change, y
            if conflict and best_pair >= 0:
                break
        for e in range(indptr[i], indptr[i + 1]):
            score_N[indices[e]] = 0.0
            if batch_N[indices[e]] >= 0:
                attraction_M[batch_N[indices[e]]] = 0.0
        if best_pair >= 0:
            b, slot = batch_N[best_pair], slot_N[best_pair]
            batches_MxB[own, slot_N[i]], batches_MxB[b, slot] = best_pair, i
            batch_N[best_pair], slot_N[best_pair] = own, slot_N[i]
            batch_N[i], slot_N[i] = b, slot
            n_swaps += 1
    return n_swaps
