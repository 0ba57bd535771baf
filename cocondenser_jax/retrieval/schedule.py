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
import inspect
import json
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
    shifted_NxK = known_NxK - known_NxK.min(axis=1, keepdims=True, where=keep_NxK, initial=np.inf)
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
    exchange for the pair least hard there, if Σ h grows.

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
    # A conflict costs more than all else in two batches is worth.
    penalty = 1 + 2 * batch_size**2 * float(scores.data.max(initial=0))
    matrix = scores if conflicts is None else _penalised(scores, conflicts, penalty)
    arrays = matrix.indptr, matrix.indices, matrix.data
    if width:
        key_N = np.random.default_rng(0).integers(1 << 62, size=n)
        _grow(*arrays, order_P, key_N, width, batches_MxB)
    for _ in range(sweeps):
        if not _sweep(*arrays, order_P, batches_MxB, 1e-12 * penalty):
            break
    if conflicts is not None:
        _part(*arrays, order_P, batches_MxB, penalty / 2)
    return batches_MxB


def plan_in_background(
    planner: Callable[..., np.ndarray], *arguments: Any, **options: Any
) -> concurrent.futures.Future[np.ndarray]:
    """Calls a planner in a thread and returns the future of its plan.

    The compiled loops below, where `hard_plan` spends its time, do not hold up other threads.
    """
    executor = concurrent.futures.ThreadPoolExecutor(1)
    future = executor.submit(planner, *arguments, **options)
    executor.shutdown(wait=False)
    return future


def settings_of(planner: Callable[..., np.ndarray], *arguments: Any, **options: Any) -> dict:
    """Returns what a call of a planner depends on, arrays as checksums, for `save_plan`."""
    call = inspect.signature(planner).bind(*arguments, **options)
    call.apply_defaults()
    return {
        "planner": planner.__name__,
        **{
            name: value if value is None or isinstance(value, int) else _sha256(value)
            for name, value in call.arguments.items()
        },
    }


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
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"cannot read the plan {path}: {error}") from error
    for name in earlier | settings:
        if earlier.get(name) != settings.get(name):
            raise UserError(
                f"{path} was planned with {name}={earlier.get(name)!r}, expected "
                f"{settings.get(name)!r}"
            )
    return batches_MxB


def _sha256(value: Candidates | scipy.sparse.csr_array) -> str:
    arrays = (*value.nonzero(), np.array(value.shape)) if scipy.sparse.issparse(value) else value
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _penalised(
    scores: scipy.sparse.csr_array, conflicts: scipy.sparse.csr_array, penalty: float
) -> scipy.sparse.csr_array:
    if conflicts.shape != scores.shape:
        raise UserError(f"conflicts must be {scores.shape}, not {conflicts.shape}")
    rows_E, columns_E = conflicts.nonzero()
    apart_E = rows_E != columns_E
    cells = rows_E[apart_E], columns_E[apart_E]
    costs = scipy.sparse.csr_array((np.full(len(cells[0]), penalty), cells), scores.shape)
    return scipy.sparse.csr_array(scores - costs)


# Below, row i of the matrix is indices[indptr[i] : indptr[i + 1]], in order, and its values.


@njit(cache=True, nogil=True)
def _grow(indptr, indices, values, order_P, key_N, width, batches_MxB):  # type: ignore
    """Fills one batch after the other by beam search.

    Two beams are one set if the random keys of their pairs add up to the same number.
    """
    n, size = len(indptr) - 1, batches_MxB.shape[1]
    free_N = np.zeros(n, np.bool_)
    free_N[order_P] = True
    h_W, key_W = np.empty(width), np.empty(width, np.int64)
    parent_W, pair_W = np.empty(width, np.int64), np.empty(width, np.int64)
    first = 0
    for b in range(len(batches_MxB)):
        while not free_N[order_P[first]]:
            first += 1
        # h, key and pairs; then the other pairs that these have scores with, and what each adds.
        beams = [(0.0, np.int64(0), order_P[:0], indices[:0], values[:0])]
        for step in range(min(size, len(order_P) - b * size)):
            n_beams = 0
            for rank in range(width if step else 1):
                best = -np.inf
                for w, (h, key, members_I, near_J, gain_J) in enumerate(beams):
                    for j, gain in zip(near_J, gain_J):  # noqa: B905
                        if h + gain > best and not (key_W[:rank] == key + key_N[j]).any():
                            best, key_W[rank] = h + gain, key + key_N[j]
                            parent_W[rank], pair_W[rank] = w, j
                    for j in order_P[first:]:
                        if h <= best:
                            break
                        if (
                            free_N[j]
                            and not (members_I == j).any()
                            and not (near_J == j).any()
                            and not (key_W[:rank] == key + key_N[j]).any()
                        ):
                            best, key_W[rank] = h, key + key_N[j]
                            parent_W[rank], pair_W[rank] = w, j
                if best == -np.inf:
                    break
                h_W[rank], n_beams = best, rank + 1
            grown = beams[:0]
            for w in range(n_beams):
                _, _, members_I, near_J, gain_J = beams[parent_W[w]]
                members_I = np.append(members_I, pair_W[w])
                row = slice(indptr[pair_W[w]], indptr[pair_W[w] + 1])
                free_N[members_I] = False
                near_J, gain_J = _add_row(near_J, gain_J, indices[row], values[row], free_N)
                free_N[members_I] = True
                grown.append((h_W[w], key_W[w], members_I, near_J, gain_J))
            beams = grown
        members_I = beams[0][2]
        batches_MxB[b, : len(members_I)] = members_I
        free_N[members_I] = False


@njit(cache=True, nogil=True)
def _add_row(near_J, gain_J, row_K, values_K, free_N):  # type: ignore
    """Adds two sparse vectors, without the pairs that are not free."""
    near_I = np.empty(len(near_J) + len(row_K), row_K.dtype)
    gain_I = np.empty(len(near_I))
    i, j, k, end = 0, 0, 0, len(free_N)
    while True:
        left = near_J[j] if j < len(near_J) else end
        right = row_K[k] if k < len(row_K) else end
        pair = min(left, right)
        if pair == end:
            return near_I[:i], gain_I[:i]
        if free_N[pair]:
            near_I[i] = pair
            gain_I[i] = (gain_J[j] if left == pair else 0.0) + (
                values_K[k] if right == pair else 0.0
            )
            i += 1
        j += left == pair
        k += right == pair


@njit(cache=True, nogil=True)
def _sweep(indptr, indices, values, order_P, batches_MxB, least):  # type: ignore
    """Replaces once, by exchanges that gain more than `least`; returns whether there was one."""
    batch_N, own_N = _place(indptr, indices, values, batches_MxB)
    to_batch_M, exchanged = np.zeros(len(batches_MxB)), False
    for i in order_P:
        row = range(indptr[i], indptr[i + 1])
        own = target = batch_N[i]
        for e in row:
            if batch_N[indices[e]] >= 0:
                to_batch_M[batch_N[indices[e]]] += values[e]
        for e in row:
            b = batch_N[indices[e]]
            if b >= 0 and to_batch_M[b] > to_batch_M[target]:
                target = b
        gain = to_batch_M[target] - to_batch_M[own]
        for e in row:
            if batch_N[indices[e]] >= 0:
                to_batch_M[batch_N[indices[e]]] = 0.0
        if target == own:
            continue
        y = -1
        for m in batches_MxB[target]:
            if m >= 0 and (y < 0 or own_N[m] < own_N[y]):
                y = m
        gain -= own_N[y]
        for e in range(indptr[y], indptr[y + 1]):
            # Both sums above count what i and y have with each other, and lose it.
            if batch_N[indices[e]] == own:
                gain += -values[e] if indices[e] == i else values[e]
        if gain > least:
            _exchange(indptr, indices, values, batches_MxB, batch_N, own_N, i, y)
            exchanged = True
    return exchanged


@njit(cache=True, nogil=True)
def _part(indptr, indices, values, order_P, batches_MxB, least):  # type: ignore
    """Exchanges pairs in conflict with any others, until none gains more than `least`."""
    batch_N, own_N = _place(indptr, indices, values, batches_MxB)
    exchanged = True
    while exchanged:
        exchanged = False
        for i in order_P:
            if own_N[i] > -least:
                continue
            own = batch_N[i]
            to_batch_M, to_own_N = np.zeros(len(batches_MxB)), np.zeros(len(batch_N))
            for m in batches_MxB[own]:
                if m >= 0:
                    for e in range(indptr[m], indptr[m + 1]):
                        to_own_N[indices[e]] += values[e]
            for e in range(indptr[i], indptr[i + 1]):
                to_own_N[indices[e]] -= 2 * values[e]
                if batch_N[indices[e]] >= 0:
                    to_batch_M[batch_N[indices[e]]] += values[e]
            gain_P = (to_batch_M[batch_N] + to_own_N - own_N - own_N[i])[order_P]
            gain_P[batch_N[order_P] == own] = 0.0
            if gain_P.max() > least:
                y = order_P[gain_P.argmax()]
                _exchange(indptr, indices, values, batches_MxB, batch_N, own_N, i, y)
                exchanged = True


@njit(cache=True, nogil=True)
def _place(indptr, indices, values, batches_MxB):  # type: ignore
    """Returns the batch of each pair, -1 for none, and its scores with the others there."""
    batch_N, own_N = np.full(len(indptr) - 1, -1), np.zeros(len(indptr) - 1)
    for b in range(len(batches_MxB)):
        for i in batches_MxB[b]:
            if i >= 0:
                _move(indptr, indices, values, batch_N, own_N, i, b)
    return batch_N, own_N


@njit(cache=True, nogil=True)
def _exchange(indptr, indices, values, batches_MxB, batch_N, own_N, i, y):  # type: ignore
    own, target = batch_N[i], batch_N[y]
    batches_MxB[own][batches_MxB[own] == i] = y
    batches_MxB[target][batches_MxB[target] == y] = i
    _move(indptr, indices, values, batch_N, own_N, i, target)
    _move(indptr, indices, values, batch_N, own_N, y, own)


@njit(cache=True, nogil=True)
def _move(indptr, indices, values, batch_N, own_N, i, target):  # type: ignore
    own, own_N[i] = batch_N[i], 0.0
    for e in range(indptr[i], indptr[i + 1]):
        j = indices[e]
        if batch_N[j] == own:
            own_N[j] -= values[e]
        elif batch_N[j] == target:
            own_N[j] += values[e]
            own_N[i] += values[e]
    batch_N[i] = target
