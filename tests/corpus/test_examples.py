"""The kinds of examples: their names, and the units that they are drawn from."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from cocondenser_jax.corpus.examples import (
    DOCUMENTS,
    DOCUMENTS_OF_TWO_SPANS,
    EXAMPLES,
    SPANS,
    BatchSpec,
)
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.corpus.token_files import Texts
from cocondenser_jax.pretrain.objectives import OBJECTIVES
from cocondenser_jax.settings import declared_settings
from tests.world import make_texts, write_store


def test_settings_and_objectives_name_examples():
    pairs = declared_settings("pretrain")["data.pairs"].allowed
    assert all(EXAMPLES[name].n_rows == 2 for name in pairs)
    assert {objective.example for objective in OBJECTIVES.values()} - {None} <= EXAMPLES.keys()


def test_only_a_sentence_in_place_of_a_query_has_five_words():
    """Of a span with sentences of four and five words, of one token each."""
    starts = np.array([[2, 1, 1, 1, 2, 1, 1, 1, 1]], np.uint8)
    span = Texts(np.arange(1, 10)[None], starts, np.array([9]))
    store = SimpleNamespace(read_spans=lambda numbers, length: span)
    draws_IxS = np.random.default_rng(0).integers(0, 2**64, (50, 2), np.uint64)
    for name, lengths in (("cloze", {4, 5}), ("sentence", {5})):
        made = (EXAMPLES[name].make(store, np.array([0]), draws, 9) for draws in draws_IxS)
        assert {int(texts.n_tokens_N[0]) for texts in made} == lengths, name


def test_only_what_the_decoder_reads_is_masked_as_it_says():
    spec = BatchSpec(0, 16, 16, mask_probability=0.2, decoder_mask_probability=0.6)
    for name, example in EXAMPLES.items():
        expected = {"span": (0.2,), "copies": (0.2, 0.6)}.get(name, (0.2, 0.2))
        assert spec._replace(example=name).mask_probabilities == expected
        assert len(expected) == example.n_rows


@pytest.mark.parametrize("unit", [SPANS, DOCUMENTS, DOCUMENTS_OF_TWO_SPANS])
def test_units_are_numbered_in_the_order_of_documents(mixed, unit):
    store = open_store(Path(f"{mixed['some']},{mixed['many']}"))
    ends = store.first_span_D.tolist()
    expected = []  # the document of each unit
    first = []  # the first unit of each document, or of those after it
    for document in range(store.n_documents):
        n_spans = ends[document + 1] - ends[document]
        first.append(len(expected))
        expected += [document] * {
            "spans": n_spans,
            "documents": 1,
            "documents of two spans": int(n_spans >= 2),
        }[unit.name]
    first.append(len(expected))
    assert unit.document(store, np.arange(len(expected))).tolist() == expected
    assert unit.first(store, np.arange(store.n_documents + 1)).tolist() == first


def test_a_title_is_the_first_sentence_of_a_documents_first_span(tmp_path):
    """It is no part of the rest, whatever is drawn."""
    store = open_store(write_store(tmp_path, make_texts(6), max_length=60))
    draws_S = np.random.default_rng(0).integers(0, 2**64, 12, np.uint64)
    draws_S[1::2] = 0  # by which a cloze task's sentence would stay
    texts = EXAMPLES["title"].make(store, np.arange(6), draws_S, 58)
    rows = [ids[:n].tolist() for ids, n in zip(texts.ids_NxL, texts.n_tokens_N, strict=True)]
    spans = store.read_spans(store.first_span_D[:6], 58)
    for title, rest, ids, n in zip(
        rows[::2], rows[1::2], spans.ids_NxL, spans.n_tokens_N, strict=True
    ):
        assert [*title, *rest] == ids[:n].tolist()
        assert title
        assert rest
