"""The compiled loops of `schedule`: beam search, greedy replacement, parting of conflicts.

All of them read a symmetric matrix with an empty diagonal, of what two pairs add to Σ h by being in
one batch; a conflict takes away more than all else in two batches can add.
"""

import numpy as np
from numba import njit

# indptr, indices and values of scipy.sparse.csr_array, indices in order.
Matrix = tuple[np.ndarray, np.ndarray, np.ndarray]


@njit(cache=True, nogil=True)
def grow(
    matrix: Matrix, order_P: np.ndarray, key_N: np.ndarray, width: int, batches_MxB: np.ndarray
) -> None:
    """Fills one batch after the other by beam search, each from the first pair not yet used.

    Args:
      matrix: see above.
      order_P: the pairs to use.
      key_N: random numbers. Two beams are one set if those of their pairs have the same sum.
      width: beams kept after each step.
      batches_MxB: written.
    """
    indptr, indices, values = matrix
    free_N = np.zeros(len(key_N), np.bool_)
    free_N[order_P] = True
    h_W, key_W = np.empty(width), np.empty(width, np.int64)
    parent_W, pair_W = np.empty(width, np.int64), np.empty(width, np.int64)
    first = 0
    for b in range(len(batches_MxB)):
        while not free_N[order_P[first]]:
            first += 1
        # h, key and pairs; then the other pairs that these have scores with, and what each adds.
        beams = [(0.0, np.int64(0), order_P[:0], indices[:0], values[:0])]
        for step in range(min(batches_MxB.shape[1], len(order_P) - batches_MxB[:b].size)):
            n_beams = 0
            for rank in range(width if step else 1):
                best = -np.inf
                for w, (h, key, members_I, near_J, gain_J) in enumerate(beams):
                    for j, gain in zip(near_J, gain_J):  # noqa: B905
                        if h + gain > best and not (key_W[:rank] == key + key_N[j]).any():
                            best, key_W[rank] = h + gain, key + key_N[j]
                            parent_W[rank], pair_W[rank] = w, j
                    # Of the pairs that add nothing, one is as good as another.
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
def _add_row(
    near_J: np.ndarray,
    gain_J: np.ndarray,
    row_K: np.ndarray,
    values_K: np.ndarray,
    free_N: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Adds two sparse vectors; what is not free is left out."""
    near_I = np.empty(len(near_J) + len(row_K), row_K.dtype)
    gain_I = np.zeros(len(near_I))
    i, j, k, end = 0, 0, 0, len(free_N)
    while True:
        left = near_J[j] if j < len(near_J) else end
        right = row_K[k] if k < len(row_K) else end
        pair = min(left, right)
        if pair == end:
            return near_I[:i], gain_I[:i]
        if free_N[pair]:
            near_I[i] = pair
            if left == pair:
                gain_I[i] += gain_J[j]
            if right == pair:
                gain_I[i] += values_K[k]
            i += 1
        j += left == pair
        k += right == pair


@njit(cache=True, nogil=True)
def replace(
    matrix: Matrix, order_P: np.ndarray, batches_MxB: np.ndarray, sweeps: int, least: float
) -> None:
    """Exchanges each pair with the least attached one of the batch that it is hardest with.

    Args:
      matrix: see above.
      order_P: the pairs of the plan, in the order to visit them.
      batches_MxB: the plan, changed in place.
      sweeps: how often to visit all, at most; a sweep without an exchange is the last.
      least: what an exchange must add to Σ h.
    """
    indptr, indices, values = matrix
    batch_N, own_N = _place(matrix, batches_MxB)
    to_batch_M = np.zeros(len(batches_MxB))
    for _ in range(sweeps):
        exchanged = False
        for i in order_P:
            own = target = batch_N[i]
            for e in range(indptr[i], indptr[i + 1]):
                if batch_N[indices[e]] >= 0:
                    to_batch_M[batch_N[indices[e]]] += values[e]
            for e in range(indptr[i], indptr[i + 1]):
                b = batch_N[indices[e]]
                if b >= 0 and to_batch_M[b] > to_batch_M[target]:
                    target = b
            gain = to_batch_M[target] - to_batch_M[own]
            for e in range(indptr[i], indptr[i + 1]):
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
                # What i and y have with each other is lost, though `gain` has it already.
                if batch_N[indices[e]] == own:
                    gain += -values[e] if indices[e] == i else values[e]
            if gain > least:
                _exchange(matrix, batches_MxB, batch_N, own_N, i, y)
                exchanged = True
        if not exchanged:
            break


@njit(cache=True, nogil=True)
def part(matrix: Matrix, order_P: np.ndarray, batches_MxB: np.ndarray, least: float) -> None:
    """Exchanges pairs in conflict with any others until no exchange makes conflicts fewer.

    An exchange that makes them fewer takes one of its two pairs out of a conflict, so it is enough
    to try those in conflict with all others.

    Args:
      matrix: see above.
      order_P: the pairs of the plan.
      batches_MxB: the plan, changed in place.
      least: half of what a conflict costs. Exactly what makes conflicts fewer gains more.
    """
    indptr, indices, values = matrix
    batch_N, own_N = _place(matrix, batches_MxB)
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
                _exchange(matrix, batches_MxB, batch_N, own_N, i, y)
                exchanged = True


@njit(cache=True, nogil=True)
def _place(matrix: Matrix, batches_MxB: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the batch of each pair, -1 for none, and its scores with the others there."""
    batch_N, own_N = np.full(len(matrix[0]) - 1, -1), np.zeros(len(matrix[0]) - 1)
    for b in range(len(batches_MxB)):
        for i in batches_MxB[b]:
            if i >= 0:
                _move(matrix, batch_N, own_N, i, b)
    return batch_N, own_N


@njit(cache=True, nogil=True)
def _exchange(
    matrix: Matrix,
    batches_MxB: np.ndarray,
    batch_N: np.ndarray,
    own_N: np.ndarray,
    left: int,
    right: int,
) -> None:
    left_batch, right_batch = batch_N[left], batch_N[right]
    batches_MxB[left_batch][batches_MxB[left_batch] == left] = right
    batches_MxB[right_batch][batches_MxB[right_batch] == right] = left
    _move(matrix, batch_N, own_N, left, right_batch)
    _move(matrix, batch_N, own_N, right, left_batch)


@njit(cache=True, nogil=True)
def _move(matrix: Matrix, batch_N: np.ndarray, own_N: np.ndarray, pair: int, target: int) -> None:
    indptr, indices, values = matrix
    own, own_N[pair] = batch_N[pair], 0.0
    for e in range(indptr[pair], indptr[pair + 1]):
        j = indices[e]
        if batch_N[j] == own:
            own_N[j] -= values[e]
        elif batch_N[j] == target:
            own_N[j] += values[e]
            own_N[pair] += values[e]
    batch_N[pair] = target
