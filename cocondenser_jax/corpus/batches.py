"""From (seed, step) to a batch of span pairs.

A batch is a pure function of the data, the seed and the step: a run that resumes at step t needs no
other state, and every host computes its own rows of a batch that all hosts agree on.
"""

import functools
from collections.abc import Iterator
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
from cocondenser_jax.corpus.store import TokenStore
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
    short_span_prob: float = 0.0  # of a row to be cut to a random length
    held_out: int = 0  # documents that are never drawn, as `held_out_documents` chooses them

    @property
    def n_rows(self) -> int:
        """Spans of a batch."""
        return self.batch_size * (1 if self.example == "span" else 2)


def epoch_examples(store: TokenStore, spec: BatchSpec) -> int:
    """Returns how many examples an epoch has, each source counted as often as its weight says."""
    return round(sum(weight * (end - begin) for weight, begin, end in _ranges(store, spec)))


def source_shares(store: TokenStore, spec: BatchSpec) -> list[float]:
    """Returns which share of all examples comes from each source of a store."""
    examples = [weight * (end - begin) for weight, begin, end in _ranges(store, spec)]
    return [n / max(sum(examples), 1) for n in examples]


def example_order(store: TokenStore, spec: BatchSpec) -> grain.MapDataset:
    """Returns the endless sequence of examples: each once per epoch, reshuffled.

    Sources of different weights are drawn from in proportion to weight and size; each is gone
    through once before it begins again.
    """
    ranges = _ranges(store, spec)
    if len({weight for weight, *_ in ranges}) == 1:
        ranges = [(1.0, ranges[0][1], ranges[-1][2])]
    sources = [
        grain.MapDataset.range(begin, end).seed(spec.seed).shuffle().repeat()
        for _, begin, end in ranges
    ]
    if len(sources) == 1:
        return sources[0]
    return grain.MapDataset.mix(sources, [weight * (end - begin) for weight, begin, end in ranges])


def batch_examples(
    store: TokenStore, spec: BatchSpec, step: int, *, host: int = 0, n_hosts: int = 1
) -> np.ndarray:
    """Returns `examples_I` of the batch that `make_batch` makes: documents or spans, by number."""
    n_examples = spec.batch_size // n_hosts
    first = step * spec.batch_size + host * n_examples
    order = example_order(store, spec)
    examples_I = np.fromiter((order[first + i] for i in range(n_examples)), np.int64)
    # The order counts what is left: step over what is held out before each.
    first_H, skipped_H = _held_out_examples(store, spec)
    examples_I += skipped_H[np.searchsorted(first_H - skipped_H[:-1], examples_I, side="right")]
    return store.documents_of_pairs[examples_I] if spec.example == "pair" else examples_I


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

    Examples come in the order of `example_order`. A pair is two different spans of a document,
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

    They are whole and, where the batches of `spec` are, masked; both are drawn from the documents
    alone.
    """
    documents_I = held_out_documents(store, spec.held_out)
    is_pair = len(store.documents_of_pairs) > 0
    spec = spec._replace(example="pair" if is_pair else "span", short_span_prob=0.0)
    examples_I = documents_I if is_pair else store.first_span_D[documents_I]
    return _rows_of(store, spec, examples_I, (0, 0), 0)


def _rows_of(
    store: TokenStore, spec: BatchSpec, examples_I: np.ndarray, key: tuple[int, int], first_row: int
) -> Batch:
    """Returns the rows of examples; the random numbers of a row depend on key and row number."""
    content, capacity = spec.length - 2, mask_capacity(spec.length)
    n_rows = len(examples_I) * (1 if spec.example == "span" else 2)
    draws_SxR = _draws(key, first_row, n_rows, 2 + draws_per_span(content, capacity))
    choice_S, cut_S, masks_SxR = draws_SxR[:, 0], draws_SxR[:, 1], draws_SxR[:, 2:]

    spans_S = examples_I
    if spec.example == "pair":
        spans_S = _two_spans(store, examples_I, choice_S.reshape(-1, 2)).reshape(-1)
    texts = store.read_spans(spans_S, content)
    if spec.example == "cloze":
        texts = split_sentence(*texts, choice_S.reshape(-1, 2))
    ids_SxC, starts_SxC, n_tokens_S = texts
    n_tokens_S = cut_short(starts_SxC, n_tokens_S, cut_S, spec.short_span_prob)
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
    n_examples = min(end - begin for _, begin, end in _ranges(store, spec))
    if spec.batch_size > n_examples:
        what = "documents of two spans" if spec.example == "pair" else "spans"
        what += " that are not held out" * (spec.held_out > 0)
        raise UserError(
            f"config.data.batch_size is {spec.batch_size} but {store.path} has only"
            f" {n_examples} {what}: one would come twice in a batch"
        )
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


def cut_short(
    starts_SxC: np.ndarray, n_tokens_S: np.ndarray, draws_S: np.ndarray, probability: float
) -> np.ndarray:
    """Returns new lengths: with a probability, uniform from one to all of a row's words."""
    if not probability:  # as most runs have it: nothing to count
        return n_tokens_S
    words_SxC = np.cumsum(starts_SxC > 0, axis=1)
    share_S = (draws_S & np.uint64(0xFFFFFFFF)) / 2.0**32
    n_words_S = 1 + (share_S * words_SxC[:, -1]).astype(np.int64)
    inside_SxC = np.arange(starts_SxC.shape[1]) < n_tokens_S[:, None]
    short_S = np.sum(inside_SxC & (words_SxC <= n_words_S[:, None]), axis=1, dtype=np.int32)
    is_short_S = (draws_S >> np.uint64(32)) / 2.0**32 < probability
    return np.where(is_short_S, short_S, n_tokens_S)


def with_specials(ids_SxC: np.ndarray, n_tokens_S: np.ndarray, store: TokenStore) -> np.ndarray:
    """Returns [CLS] tokens [SEP] padding as int32, two columns wider than the content."""
    n_spans, content = ids_SxC.shape
    ids_SxL = np.full((n_spans, content + 2), store.pad_id, np.int32)
    ids_SxL[:, 0] = store.cls_id
    inside_SxC = np.arange(content) < n_tokens_S[:, None]
    ids_SxL[:, 1:-1][inside_SxC] = ids_SxC[inside_SxC]
    ids_SxL[np.arange(n_spans), n_tokens_S + 1] = store.sep_id
    return ids_SxL


def _ranges(store: TokenStore, spec: BatchSpec) -> list[tuple[float, int, int]]:
    """Returns (weight, first example, end) of each source, not counting what is held out."""
    borders_Sx2 = np.array([(first, end) for _, _, first, end in store.sources])
    examples_Sx2 = _first_examples(store, spec, borders_Sx2)
    first_H, skipped_H = _held_out_examples(store, spec)
    examples_Sx2 = examples_Sx2 - skipped_H[np.searchsorted(first_H, examples_Sx2)]
    weights = (source.weight for source in store.sources)
    return [(w, int(a), int(b)) for w, (a, b) in zip(weights, examples_Sx2, strict=True)]


def _first_examples(store: TokenStore, spec: BatchSpec, documents: np.ndarray) -> np.ndarray:
    """Returns the number of each document's first example."""
    if spec.example == "pair":
        return np.searchsorted(store.documents_of_pairs, documents)
    return store.first_span_D[documents]


def _held_out_examples(store: TokenStore, spec: BatchSpec) -> tuple[np.ndarray, np.ndarray]:
    """Returns where the H held-out documents begin, `first_H`, and `skipped_H`.

    `skipped_H` has one entry more: how many examples are held out before each of them, and in all.
    """
    documents_H = np.sort(held_out_documents(store, spec.held_out))
    first_H = _first_examples(store, spec, documents_H)
    sizes_H = _first_examples(store, spec, documents_H + 1) - first_H
    return first_H, np.concatenate([[0], np.cumsum(sizes_H)])


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
