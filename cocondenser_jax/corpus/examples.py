"""The kinds of examples: what is drawn, and what texts are made of it; and what defines a batch."""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from cocondenser_jax.corpus.masking import MASK_PROBABILITY, mask_capacity
from cocondenser_jax.corpus.pairs import split_crops, split_sentence
from cocondenser_jax.corpus.prompts import RowSpec
from cocondenser_jax.corpus.store import TokenStore
from cocondenser_jax.corpus.token_files import Texts
from cocondenser_jax.errors import lookup

Role = Literal["query", "passage"]
_PAIR: tuple[Role, ...] = ("query", "passage")
_COPIES: tuple[Role, ...] = ("passage", "passage")
MIN_WORDS = 5  # of the sentence of a pair: a shorter one is too vague for a query


class Unit(NamedTuple):
    """What is drawn; units are numbered across a store, in the order of its documents."""

    name: str  # plural
    # Maps each document to its first unit or, if it has none, to the next one.
    first: Callable[[TokenStore, np.ndarray], np.ndarray]
    # Maps units to their documents.
    document: Callable[[TokenStore, np.ndarray], np.ndarray]


SPANS = Unit(
    "spans",
    first=lambda store, documents_D: store.first_span_D[documents_D],
    document=lambda store, spans_I: np.searchsorted(store.first_span_D, spans_I, side="right") - 1,
)
DOCUMENTS = Unit(
    "documents",
    first=lambda store, documents_D: documents_D,
    document=lambda store, documents_I: documents_I,
)
DOCUMENTS_OF_TWO_SPANS = Unit(
    "documents of two spans",
    first=lambda store, documents_D: np.searchsorted(store.documents_of_pairs, documents_D),
    document=lambda store, units_I: store.documents_of_pairs[units_I],
)

# Makes the texts of I examples, `n_rows` of each, from the store, their units, a random uint64 for
# each text, and the number of tokens that a text may have.
Maker = Callable[[TokenStore, np.ndarray, np.ndarray, int], Texts]


class Example(NamedTuple):
    """A kind of example: how it is drawn, made, masked and held out."""

    unit: Unit
    texts: tuple[Role, ...]  # the role of each text, which decides its prompt
    make: Maker
    # If 2, the second text repeats the first, and is masked with `decoder_mask_probability`.
    n_copies: int = 1
    # Whether held-out documents give such examples, from their first spans; otherwise two spans.
    is_held_out: bool = False

    @property
    def n_rows(self) -> int:
        """Number of texts of an example; two are a pair."""
        return len(self.texts)


def _span(store: TokenStore, spans_I: np.ndarray, draws_I: np.ndarray, length: int) -> Texts:
    return store.read_spans(spans_I, length)


def _two_spans(store: TokenStore, units_I: np.ndarray, draws_S: np.ndarray, length: int) -> Texts:
    """Reads two spans of each document, uniform over ordered pairs."""
    documents_I = DOCUMENTS_OF_TWO_SPANS.document(store, units_I)
    first_span_I = store.first_span_D[documents_I]
    n_spans_I = (store.first_span_D[documents_I + 1] - first_span_I).astype(np.uint64)
    left_I = draws_S[::2] % n_spans_I
    right_I = (left_I + np.uint64(1) + draws_S[1::2] % (n_spans_I - np.uint64(1))) % n_spans_I
    spans_Ix2 = first_span_I[:, None] + np.stack([left_I, right_I], 1).astype(np.int64)
    return store.read_spans(spans_Ix2.reshape(-1), length)


def _copies(store: TokenStore, spans_I: np.ndarray, draws_S: np.ndarray, length: int) -> Texts:
    return store.read_spans(np.repeat(spans_I, 2), length)


def _sentence(
    store: TokenStore, spans_I: np.ndarray, draws_S: np.ndarray, length: int, min_words: int
) -> Texts:
    spans = store.read_spans(spans_I, length)
    return split_sentence(spans, draws_S.reshape(-1, 2), min_words=min_words)


def _title(store: TokenStore, documents_I: np.ndarray, draws_S: np.ndarray, length: int) -> Texts:
    spans = store.read_spans(SPANS.first(store, documents_I), length)
    return split_sentence(spans, draws_S.reshape(-1, 2), is_first=True)


def _crops(store: TokenStore, spans_I: np.ndarray, draws_S: np.ndarray, length: int) -> Texts:
    return split_crops(store.read_spans(spans_I, length), draws_S[::2])


EXAMPLES = {
    # A span.
    "span": Example(SPANS, ("passage",), _span),
    # Two different spans of a document.
    "spans": Example(DOCUMENTS_OF_TWO_SPANS, _PAIR, _two_spans),
    # A sentence of a span, and the rest of the span.
    "cloze": Example(SPANS, _PAIR, partial(_sentence, min_words=1)),
    # The same, with a sentence of MIN_WORDS words or more if the span has one.
    "sentence": Example(SPANS, _PAIR, partial(_sentence, min_words=MIN_WORDS), is_held_out=True),
    # The first sentence of a document's first span, and the rest of the span.
    "title": Example(DOCUMENTS, _PAIR, _title, is_held_out=True),
    # A span cut in two between words.
    "crops": Example(SPANS, _PAIR, _crops, is_held_out=True),
    # A span twice.
    "copies": Example(SPANS, _COPIES, _copies, n_copies=2),
}


class BatchSpec(NamedTuple):
    """The settings that define a batch, together with the data and the step."""

    seed: int
    batch_size: int  #: examples
    length: int  #: tokens of a row, specials included
    example: str = "spans"  #: its kind, a name in `EXAMPLES`
    masked: bool = True  #: whether tokens are masked and to be predicted
    mask_probability: float = MASK_PROBABILITY  #: the fraction of tokens
    decoder_mask_probability: float = 0.5
    held_out: int = 0  #: documents that are never drawn, chosen by `order.held_out`
    query_prompt: str = ""  #: put before texts that act as queries
    passage_prompt: str = ""  #: put before all other texts
    #: maximum tokens of such a text, prompt and specials included; None: `length`
    query_length: int | None = None
    passage_length: int | None = None

    @property
    def kind(self) -> Example:
        """The kind that `example` names."""
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
    def mask_probabilities(self) -> tuple[float, ...]:
        """The fraction of tokens to mask in each text of an example."""
        kind = self.kind
        texts = [self.mask_probability] * (kind.n_rows // kind.n_copies)
        return *texts, *[self.decoder_mask_probability] * (kind.n_rows - len(texts))

    @property
    def n_slots(self) -> int:
        """Slots for masked tokens in a row."""
        return mask_capacity(self.length, max(self.mask_probabilities))
