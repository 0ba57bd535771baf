"""From (seed, step) to a batch of span pairs.

A batch is a pure function of the data, the seed and the step: a run that resumes at step t needs no
other state, and every host computes its own rows of a batch that all hosts agree on.
"""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import grain
import numpy as np

from cocondenser_jax.corpus.masking import (
    MASK_PROBABILITY,
    draws_per_span,
    mask_capacity,
    mask_whole_words,
)
from cocondenser_jax.corpus.spans import STARTS_SENTENCE
from cocondenser_jax.corpus.store import Source, TokenStore
from cocondenser_jax.errors import UserError

_DOCUMENTS_AT_ONCE = 10_000  # hashed to choose those to hold out
SENTENCE_STAYS = 0.1  # probability that the sentence of a cloze is left in its span


class Batch(NamedTuple):
    """S rows of L tokens; where examples are pairs, rows 2i and 2i + 1 are one."""

    input_ids_SxL: np.ndarray  # int32, masked: [CLS] tokens [SEP] padding
    attention_mask_SxL: np.ndarray  # bool
    masked_positions_SxM: np.ndarray  # int32
    labels_SxM: np.ndarray  # int32
    weights_SxM: np.ndarray  # float32, 1 where a slot is used; a span's used slots come first


class BatchSpec(NamedTuple):
    """What defines a batch, besides the data."""

    seed: int
    batch_size: int  # examples
    length: int  # tokens of a row, specials included
    # What an example is: "span", "pair" (of two spans of a document), or "cloze" (a sentence of a
    # span, and the rest of the span).
    example: str = "pair"
    masked: bool = True  # whether tokens are masked and to be predicted
    held_out: int = 0  # documents that are never drawn, as `held_out_documents` chooses them

    @property
    def n_rows(self) -> int:
        """Spans of a batch."""
        return self.batch_size * (1 if self.example == "span" else 2)


class _Pool(NamedTuple):
    """Examples that are shuffled together: runs of numbers, without those held out."""

    path: Path  # of the store that they come from
    weight: float  # passes over them in an epoch
    ends_R: np.ndarray  # the number after the last example of each run
    totals_R: np.ndarray  # how many examples there are up to the end of each run

    @property
    def size(self) -> int:
        """How many examples there are."""
        return int(self.totals_R[-1])

    def draw(self, seed: int, first: int, n: int) -> np.ndarray:
        """Returns `examples_I`: `n` of the endless sequence, which is reshuffled every pass."""
        order = grain.MapDataset.range(self.size).seed(seed).shuffle().repeat()
        places_I = np.fromiter((order[first + i] for i in range(n)), np.int64)
        runs_I = np.searchsorted(self.totals_R, places_I, side="right")
        return self.ends_R[runs_I] - (self.totals_R[runs_I] - places_I)


def steps_per_epoch(store: TokenStore, spec: BatchSpec) -> int:
    """Returns how many whole batches an epoch has, each source counted by its weight."""
    return epoch_examples(store, spec) // spec.batch_size


def epoch_examples(store: TokenStore, spec: BatchSpec) -> int:
    """Returns how many examples an epoch has, each source counted as often as its weight says."""
    return round(sum(pool.weight * pool.size for pool in _pools(store, spec)))


def source_shares(store: TokenStore, spec: BatchSpec) -> list[float]:
    """Returns which share of all examples comes from each source of a store."""
    pools = [_pool(store, spec, source) for source in store.sources]
    sizes = [pool.weight * pool.size for pool in pools]
    return [size / max(sum(sizes), 1) for size in sizes]


def batch_examples(
    store: TokenStore, spec: BatchSpec, step: int, *, host: int = 0, n_hosts: int = 1
) -> np.ndarray:
    """Returns `examples_I` of the batch that `make_batch` makes: documents or spans, by number.

    A pass over the examples has as many steps as it has whole batches, so no batch holds an example
    twice. The few that are left over come in other passes, for each pass has its own order.

    Sources of different weights are passed over on their own: every batch has the same number of
    examples of each, in proportion to weight and size.

    Raises:
      UserError: if an example would come twice in a batch, or none of some source.
    """
    examples = []
    for pool, n_drawn in _shares_of_batch(store, spec):
        n_pass, step_of_pass = divmod(step, pool.size // n_drawn)
        first = n_pass * pool.size + step_of_pass * n_drawn
        examples.append(pool.draw(spec.seed, first, n_drawn))
    examples_I = np.split(np.concatenate(examples), n_hosts)[host]
    return store.documents_of_pairs[examples_I] if spec.example == "pair" else examples_I


def _shares_of_batch(store: TokenStore, spec: BatchSpec) -> list[tuple[_Pool, int]]:
    """Returns how many examples of each pool a batch has: in proportion, in whole numbers."""
    pools = _pools(store, spec)
    sizes_P = np.array([pool.weight * pool.size for pool in pools])
    exact_P = spec.batch_size * sizes_P / max(sizes_P.sum(), 1e-9)
    drawn_P = np.floor(exact_P).astype(int)
    n_missing = spec.batch_size - drawn_P.sum()
    drawn_P[np.argsort(drawn_P - exact_P, kind="stable")[:n_missing]] += 1
    shares = [(pool, int(n_drawn)) for pool, n_drawn in zip(pools, drawn_P, strict=True)]
    for pool, n_drawn in shares:
        if not 0 < n_drawn <= pool.size:
            what = "documents of two spans" if spec.example == "pair" else "spans"
            raise UserError(
                f"config.data.batch_size {spec.batch_size} takes {n_drawn} {what} of {pool.path}"
                f" into each batch; expected 1 to {pool.size}, those that are not held out, for a"
                " batch may hold none twice"
            )
    return shares


def batch_document_ids(store: TokenStore, spec: BatchSpec, step: int) -> list[str]:
    """Returns the names of the documents that the examples of a batch come from."""
    numbers_I = batch_examples(store, spec, step)
    if spec.example != "pair":
        numbers_I = np.searchsorted(store.first_span_D, numbers_I, side="right") - 1
    return [store.document_id(int(number)) for number in numbers_I]


def make_batch(
    store: TokenStore, spec: BatchSpec, step: int, *, host: int = 0, n_hosts: int = 1
) -> Batch:
    """Returns the `n_rows / n_hosts` rows of one host of the batch of a step; both count from 0.

    `batch_examples` says which examples these are. A pair is two different spans of a document,
    uniform over ordered pairs; a cloze is described at `split_sentence`.
    """
    examples_I = batch_examples(store, spec, step, host=host, n_hosts=n_hosts)
    first_row = host * spec.n_rows // n_hosts
    return _rows_of(store, spec, examples_I, (spec.seed, step), first_row)


@functools.lru_cache(maxsize=8)
def held_out_documents(store: TokenStore, n: int) -> np.ndarray:
    """Returns the numbers of the `n` documents, at most a tenth of them, that are never drawn.

    They have two spans, and are those whose first and last spans have the lowest hashes, in that
    order: the same ones however a store is sharded, and identical texts together. Where no document
    has two spans, they have one.
    """
    documents_D = store.documents_of_pairs
    if not len(documents_D):
        documents_D = np.arange(store.n_documents)
    n = min(n, len(documents_D) // 10)
    if not n:
        return np.zeros(0, np.int64)
    parts = np.array_split(documents_D, -(-len(documents_D) // _DOCUMENTS_AT_ONCE))
    hashes_D = np.concatenate([_hashes(store, part) for part in parts])
    order_D = np.argsort(hashes_D, kind="stable")
    return documents_D[order_D[: np.sum(hashes_D <= hashes_D[order_D[n - 1]])]]


def _hashes(store: TokenStore, documents_D: np.ndarray) -> np.ndarray:
    """Returns 64 bits of each document: the sum of its tokens times a random factor per place."""
    ends = store.first_span_D[documents_D], store.first_span_D[documents_D + 1] - 1
    ids = [store.read_spans(spans_D, store.max_tokens - 2)[0] for spans_D in ends]
    ids_DxL = np.concatenate(ids, axis=1).astype(np.uint64)
    return ids_DxL @ np.random.Philox(key=0).random_raw(ids_DxL.shape[1])


def held_out_batch(store: TokenStore, spec: BatchSpec) -> Batch:
    """Returns two spans of each held-out document, or one where none has two.

    They are masked where the batches of `spec` are; both are drawn from the documents alone.
    """
    documents_I = held_out_documents(store, spec.held_out)
    is_pair = len(store.documents_of_pairs) > 0
    spec = spec._replace(example="pair" if is_pair else "span")
    examples_I = documents_I if is_pair else store.first_span_D[documents_I]
    return _rows_of(store, spec, examples_I, (0, 0), 0)


def _rows_of(
    store: TokenStore, spec: BatchSpec, examples_I: np.ndarray, key: tuple[int, int], first_row: int
) -> Batch:
    """Returns the rows of examples; the random numbers of a row depend on key and row number."""
    content = spec.length - 2
    capacity = mask_capacity(spec.length)
    n_rows = len(examples_I) * (1 if spec.example == "span" else 2)
    draws_SxR = _draws(key, first_row, n_rows, 2 + draws_per_span(content, capacity))
    choice_S = draws_SxR[:, 0]
    masks_SxR = draws_SxR[:, 2:]  # column 1 is free: recorded results have these masks

    spans_S = examples_I
    if spec.example == "pair":
        spans_S = _two_spans(store, examples_I, choice_S.reshape(-1, 2)).reshape(-1)
    texts = store.read_spans(spans_S, content)
    if spec.example == "cloze":
        texts = split_sentence(*texts, choice_S.reshape(-1, 2))
    ids_SxC, starts_SxC, n_tokens_S = texts
    masked = mask_whole_words(
        ids_SxC,
        starts_SxC > 0,
        n_tokens_S,
        masks_SxR,
        mask_id=store.mask_id,
        ordinary_ids=np.delete(np.arange(store.vocab_size, dtype=np.int32), store.special_ids),
        capacity=capacity,
        probability=MASK_PROBABILITY if spec.masked else 0.0,
    )
    return Batch(
        input_ids_SxL=with_specials(masked.ids_NxC, n_tokens_S, store),
        attention_mask_SxL=np.arange(spec.length) < n_tokens_S[:, None] + 2,
        # [CLS] moves every token by one; unused slots stay at 0.
        masked_positions_SxM=masked.positions_NxM + masked.weights_NxM.astype(np.int32),
        labels_SxM=masked.labels_NxM,
        weights_SxM=masked.weights_NxM,
    )


def read_batches(
    store: TokenStore,
    spec: BatchSpec,
    *,
    first_step: int,
    n_steps: int,
    host: int = 0,
    n_hosts: int = 1,
) -> Iterator[Batch]:
    """Yields the batches of steps `first_step` to `n_steps - 1`, prepared ahead in threads."""
    if spec.batch_size % n_hosts:
        raise UserError(
            f"config.data.batch_size {spec.batch_size} is not a multiple of {n_hosts} hosts"
        )
    _shares_of_batch(store, spec)  # refused here rather than in a thread
    steps = grain.MapDataset.range(first_step, n_steps)
    batches = steps.map(lambda step: make_batch(store, spec, int(step), host=host, n_hosts=n_hosts))
    return iter(batches.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)))


def split_sentence(
    ids_IxC: np.ndarray, starts_IxC: np.ndarray, n_tokens_I: np.ndarray, draws_Ix2: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Takes a random sentence out of each span: the inverse cloze task.

    Lee, Chang & Toutanova, *Latent retrieval for weakly supervised open domain question answering*,
    arXiv 1906.00300, section 4: in a tenth of the examples the sentence also stays where it was. A
    span that is one sentence gives the words of its first half.

    Args:
      ids_IxC: content tokens, 0 after a span's end.
      starts_IxC: 2 where a sentence starts, 1 where another word does.
      n_tokens_I: content tokens of each span, at least 1.
      draws_Ix2: independent uniform uint64.

    Returns:
      The same three arrays for twice as many rows: 2i is a sentence, 2i + 1 the rest of its span.
    """
    column_C = np.arange(ids_IxC.shape[1])
    inside_IxC = column_C < n_tokens_I[:, None]
    begins_IxC = inside_IxC & ((starts_IxC == STARTS_SENTENCE) | (column_C == 0))
    # One sentence: its second half begins at the last word that starts in the first half.
    half_IxC = (starts_IxC > 0) & (column_C > 0) & (column_C <= (n_tokens_I[:, None] + 1) // 2)
    middle_I = np.max(np.where(half_IxC, column_C, 0), axis=1)
    single_I = np.flatnonzero(begins_IxC.sum(axis=1) == 1)
    begins_IxC[single_I, middle_I[single_I]] = True

    n_sentences_I = begins_IxC.sum(axis=1)
    sentence_IxC = np.cumsum(begins_IxC, axis=1) - 1
    chosen_I = draws_Ix2[:, 0] % n_sentences_I.astype(np.uint64)
    chosen_I[single_I] = 0
    in_sentence_IxC = sentence_IxC == chosen_I.astype(np.int64)[:, None]
    stays_I = draws_Ix2[:, 1] / 2.0**64 < SENTENCE_STAYS
    keep_SxC = np.stack(
        [in_sentence_IxC & inside_IxC, (~in_sentence_IxC | stays_I[:, None]) & inside_IxC], 1
    ).reshape(-1, len(column_C))
    order_SxC = np.argsort(~keep_SxC, axis=1, stable=True)
    n_tokens_S = keep_SxC.sum(axis=1, dtype=np.int32)

    def packed(values_IxC: np.ndarray) -> np.ndarray:
        values_SxC = np.take_along_axis(np.repeat(values_IxC, 2, axis=0), order_SxC, axis=1)
        return np.where(column_C < n_tokens_S[:, None], values_SxC, 0)

    return packed(ids_IxC), packed(starts_IxC), n_tokens_S


def with_specials(ids_SxC: np.ndarray, n_tokens_S: np.ndarray, store: TokenStore) -> np.ndarray:
    """Returns [CLS] tokens [SEP] padding as int32, two columns wider than the content."""
    n_spans, content = ids_SxC.shape
    ids_SxL = np.full((n_spans, content + 2), store.pad_id, np.int32)
    ids_SxL[:, 0] = store.cls_id
    inside_SxC = np.arange(content) < n_tokens_S[:, None]
    ids_SxL[:, 1:-1][inside_SxC] = ids_SxC[inside_SxC]
    ids_SxL[np.arange(n_spans), n_tokens_S + 1] = store.sep_id
    return ids_SxL


def _pools(store: TokenStore, spec: BatchSpec) -> list[_Pool]:
    """Returns the pool of each source, or a single one where all have the same weight."""
    sources = store.sources
    if len({source.weight for source in sources}) == 1:
        end = sources[-1].end_document
        sources = (sources[0]._replace(path=store.path, end_document=end),)
    return [_pool(store, spec, source) for source in sources]


def _pool(store: TokenStore, spec: BatchSpec, source: Source) -> _Pool:
    """Returns the examples of a source, but for those of held-out documents."""
    held_out_H = np.sort(held_out_documents(store, spec.held_out))
    is_inside_H = (held_out_H >= source.first_document) & (held_out_H < source.end_document)
    held_out_H = held_out_H[is_inside_H]
    begins_R = np.concatenate([[source.first_document], held_out_H + 1])
    ends_R = np.concatenate([held_out_H, [source.end_document]])
    if spec.example == "pair":
        begins_R = np.searchsorted(store.documents_of_pairs, begins_R)
        ends_R = np.searchsorted(store.documents_of_pairs, ends_R)
    else:
        begins_R = store.first_span_D[begins_R]
        ends_R = store.first_span_D[ends_R]
    return _Pool(source.path, source.weight, ends_R, np.cumsum(ends_R - begins_R))


def _two_spans(store: TokenStore, documents_I: np.ndarray, draws_Ix2: np.ndarray) -> np.ndarray:
    """Returns `spans_Ix2`: two different spans of each document."""
    first_span_I = store.first_span_D[documents_I]
    n_spans_I = (store.first_span_D[documents_I + 1] - first_span_I).astype(np.uint64)
    left_I = draws_Ix2[:, 0] % n_spans_I
    right_I = (left_I + np.uint64(1) + draws_Ix2[:, 1] % (n_spans_I - np.uint64(1))) % n_spans_I
    return first_span_I[:, None] + np.stack([left_I, right_I], 1).astype(np.int64)


def _draws(key: tuple[int, int], first_row: int, n_rows: int, n_columns: int) -> np.ndarray:
    """Returns uniform uint64 for rows; a row's numbers do not depend on `first_row`."""
    n_columns += -n_columns % 4  # Philox advances by four numbers at a time
    generator = np.random.Philox(key=key)
    generator.advance(first_row * n_columns // 4)
    return generator.random_raw(n_rows * n_columns).reshape(n_rows, n_columns)
