"""From (seed, step) to a batch of span pairs.

A batch is a pure function of the data, the seed and the step: a run that resumes at step t needs no
other state, and every host computes its own rows of a batch that all hosts agree on.
"""

from collections.abc import Iterator
from typing import NamedTuple

import grain
import numpy as np

from cocondenser_jax.corpus.masking import draws_per_span, mask_capacity, mask_whole_words
from cocondenser_jax.corpus.store import TokenStore
from cocondenser_jax.errors import UserError


class Batch(NamedTuple):
    """S spans of L tokens; spans 2i and 2i + 1 come from one document."""

    input_ids_SxL: np.ndarray  # int32, masked: [CLS] tokens [SEP] padding
    attention_mask_SxL: np.ndarray  # bool
    masked_positions_SxM: np.ndarray  # int32
    labels_SxM: np.ndarray  # int32
    weights_SxM: np.ndarray  # float32, 1 where a slot is used; a span's used slots come first


class BatchSpec(NamedTuple):
    """What defines a batch, besides the data."""

    seed: int
    documents_per_step: int
    length: int  # tokens of a span, specials included


def document_order(store: TokenStore, seed: int) -> grain.MapDataset:
    """Returns the endless sequence of document indices: each once per epoch, reshuffled."""
    return grain.MapDataset.range(store.n_documents).seed(seed).shuffle().repeat()


def batch_documents(
    store: TokenStore, spec: BatchSpec, step: int, *, host: int = 0, n_hosts: int = 1
) -> np.ndarray:
    """Returns `documents_I`, the documents of the batch that `make_batch` makes."""
    n_documents = spec.documents_per_step // n_hosts
    first = step * spec.documents_per_step + host * n_documents
    order = document_order(store, spec.seed)
    return np.fromiter((order[first + i] for i in range(n_documents)), np.int64)


def make_batch(
    store: TokenStore, spec: BatchSpec, step: int, *, host: int = 0, n_hosts: int = 1
) -> Batch:
    """Returns one host's `2 * documents_per_step / n_hosts` spans of the batch of a step.

    Documents come in the order of `document_order`; of each, two different spans, uniform over
    ordered pairs.

    Args:
      store: the tokenised corpus.
      spec: seed, batch size and length.
      step: counts from 0.
      host: which of `n_hosts` equal parts, from 0.
      n_hosts: number of parts.
    """
    n_documents = spec.documents_per_step // n_hosts
    first = host * n_documents
    documents_I = batch_documents(store, spec, step, host=host, n_hosts=n_hosts)

    content = spec.length - 2
    capacity = mask_capacity(spec.length)
    per_span = draws_per_span(content, capacity)
    draws_IxR = _draws(spec.seed, step, first, n_documents, 2 + 2 * per_span)

    first_span_I = store.first_span_D[documents_I]
    n_spans_I = (store.first_span_D[documents_I + 1] - first_span_I).astype(np.uint64)
    left_I = draws_IxR[:, 0] % n_spans_I
    right_I = (left_I + np.uint64(1) + draws_IxR[:, 1] % (n_spans_I - np.uint64(1))) % n_spans_I
    spans_S = (first_span_I[:, None] + np.stack([left_I, right_I], 1).astype(np.int64)).reshape(-1)

    ids_SxC, word_start_SxC, n_tokens_S = store.read_spans(spans_S, content)
    masked = mask_whole_words(
        ids_SxC,
        word_start_SxC,
        n_tokens_S,
        draws_IxR[:, 2 : 2 + 2 * per_span].reshape(-1, per_span),
        mask_id=store.mask_id,
        ordinary_ids=ordinary_ids(store),
        capacity=capacity,
    )
    return Batch(
        input_ids_SxL=_with_specials(masked.ids_NxC, n_tokens_S, store),
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
    """Yields the batches of steps `first_step` to `n_steps - 1`, prepared ahead in threads.

    Raises:
      UserError: if the batch cannot be filled or split over the hosts.
    """
    if spec.documents_per_step % n_hosts:
        raise UserError(
            f"documents_per_step {spec.documents_per_step} is not a multiple of {n_hosts} hosts"
        )
    if spec.documents_per_step > store.n_documents:
        raise UserError(
            f"documents_per_step is {spec.documents_per_step} but the store has only"
            f" {store.n_documents} documents: a document would be its own negative"
        )
    steps = grain.MapDataset.range(first_step, n_steps)
    batches = steps.map(lambda step: make_batch(store, spec, int(step), host=host, n_hosts=n_hosts))
    return iter(batches.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)))


def ordinary_ids(store: TokenStore) -> np.ndarray:
    """Returns every token id of the vocabulary that is not special."""
    return np.delete(np.arange(store.vocab_size, dtype=np.int32), store.special_ids)


def _draws(seed: int, step: int, first_row: int, n_rows: int, n_columns: int) -> np.ndarray:
    """Returns uniform uint64 for rows of a step; a row's numbers do not depend on `first_row`."""
    n_columns += -n_columns % 4  # Philox advances by four numbers at a time
    generator = np.random.Philox(key=[seed, step])
    generator.advance(first_row * n_columns // 4)
    return generator.random_raw(n_rows * n_columns).reshape(n_rows, n_columns)


def _with_specials(ids_SxC: np.ndarray, n_tokens_S: np.ndarray, store: TokenStore) -> np.ndarray:
    """Returns [CLS] tokens [SEP] padding as int32, two columns wider than the content."""
    n_spans, content = ids_SxC.shape
    ids_SxL = np.full((n_spans, content + 2), store.pad_id, np.int32)
    ids_SxL[:, 0] = store.cls_id
    inside_SxC = np.arange(content) < n_tokens_S[:, None]
    ids_SxL[:, 1:-1][inside_SxC] = ids_SxC[inside_SxC]
    ids_SxL[np.arange(n_spans), n_tokens_S + 1] = store.sep_id
    return ids_SxL
