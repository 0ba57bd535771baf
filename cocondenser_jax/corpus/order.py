"""Chooses the examples of a batch, and the documents that are never drawn.

The examples of a batch are a pure function of the store, the seed and the step.
"""

import bisect
import functools
import math
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import grain
import numpy as np

from cocondenser_jax.corpus.examples import BatchSpec
from cocondenser_jax.corpus.store import TokenStore, WeightedCorpus
from cocondenser_jax.errors import UserError

_DOCUMENTS_AT_ONCE = 10_000  # documents hashed at a time to choose the held-out ones


class _Pool(NamedTuple):
    """Examples that are shuffled together: runs of numbers, excluding those held out."""

    path: Path  # the store of the examples
    weight: float  # passes over them in an epoch
    ends_R: np.ndarray  # the number after the last example of each run
    totals_R: np.ndarray  # the number of examples up to the end of each run

    @property
    def size(self) -> int:
        return int(self.totals_R[-1])

    def draw(self, seed: int, first: int, n: int) -> np.ndarray:
        """Returns `examples_I`: `n` of an endless sequence, reshuffled every pass."""
        order = grain.MapDataset.range(self.size).seed(seed).shuffle().repeat()
        places_I = np.fromiter((order[first + i] for i in range(n)), np.int64)
        runs_I = np.searchsorted(self.totals_R, places_I, side="right")
        return self.ends_R[runs_I] - (self.totals_R[runs_I] - places_I)


def steps_per_epoch(store: TokenStore, spec: BatchSpec) -> int:
    """Returns the number of whole batches in an epoch, each corpus counted by its weight."""
    return epoch_examples(store, spec) // spec.batch_size


def epoch_examples(store: TokenStore, spec: BatchSpec) -> int:
    """Returns the number of examples in an epoch, each corpus counted by its weight."""
    return round(sum(pool.weight * pool.size for pool in _pools(store, spec)))


def batch_examples(
    store: TokenStore, spec: BatchSpec, step: int, *, host: int = 0, n_hosts: int = 1
) -> np.ndarray:
    """Returns `examples_I`, the numbers of a batch's examples among all units of their kind.

    Each pass over the examples has its own order, and drops those that do not fill a batch. Corpora
    with different weights have separate passes. A batch takes a whole number of examples from each,
    in proportion to weight and size; later batches make up for the rounding.

    Raises:
      UserError: if an example would occur twice in a batch.
    """
    pools = _pools(store, spec)
    shares = _shares(pools)
    before, after = (_split(shares, n * spec.batch_size) for n in (step, step + 1))
    examples = []
    for i, (pool, n_steps) in enumerate(zip(pools, _pass_steps(pools, spec), strict=True)):
        n_pass, step_of_pass = divmod(step, n_steps)
        at_start = _split(shares, (step - step_of_pass) * spec.batch_size)[i]
        first = n_pass * pool.size + before[i] - at_start
        examples.append(pool.draw(spec.seed, first, after[i] - before[i]))
    return np.split(np.concatenate(examples), n_hosts)[host]


def _shares(pools: Sequence[_Pool]) -> tuple[Fraction, ...]:
    """Returns each pool's share, by weight and size, of what earlier pools leave of a batch."""
    sizes = [Fraction(pool.weight) * pool.size for pool in pools]
    rests = [sum(sizes[i:]) for i in range(len(sizes))]
    shares = [size / (rest or 1) for size, rest in zip(sizes, rests, strict=True)]
    return *shares[:-1], Fraction(1)


def _split(shares: Sequence[Fraction], n: int) -> list[int]:
    """Divides the first `n` examples of a run among pools: each gets its part, to one or two.

    With n + 1 examples, no pool gets fewer than with n.
    """
    parts = []
    for share in shares:
        parts.append(math.floor(n * share))
        n -= parts[-1]
    return parts


def _most(shares: Sequence[Fraction], n: int) -> list[int]:
    """Returns the most that each pool can have of `n` successive examples of a run."""
    parts = []
    for share in shares:
        parts.append(math.ceil(n * share))
        n = math.ceil(n * (1 - share))
    return parts


def _pass_steps(pools: Sequence[_Pool], spec: BatchSpec) -> list[int]:
    """Returns the steps of a pass over each pool.

    Raises:
      UserError: if a single batch would take an example twice.
    """
    shares = _shares(pools)
    n_steps = [_longest_pass(shares, i, pool.size, spec.batch_size) for i, pool in enumerate(pools)]
    for pool, n, most in zip(pools, n_steps, _most(shares, spec.batch_size), strict=True):
        if not n or not pool.size:
            raise UserError(
                f"config.data.batch_size {spec.batch_size} takes {most} {spec.kind.unit.name}"
                f" of {pool.path} into each batch; expected 1 to {pool.size}, the number that is"
                " not held out, because no batch contains one twice"
            )
    return n_steps


@functools.lru_cache(maxsize=64)
def _longest_pass(shares: tuple[Fraction, ...], i: int, size: int, batch_size: int) -> int:
    """Returns the largest number of steps that take at most `size` examples of pool i."""
    steps = range(2**62)
    return bisect.bisect_right(steps, size, key=lambda n: _most(shares, n * batch_size)[i]) - 1


def batch_document_ids(store: TokenStore, spec: BatchSpec, step: int) -> list[str]:
    """Returns the names of the documents that the examples of a batch come from."""
    documents_I = spec.kind.unit.document(store, batch_examples(store, spec, step))
    return [store.document_id(int(number)) for number in documents_I]


def require_examples(store: TokenStore, spec: BatchSpec, n_hosts: int) -> None:
    """Raises a UserError for batches that a store, or a number of hosts, cannot fill."""
    if spec.batch_size % n_hosts:
        raise UserError(
            f"config.data.batch_size {spec.batch_size} is not a multiple of {n_hosts} hosts"
        )
    _pass_steps(_pools(store, spec), spec)


def held_out_kind(store: TokenStore, spec: BatchSpec) -> str:
    """Returns the kind of examples from held-out documents: their own, or the papers'.

    The papers' kind is two spans, or one if no document has two.
    """
    if spec.kind.is_held_out:
        return spec.example
    return "spans" if len(store.documents_of_pairs) else "span"


def held_out(store: TokenStore, spec: BatchSpec) -> np.ndarray:
    """Returns the numbers of the documents that a run never draws, see `held_out_documents`."""
    return held_out_documents(store, spec.held_out, spec.kind.is_held_out)


@functools.lru_cache(maxsize=8)
def held_out_documents(store: TokenStore, n: int, of_one_span: bool) -> np.ndarray:
    """Returns the numbers of the `n` documents, at most a tenth of all, that are never drawn.

    Of the documents with two spans (with one, if `of_one_span` or if none has two), these have the
    lowest hashes of first and last spans, in that order. The choice does not depend on the number
    of tasks that built the store, and identical texts stay together.
    """
    documents_D = store.documents_of_pairs
    if of_one_span or not len(documents_D):
        documents_D = np.arange(store.n_documents)
    n = min(n, len(documents_D) // 10)
    if not n:
        return np.zeros(0, np.int64)
    blocks = np.array_split(documents_D, math.ceil(len(documents_D) / _DOCUMENTS_AT_ONCE))
    hashes_D = np.concatenate([_hashes(store, block_D) for block_D in blocks])
    order_D = np.argsort(hashes_D, kind="stable")
    return documents_D[order_D[: np.sum(hashes_D <= hashes_D[order_D[n - 1]])]]


def _hashes(store: TokenStore, documents_D: np.ndarray) -> np.ndarray:
    ends = store.first_span_D[documents_D], store.first_span_D[documents_D + 1] - 1
    ids = [store.read_spans(spans_D, store.content_length).ids_NxL for spans_D in ends]
    return hash_rows(np.concatenate(ids, axis=1))


def hash_rows(ids_SxC: np.ndarray) -> np.ndarray:
    """Returns a 64-bit hash of each row of tokens."""
    return ids_SxC.astype(np.uint64) @ np.random.Philox(key=0).random_raw(ids_SxC.shape[1])


def _pools(store: TokenStore, spec: BatchSpec) -> list[_Pool]:
    """Returns the pool of each corpus, or a single one if all have the same weight."""
    corpora = store.corpora
    if len({corpus.weight for corpus in corpora}) == 1:
        end = corpora[-1].end_document
        corpora = (corpora[0]._replace(path=store.path, end_document=end),)
    return [_pool(store, spec, corpus) for corpus in corpora]


def _pool(store: TokenStore, spec: BatchSpec, corpus: WeightedCorpus) -> _Pool:
    held_out_H = np.sort(held_out(store, spec))
    is_inside_H = (held_out_H >= corpus.first_document) & (held_out_H < corpus.end_document)
    held_out_H = held_out_H[is_inside_H]
    first = spec.kind.unit.first
    begins_R = first(store, np.concatenate([[corpus.first_document], held_out_H + 1]))
    ends_R = first(store, np.concatenate([held_out_H, [corpus.end_document]]))
    return _Pool(
        path=corpus.path,
        weight=corpus.weight,
        ends_R=ends_R,
        totals_R=np.cumsum(ends_R - begins_R),
    )
