"""Batches of token spans: each is a pure function of the data, the seed and the step.

`order.py` chooses the examples of a batch; this module makes their rows. A run that resumes at step
t needs no other state, and every host computes its own rows.
"""

from collections.abc import Iterator
from typing import NamedTuple, Self

import grain
import numpy as np

from cocondenser_jax.corpus.examples import BatchSpec
from cocondenser_jax.corpus.masking import draws_per_span, mask_whole_words
from cocondenser_jax.corpus.order import batch_examples, hash_rows, held_out, held_out_kind
from cocondenser_jax.corpus.prompts import count_tokens, prompt_lengths, read_as
from cocondenser_jax.corpus.spans import MIN_TOKENS
from cocondenser_jax.corpus.store import TokenStore
from cocondenser_jax.corpus.token_files import Texts
from cocondenser_jax.corpus.tokenizer import N_AROUND, SpanTokenizer
from cocondenser_jax.errors import UserError


class Batch(NamedTuple):
    """A batch of S rows of L tokens. If the examples are pairs, rows 2i and 2i + 1 form a pair."""

    input_ids_SxL: np.ndarray  #: int32; [CLS], tokens, [SEP], padding; some are masked
    attention_mask_SxL: np.ndarray  #: bool
    masked_positions_SxM: np.ndarray  #: int32
    labels_SxM: np.ndarray  #: int32
    weights_SxM: np.ndarray  #: float32, 1 where a slot is used; a span's used slots come first
    #: int32; the number of each row's document, and a hash of its text. Rows that share either are
    #: not negatives of each other.
    origins_Sx2: np.ndarray
    #: int32; tokens up to the end of a row's prompt, as tokenized by itself; 0 without a prompt.
    #: Some models leave these out of their pooling.
    prompt_lengths_S: np.ndarray

    @classmethod
    def zeros(cls, n_rows: int, length: int, n_slots: int) -> Self:
        """Returns a batch of zeros, with the shapes and types of any batch."""
        return cls(
            input_ids_SxL=np.zeros((n_rows, length), np.int32),
            attention_mask_SxL=np.zeros((n_rows, length), np.bool_),
            masked_positions_SxM=np.zeros((n_rows, n_slots), np.int32),
            labels_SxM=np.zeros((n_rows, n_slots), np.int32),
            weights_SxM=np.zeros((n_rows, n_slots), np.float32),
            origins_Sx2=np.zeros((n_rows, 2), np.int32),
            prompt_lengths_S=np.zeros(n_rows, np.int32),
        )

    @classmethod
    def of_texts(cls, ids_SxL: np.ndarray, mask_SxL: np.ndarray) -> Self:
        """Returns a batch of texts without masked tokens and without pairs."""
        n_rows, length = ids_SxL.shape
        zeros = cls.zeros(n_rows, length, n_slots=0)
        return zeros._replace(input_ids_SxL=ids_SxL, attention_mask_SxL=mask_SxL)

    def cut(self, length: int, n_slots: int) -> Self:
        """Returns the batch with only the first `length` tokens and `n_slots` slots of each row."""
        return self._replace(
            input_ids_SxL=self.input_ids_SxL[:, :length],
            attention_mask_SxL=self.attention_mask_SxL[:, :length],
            masked_positions_SxM=self.masked_positions_SxM[:, :n_slots],
            labels_SxM=self.labels_SxM[:, :n_slots],
            weights_SxM=self.weights_SxM[:, :n_slots],
        )


def make_batch(
    store: TokenStore, spec: BatchSpec, step: int, *, host: int = 0, n_hosts: int = 1
) -> Batch:
    """Returns a host's `n_rows / n_hosts` rows of a step's batch; hosts and steps start at 0."""
    examples_I = batch_examples(store, spec, step, host=host, n_hosts=n_hosts)
    first_row = host * spec.n_rows // n_hosts
    return _rows_of(store, spec, examples_I, (spec.seed, step), first_row)


def held_out_batch(store: TokenStore, spec: BatchSpec) -> Batch:
    """Returns an example of each held-out document, of `held_out_kind`, independent of the seed."""
    documents_I = held_out(store, spec)
    spec = spec._replace(example=held_out_kind(store, spec))
    return _rows_of(store, spec, spec.kind.unit.first(store, documents_I), (0, 0), 0)


def _rows_of(
    store: TokenStore, spec: BatchSpec, examples_I: np.ndarray, key: tuple[int, int], first_row: int
) -> Batch:
    """Returns the rows of examples; a row's random numbers depend on the key and its number."""
    kind = spec.kind
    content = spec.length - N_AROUND
    capacity = spec.n_slots
    n_rows = len(examples_I) * kind.n_rows
    draws_SxR = _draws(key, first_row, n_rows, 1 + draws_per_span(content, capacity))
    texts = kind.make(store, examples_I, draws_SxR[:, 0], content)
    documents_S = np.repeat(kind.unit.document(store, examples_I), kind.n_rows)
    texts_S = hash_rows(texts.ids_NxL) >> np.uint64(33)
    texts = _as_read(texts, spec, store.tokenizer)
    origins_Sx2 = np.stack([documents_S.astype(np.int32), texts_S.astype(np.int32)], axis=1)
    probability_S = np.resize(spec.mask_probabilities, n_rows) * float(spec.masked)
    masked = mask_whole_words(
        texts,
        draws_SxR[:, 1:],
        mask_id=store.mask_id,
        ordinary_ids=np.delete(np.arange(store.vocab_size, dtype=np.int32), store.special_ids),
        capacity=capacity,
        probability=probability_S,
    )
    return Batch(
        input_ids_SxL=with_specials(masked.ids_NxC, texts.n_tokens_N, store),
        attention_mask_SxL=np.arange(spec.length) < texts.n_tokens_N[:, None] + N_AROUND,
        # [CLS] shifts every token by one; unused slots stay at 0.
        masked_positions_SxM=masked.positions_NxM + masked.weights_NxM.astype(np.int32),
        labels_SxM=masked.labels_NxM,
        weights_SxM=masked.weights_NxM,
        origins_Sx2=origins_Sx2,
        prompt_lengths_S=np.resize(
            prompt_lengths([each.prompt for each in spec.row_specs], store.tokenizer), n_rows
        ),
    )


def require_room(spec: BatchSpec, tokenizer: SpanTokenizer) -> None:
    """Raises a UserError for a prompt or a limit that leaves almost no tokens for the text."""
    for prompt, length in spec.row_specs:
        n_tokens = count_tokens(prompt, tokenizer)
        least = n_tokens + N_AROUND + MIN_TOKENS
        if prompt and spec.length < least:
            raise UserError(
                f"config.data.length {spec.length} is too short for the model's prompt {prompt!r},"
                f" of {n_tokens} tokens; expected {least} or more"
            )
        if length <= n_tokens + N_AROUND:
            raise UserError(
                f"the model reads {length} tokens of a text, its prompt {prompt!r} included, which"
                f" has {n_tokens}; expected {n_tokens + N_AROUND + 1} or more"
            )


def _as_read(texts: Texts, spec: BatchSpec, tokenizer: SpanTokenizer) -> Texts:
    """Puts the prompts of a spec before the texts of its examples, and truncates them."""
    row_specs = spec.row_specs
    of_roles = [
        read_as(row_spec, Texts(*(x[i :: len(row_specs)] for x in texts)), tokenizer)
        for i, row_spec in enumerate(row_specs)
    ]
    in_turn = [np.stack(arrays, axis=1) for arrays in zip(*of_roles, strict=True)]
    return Texts(*(x.reshape(-1, *x.shape[2:]) for x in in_turn))


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
    steps = grain.MapDataset.range(first_step, n_steps)
    batches = steps.map(lambda step: make_batch(store, spec, int(step), host=host, n_hosts=n_hosts))
    return iter(batches.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)))


def with_specials(ids_SxC: np.ndarray, n_tokens_S: np.ndarray, store: TokenStore) -> np.ndarray:
    """Returns [CLS] tokens [SEP] padding as int32, N_AROUND columns wider than the content."""
    n_spans, content = ids_SxC.shape
    ids_SxL = np.full((n_spans, content + N_AROUND), store.pad_id, np.int32)
    ids_SxL[:, 0] = store.cls_id
    inside_SxC = np.arange(content) < n_tokens_S[:, None]
    ids_SxL[:, 1:-1][inside_SxC] = ids_SxC[inside_SxC]
    ids_SxL[np.arange(n_spans), n_tokens_S + 1] = store.sep_id
    return ids_SxL


def _draws(key: tuple[int, int], first_row: int, n_rows: int, n_columns: int) -> np.ndarray:
    """Returns uniform uint64 for rows; a row's numbers do not depend on `first_row`."""
    n_columns += -n_columns % 4  # Philox advances four numbers at a time
    generator = np.random.Philox(key=key)
    generator.advance(first_row * n_columns // 4)
    return generator.random_raw(n_rows * n_columns).reshape(n_rows, n_columns)
