"""The kinds of examples: what is drawn, and what texts are made of it."""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from cocondenser_jax.corpus.pairs import split_crops, split_sentence
from cocondenser_jax.corpus.store import TokenStore
from cocondenser_jax.corpus.token_files import Texts

Role = Literal["query", "passage"]
_PAIR: tuple[Role, ...] = ("query", "passage")
_COPIES: tuple[Role, ...] = ("passage", "passage")
MIN_WORDS = 5  # of the sentence of a pair: a shorter one says too little to be searched for


class Unit(NamedTuple):
    """What is drawn; units are numbered through a store, in the order of its documents."""

    name: str  # plural
    # Maps documents to the first unit of each or, where it has none, of those after it.
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
    texts: tuple[Role, ...]  # what each stands for, which decides the prompt before it
    make: Maker
    # Whether the second text repeats the first, and is masked with `decoder_mask_probability`.
    is_copied: bool = False
    # Whether held-out documents make such examples, of their first spans; else they give two spans.
    is_held_out: bool = False

    @property
    def n_rows(self) -> int:
        """Texts of an example; if two, they are a pair."""
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
    "copies": Example(SPANS, _COPIES, _copies, is_copied=True),
}
