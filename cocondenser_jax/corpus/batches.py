"""Batches of token spans: each is a pure function of the data, the seed and the step.

A run that resumes at step t needs no other state, and every host computes its own rows.
"""

import functools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

import grain
import numpy as np

from cocondenser_jax.corpus.examples import EXAMPLES, Example
from cocondenser_jax.corpus.masking import (
    MASK_PROBABILITY,
    draws_per_span,
    mask_capacity,
    mask_whole_words,
)
from cocondenser_jax.corpus.prompts import RowSpec, count_tokens, prompt_lengths, read_as
from cocondenser_jax.corpus.spans import MIN_TOKENS
from cocondenser_jax.corpus.store import TokenStore, WeightedCorpus
from cocondenser_jax.corpus.token_files import Texts
from cocondenser_jax.corpus.tokenizer import N_AROUND, SpanTokenizer
from cocondenser_jax.errors import UserError, lookup

_DOCUMENTS_AT_ONCE = 10_000  # documents hashed together, to choose the held-out ones


class Batch(NamedTuple):
    """S rows of L tokens. If examples are pairs, rows 2i and 2i + 1 form a pair."""

    input_ids_SxL: np.ndarray  #: int32; [CLS], tokens, [SEP], padding; some are masked
    attention_mask_SxL: np.ndarray  #: bool
    masked_positions_SxM: np.ndarray  #: int32
    labels_SxM: np.ndarray  #: int32
    weights_SxM: np.ndarray  #: float32, 1 where a slot is used; a span's used slots come first
    #: int32; the number of a row's document, and a hash of its text. Rows that share either are not
    #: negatives of each other.
    origins_Sx2: np.ndarray
    #: int32; tokens from the first to the last of a row's prompt, as a tokenizer reads the prompt
    #: alone; 0 without a prompt. Some models leave these out of their pooling.
    prompt_lengths_S: np.ndarray

    @classmethod
    def zeros(cls, n_rows: int, length: int, n_slots: int) -> Self:
        """Returns a batch of zeros: the shapes and types of all others."""
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
        """Returns a batch of texts in which there is nothing to predict and nothing to compare."""
        n_rows, length = ids_SxL.shape
        zeros = cls.zeros(n_rows, length, n_slots=0)
        return zeros._replace(input_ids_SxL=ids_SxL, attention_mask_SxL=mask_SxL)

    def cut(self, length: int, n_slots: int) -> Self:
        """Returns the first `length` tokens and `n_slots` slots of all rows."""
        return self._replace(
            input_ids_SxL=self.input_ids_SxL[:, :length],
            attention_mask_SxL=self.attention_mask_SxL[:, :length],
            masked_positions_SxM=self.masked_positions_SxM[:, :n_slots],
            labels_SxM=self.labels_SxM[:, :n_slots],
            weights_SxM=self.weights_SxM[:, :n_slots],
        )


class BatchSpec(NamedTuple):
    """The settings that define a batch, together with the data and the step."""

    seed: int
    batch_size: int  #: examples
    length: int  #: tokens of a row, specials included
    example: str = "spans"  #: its kind, a name in `examples.EXAMPLES`
    masked: bool = True  #: whether tokens are masked and to be predicted
    mask_probability: float = MASK_PROBABILITY  #: the fraction of tokens
    decoder_mask_probability: float = 0.5
    held_out: int = 0  #: documents that are never drawn, as `held_out_documents` chooses them
    query_prompt: str = ""  #: put before texts that stand for queries
    passage_prompt: str = ""  #: put before all other texts
    #: tokens that are read of such a text, prompt and specials included; None: `length`
    query_length: int | None = None
    passage_length: int | None = None

    @property
    def kind(self) -> Example:
        """What `example` names."""
        kind: Example = lookup(EXAMPLES, self.example, "example")
        return kind

    @property
    def pair_specs(self) -> tuple[RowSpec, RowSpec]:
        """How a query and a passage are read."""
        query_length, passage_length = (
            min(length or self.length, self.length)
            for length in (self.query_length, self.passage_length)
        )
        query = RowSpec(self.query_prompt, query_length)
        return query, RowSpec(self.passage_prompt, passage_length)

    @property
    def row_specs(self) -> tuple[RowSpec, ...]:
        """How each text of an example is read."""
        query, passage = self.pair_specs
        return tuple(query if role == "query" else passage for role in self.kind.texts)

    @property
    def n_rows(self) -> int:
        """Rows of a batch, a text each."""
        return self.batch_size * self.kind.n_rows

    @property
    def n_slots(self) -> int:
        """Slots for masked tokens in a row."""
        probability = self.mask_probability
        if self.kind.is_copied:
            probability = max(probability, self.decoder_mask_probability)
        return mask_capacity(self.length, probability)


class _Pool(NamedTuple):
    """Examples that are shuffled together: runs of numbers, without those held out."""

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

    Each pass over the examples has its own order, and leaves out those that fill no whole batch.
    Corpora of different weights have their own passes: every batch has the same number of examples
    of each, in proportion to weight and size.

    Raises:
      UserError: if an example would come twice in a batch, or none of some corpus.
    """
    examples = []
    for pool, quota in _quotas(store, spec):
        n_pass, step_of_pass = divmod(step, pool.size // quota)
        first = n_pass * pool.size + step_of_pass * quota
        examples.append(pool.draw(spec.seed, first, quota))
    return np.split(np.concatenate(examples), n_hosts)[host]


def _quotas(store: TokenStore, spec: BatchSpec) -> list[tuple[_Pool, int]]:
    """Returns the pools, and how many examples of each a batch takes: see `batch_examples`."""
    pools = _pools(store, spec)
    sizes_P = np.array([pool.weight * pool.size for pool in pools])
    exact_P = spec.batch_size * sizes_P / max(sizes_P.sum(), 1e-9)
    quotas_P = np.floor(exact_P).astype(int)
    n_missing = spec.batch_size - quotas_P.sum()
    quotas_P[np.argsort(quotas_P - exact_P, kind="stable")[:n_missing]] += 1
    quotas = [(pool, int(quota)) for pool, quota in zip(pools, quotas_P, strict=True)]
    for pool, quota in quotas:
        if not 0 < quota <= pool.size:
            raise UserError(
                f"config.data.batch_size {spec.batch_size} takes {quota} {spec.kind.unit.name}"
                f" of {pool.path} into each batch; expected 1 to {pool.size}, those that are not"
                " held out, for a batch may hold none twice"
            )
    return quotas


def batch_document_ids(store: TokenStore, spec: BatchSpec, step: int) -> list[str]:
    """Returns the names of the documents that the examples of a batch come from."""
    documents_I = spec.kind.unit.document(store, batch_examples(store, spec, step))
    return [store.document_id(int(number)) for number in documents_I]


def make_batch(
    store: TokenStore, spec: BatchSpec, step: int, *, host: int = 0, n_hosts: int = 1
) -> Batch:
    """Returns a host's `n_rows / n_hosts` rows of a step's batch; hosts and steps count from 0."""
    examples_I = batch_examples(store, spec, step, host=host, n_hosts=n_hosts)
    first_row = host * spec.n_rows // n_hosts
    return _rows_of(store, spec, examples_I, (spec.seed, step), first_row)


@functools.lru_cache(maxsize=8)
def held_out_documents(store: TokenStore, n: int, of_one_span: bool = False) -> np.ndarray:
    """Returns the numbers of the `n` documents, at most a tenth of all, that are never drawn.

    Of the documents with two spans (with one, if `of_one_span` or where none has two), these have
    the lowest hashes, in order, of first and last spans: the same in however many tasks a store was
    built, identical texts together.
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
    ids = [store.read_spans(spans_D, store.max_tokens - 2).ids_NxL for spans_D in ends]
    return _hash_rows(np.concatenate(ids, axis=1))


def _hash_rows(ids_SxC: np.ndarray) -> np.ndarray:
    """Returns 64 bits of each row of tokens: equal for equal rows, and for hardly any others."""
    return ids_SxC.astype(np.uint64) @ np.random.Philox(key=0).random_raw(ids_SxC.shape[1])


def held_out_batch(store: TokenStore, spec: BatchSpec) -> Batch:
    """Returns an example of each held-out document, whatever the seed.

    Of a kind that is not held out, it is two spans, or one where no document has two.
    """
    documents_I = held_out_documents(store, spec.held_out, spec.kind.is_held_out)
    if not spec.kind.is_held_out:
        spec = spec._replace(example="spans" if len(store.documents_of_pairs) else "span")
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
    texts_S = _hash_rows(texts.ids_NxL) >> np.uint64(33)
    texts = _as_read(texts, spec, store.tokenizer)
    origins_Sx2 = np.stack([documents_S.astype(np.int32), texts_S.astype(np.int32)], axis=1)
    probability_S = np.full(n_rows, spec.mask_probability if spec.masked else 0.0)
    if kind.is_copied:
        probability_S[1::2] = spec.decoder_mask_probability
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
        # [CLS] moves every token by one; unused slots stay at 0.
        masked_positions_SxM=masked.positions_NxM + masked.weights_NxM.astype(np.int32),
        labels_SxM=masked.labels_NxM,
        weights_SxM=masked.weights_NxM,
        origins_Sx2=origins_Sx2,
        prompt_lengths_S=np.resize(
            prompt_lengths([each.prompt for each in spec.row_specs], store.tokenizer), n_rows
        ),
    )


def require_room(spec: BatchSpec, tokenizer: SpanTokenizer) -> None:
    """Raises a UserError for a prompt or a limit that leaves hardly a token to the text."""
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
    """Puts the prompts of a spec before the texts of its examples, and cuts what is too long."""
    row_specs = spec.row_specs
    of_roles = [
        read_as(row_spec, Texts(*(x[i :: len(row_specs)] for x in texts)), tokenizer)
        for i, row_spec in enumerate(row_specs)
    ]
    in_turn = [np.stack(arrays, axis=1) for arrays in zip(*of_roles, strict=True)]
    return Texts(*(x.reshape(-1, *x.shape[2:]) for x in in_turn))


def require_examples(store: TokenStore, spec: BatchSpec, n_hosts: int = 1) -> None:
    """Raises a UserError for batches that a store, or a number of hosts, cannot fill."""
    if spec.batch_size % n_hosts:
        raise UserError(
            f"config.data.batch_size {spec.batch_size} is not a multiple of {n_hosts} hosts"
        )
    _quotas(store, spec)


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
    require_examples(store, spec, n_hosts)  # refused here rather than in a thread
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


def _pools(store: TokenStore, spec: BatchSpec) -> list[_Pool]:
    """Returns the pool of each corpus, or a single one where all have the same weight."""
    corpora = store.corpora
    if len({corpus.weight for corpus in corpora}) == 1:
        end = corpora[-1].end_document
        corpora = (corpora[0]._replace(path=store.path, end_document=end),)
    return [_pool(store, spec, corpus) for corpus in corpora]


def _pool(store: TokenStore, spec: BatchSpec, corpus: WeightedCorpus) -> _Pool:
    held_out_H = np.sort(held_out_documents(store, spec.held_out, spec.kind.is_held_out))
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


def _draws(key: tuple[int, int], first_row: int, n_rows: int, n_columns: int) -> np.ndarray:
    """Returns uniform uint64 for rows; a row's numbers do not depend on `first_row`."""
    n_columns += -n_columns % 4  # Philox advances by four numbers at a time
    generator = np.random.Philox(key=key)
    generator.advance(first_row * n_columns // 4)
    return generator.random_raw(n_rows * n_columns).reshape(n_rows, n_columns)
