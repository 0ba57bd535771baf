"""Whole-word masking against its definition, counted one token at a time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cocondenser_jax.corpus.masking import (
    draws_per_span,
    mask_capacity,
    mask_whole_words,
)
from cocondenser_jax.corpus.token_files import Texts

MASK, FIRST_ORDINARY, VOCAB = 4, 5, 1000
ORDINARY = np.arange(FIRST_ORDINARY, VOCAB, dtype=np.int32)


def masked(n_spans, length, word_share, seed, n_tokens_N=None):
    rng = np.random.default_rng(seed)
    content, capacity = length - 2, mask_capacity(length)
    ids_NxC = rng.integers(FIRST_ORDINARY, VOCAB, (n_spans, content)).astype(np.int32)
    word_start_NxC = rng.random((n_spans, content)) < word_share
    word_start_NxC[:, 0] = True
    if n_tokens_N is None:
        n_tokens_N = rng.integers(1, content + 1, n_spans)
    draws = rng.integers(0, 2**64, (n_spans, draws_per_span(content, capacity)), np.uint64)
    texts = Texts(ids_NxC, word_start_NxC.astype(np.uint8), n_tokens_N)
    spans = mask_whole_words(
        texts, draws, mask_id=MASK, ordinary_ids=ORDINARY, capacity=capacity, probability=0.15
    )
    return spans, ids_NxC, word_start_NxC, n_tokens_N


def words(word_start_C, n_tokens):
    """The words of a span as sets of positions; the slow way."""
    found = []
    for position in range(n_tokens):
        if word_start_C[position]:
            found.append(set())
        found[-1].add(position)
    return found


@settings(max_examples=60, deadline=None)
@given(
    n_spans=st.integers(1, 6),
    length=st.integers(4, 70),
    word_share=st.floats(0.05, 1.0),
    seed=st.integers(0, 2**32),
)
def test_masks_whole_words_inside_the_span_and_nothing_else(n_spans, length, word_share, seed):
    spans, ids, word_start, n_tokens = masked(n_spans, length, word_share, seed)
    for n in range(n_spans):
        used = spans.weights_NxM[n] > 0
        chosen = spans.positions_NxM[n][used].tolist()
        assert len(set(chosen)) == len(chosen)
        assert all(position < n_tokens[n] for position in chosen)
        cut = [
            word
            for word in words(word_start[n], n_tokens[n])
            if not word <= set(chosen) and word & set(chosen)
        ]
        assert len(cut) <= 1
        for word in cut:  # its first tokens, or its last
            part = sorted(word & set(chosen))
            assert part == list(range(part[0], part[-1] + 1))
            assert part[0] == min(word) or part[-1] == max(word)
        np.testing.assert_array_equal(spans.labels_NxM[n][used], ids[n][chosen])
        untouched = np.setdiff1d(np.arange(ids.shape[1]), chosen)
        np.testing.assert_array_equal(spans.ids_NxC[n][untouched], ids[n][untouched])
        assert not spans.positions_NxM[n][~used].any()
        assert not spans.labels_NxM[n][~used].any()


def mask_slowly(ids, word_start, draws, capacity):
    """The definition of the masking, one token at a time; returns positions and ids."""
    length = len(ids)
    choice, order, action = draws[0], draws[1:-capacity], draws[-capacity:]
    in_order = sorted(map(sorted, words(np.array(word_start), length)))
    in_order.sort(key=lambda word: (order[word[0]] >> 33, word[0]))
    if choice >> 32 & 1:
        in_order = [word[::-1] for word in in_order]
    drawn = (choice & 0xFFFFFFFF) * length >> 32
    first = 0  # the word of the token that was drawn
    while drawn >= len(in_order[first]):
        drawn -= len(in_order[first])
        first += 1
    if drawn and choice >> 33 & 1:
        first += 1
    n_masked = int(0.15 * length + (choice >> 34) / 2**30)
    positions = [p for word in in_order[first:] + in_order[:first] for p in word][:n_masked]
    shown = list(ids)
    for position, draw in zip(positions, action, strict=False):
        share = (draw >> 32) / 2**32
        if share < 0.8:
            shown[position] = MASK
        elif share < 0.9:
            shown[position] = int(ORDINARY[(draw & 0xFFFFFFFF) % len(ORDINARY)])
    return positions, shown


@settings(max_examples=100, deadline=None)
@given(length=st.integers(4, 60), word_share=st.floats(0.05, 1.0), seed=st.integers(0, 2**32))
def test_is_what_a_slow_masker_does(length, word_share, seed):
    rng = np.random.default_rng(seed)
    content, capacity = length - 2, mask_capacity(length)
    n_tokens = int(rng.integers(1, content + 1))
    ids = rng.integers(FIRST_ORDINARY, VOCAB, (1, content)).astype(np.int32)
    word_start = rng.random((1, content)) < word_share
    word_start[:, 0] = True
    used = min(capacity, content)
    draws = rng.integers(0, 2**64, (1, draws_per_span(content, capacity)), np.uint64)
    texts = Texts(ids, word_start.astype(np.uint8), np.array([n_tokens]))
    fast = mask_whole_words(
        texts, draws, mask_id=MASK, ordinary_ids=ORDINARY, capacity=capacity, probability=0.15
    )
    positions, shown = mask_slowly(
        ids[0, :n_tokens].tolist(), word_start[0, :n_tokens].tolist(),
        draws[0, : 1 + content + used].tolist(), used,
    )  # fmt: skip
    chosen = fast.weights_NxM[0] > 0
    assert fast.positions_NxM[0][chosen].tolist() == positions
    assert fast.ids_NxC[0, :n_tokens].tolist() == shown


def test_a_fifth_of_a_span_has_slots_and_more_if_more_is_masked():
    assert [mask_capacity(length) for length in (14, 64, 128)] == [3, 13, 26]
    assert mask_capacity(128, 0.3) == 26 + 20  # 15 % of 128 more


@pytest.mark.parametrize("length", [16, 32, 128])
@pytest.mark.parametrize("word_share", [0.02, 0.2, 0.6, 1.0])
def test_masks_fifteen_percent_of_the_tokens(length, word_share):
    spans, _, _, n_tokens = masked(20000, length, word_share, seed=1)
    assert spans.weights_NxM.sum() / n_tokens.sum() == pytest.approx(0.15, abs=0.002)
    # Of each text, to one token.
    n_masked = spans.weights_NxM.sum(axis=1)
    assert np.all(abs(n_masked - 0.15 * n_tokens) < 1)


def test_short_spans_are_masked_as_much_as_long_ones():
    spans, _, _, n_tokens = masked(20000, 32, 0.8, seed=2, n_tokens_N=np.full(20000, 5))
    assert spans.weights_NxM.sum() / n_tokens.sum() == pytest.approx(0.15, abs=0.005)


def test_replaces_eighty_ten_ten():
    spans, _, _, _ = masked(6000, 64, 0.8, seed=3)
    used = spans.weights_NxM > 0
    shown = np.take_along_axis(spans.ids_NxC, spans.positions_NxM.astype(int), axis=1)[used]
    kept, hidden = shown == spans.labels_NxM[used], shown == MASK
    other = shown[~kept & ~hidden]
    assert hidden.mean() == pytest.approx(0.8, abs=0.005)
    assert kept.mean() == pytest.approx(0.1, abs=0.005)
    assert np.isin(other, ORDINARY).all()
    # Random tokens come from the whole vocabulary, evenly.
    assert other.mean() == pytest.approx(ORDINARY.mean(), rel=0.03)


@pytest.mark.parametrize(("probability", "n_spans"), [(0.15, 60_000), (0.5, 20_000)])
def test_tokens_of_short_and_long_words_are_masked_equally_often(probability, n_spans):
    lengths = [1, 8, 1, 2, 12, 1, 1, 5, 3, 1, 4, 1, 1, 2, 6, 1, 1, 16, 1, 3, 1, 1, 1, 10, 2]
    rng = np.random.default_rng(5)
    starts = np.array([i == 0 for length in lengths for i in range(length)], np.uint8)
    content, capacity = len(starts), 48
    ids = np.zeros((n_spans, content), np.int32) + FIRST_ORDINARY
    draws = rng.integers(0, 2**64, (n_spans, draws_per_span(content, capacity)), np.uint64)
    texts = Texts(ids, np.tile(starts, (n_spans, 1)), np.full(n_spans, content))
    spans = mask_whole_words(
        texts,
        draws,
        mask_id=MASK,
        ordinary_ids=ORDINARY,
        capacity=capacity,
        probability=probability,
    )
    chosen = np.zeros(content)
    np.add.at(chosen, spans.positions_NxM[spans.weights_NxM > 0], 1)
    shares = chosen / n_spans
    in_word = np.cumsum(starts) - 1
    # What is masked, 13 tokens or 43, is longer than all words but one.
    for word, length in enumerate(lengths):
        if length < 0.15 * content:
            error = 5 * np.sqrt(0.15 * 0.85 / n_spans)
            assert shares[in_word == word].mean() == pytest.approx(probability, abs=error + 0.002)
            np.testing.assert_allclose(shares[in_word == word], probability, atol=error + 0.004)
        else:
            assert shares[in_word == word].mean() > 0.85 * probability
