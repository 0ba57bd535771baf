"""Two texts of a span: what is taken, what is left, and how often."""

import numpy as np
import pytest

from cocondenser_jax.corpus.pairs import split_crops, split_sentence
from cocondenser_jax.corpus.token_files import Texts

SENTENCES = np.array(
    [  # ids, starts (2: of a sentence, 1: of a word), tokens
        [[11, 12, 13, 14, 15, 16, 17], [2, 0, 1, 2, 1, 2, 0], [7] * 7],
        [[21, 22, 23, 24, 25, 0, 0], [2, 0, 1, 1, 1, 0, 0], [5] * 7],  # one sentence
        [[31, 32, 33, 34, 0, 0, 0], [1, 1, 2, 1, 0, 0, 0], [4] * 7],  # starts within a sentence
    ]
)


def test_a_cloze_is_a_sentence_and_the_rest_of_its_span():
    texts = Texts(SENTENCES[:, 0], SENTENCES[:, 1], SENTENCES[:, 2, 0])
    seen = [set(), set(), set()]
    kept, n_draws = 0, 400
    draws = np.random.default_rng(0).integers(0, 2**64, (n_draws, 3, 2), np.uint64)
    for draw in draws:
        rows = split_sentence(texts, draw)
        ids, starts, n_tokens = rows
        assert ids.shape == starts.shape == (6, 7)
        tokens = [tuple(row[:n].tolist()) for row, n in zip(ids, n_tokens, strict=True)]
        assert all((row[n:] == 0).all() for row, n in zip(ids, n_tokens, strict=True))
        for i, pair in enumerate(zip(tokens[::2], tokens[1::2], strict=True)):
            whole = tuple(SENTENCES[i, 0, : SENTENCES[i, 2, 0]].tolist())
            kept += pair[1] == whole
            if pair[1] != whole:
                seen[i].add(pair)
    assert seen[0] == {
        ((11, 12, 13), (14, 15, 16, 17)),
        ((14, 15), (11, 12, 13, 16, 17)),
        ((16, 17), (11, 12, 13, 14, 15)),
    }
    assert seen[1] == {((21, 22, 23), (24, 25))}
    assert seen[2] == {((31, 32), (33, 34)), ((33, 34), (31, 32))}
    assert abs(kept / (3 * n_draws) - 0.1) < 0.026  # three standard deviations


def test_a_single_sentence_gives_two_texts_however_long_its_words_are():
    starts = np.array(
        [
            [2, 0, 0, 0, 0, 1, 1],  # the first word ends after the half
            [2, 0, 0, 0, 0, 0, 1],
            [2, 0, 0, 0, 0, 0, 0],  # a single word
            [2, 0, 0, 0, 1, 0, 0],  # a word begins at the half
            [2, 1, 0, 0, 0, 0, 0],
        ]
    )
    ids = np.arange(1, 8) * np.ones((5, 1), int)
    draws = np.full((5, 2), 2**63, np.uint64)  # no sentence stays
    rows = tokens_of(split_sentence(Texts(ids, starts, np.full(5, 7)), draws))
    assert [(len(left), len(right)) for left, right in zip(rows[::2], rows[1::2], strict=True)] == [
        (5, 2),
        (6, 1),
        (3, 4),
        (4, 3),
        (1, 6),
    ]
    assert all(rows[2 * i] + rows[2 * i + 1] == (1, 2, 3, 4, 5, 6, 7) for i in range(5))


def test_the_half_of_an_even_number_of_tokens():
    """The second half begins at the last word that begins in the first one."""
    starts = np.array([[2, 1, 0, 0, 1, 0], [2, 0, 0, 1, 0, 0], [2, 0, 1, 1, 0, 0]])
    ids = np.arange(1, 7) * np.ones((3, 1), int)
    rows = split_sentence(Texts(ids, starts, np.full(3, 6)), np.full((3, 2), 2**63, np.uint64))
    assert [len(left) for left in tokens_of(rows)[::2]] == [1, 3, 3]


def tokens_of(rows):
    ids, _, n_tokens = rows
    return [tuple(row[:n].tolist()) for row, n in zip(ids, n_tokens, strict=True)]


def drawn(n, *shape):
    return np.random.default_rng(1).integers(0, 2**64, (n, *shape), np.uint64)


def test_a_sentence_has_enough_words_where_one_has():
    """Sentences of one, three and two words; no sentence of five."""
    ids = np.arange(1, 8)[None]
    starts = np.array([[2, 2, 1, 1, 0, 2, 1]], np.uint8)
    texts = Texts(ids, starts, np.array([7]))

    def sentences(min_words):
        rows = [split_sentence(texts, draw, min_words=min_words) for draw in drawn(200, 1, 2)]
        return {tokens_of(row)[0] for row in rows}

    # Of four tokens there is one, of four words none.
    assert sentences(1) == sentences(4) == sentences(5) == {(1,), (2, 3, 4, 5), (6, 7)}
    assert sentences(2) == {(2, 3, 4, 5), (6, 7)}
    assert sentences(3) == {(2, 3, 4, 5)}


def test_a_title_is_the_first_sentence_and_never_stays():
    ids = np.arange(1, 8)[None]
    starts = np.array([[2, 1, 1, 2, 1, 2, 1]], np.uint8)
    texts = Texts(ids, starts, np.array([7]))
    for draw in drawn(60, 1, 2):
        rows = split_sentence(texts, draw, is_first=True)
        assert tokens_of(rows) == [(1, 2, 3), (4, 5, 6, 7)]


def test_crops_are_cut_uniformly_between_words_of_the_middle_half():
    ids = np.arange(1, 13)[None]
    starts = np.ones((1, 12), np.uint8)
    starts[0, 5] = 0  # within a word
    texts = Texts(ids, starts, np.array([12]))
    borders = []
    for draw in drawn(600, 1):
        left, right = tokens_of(split_crops(texts, draw))
        assert left + right == tuple(range(1, 13))
        borders.append(len(left))
    counts = np.bincount(borders, minlength=12)
    assert set(np.flatnonzero(counts)) == {3, 4, 6, 7, 8, 9}
    assert counts[counts > 0].min() > 60


@pytest.mark.parametrize("n_tokens", [8, 9])
def test_a_span_of_one_word_is_cut_in_the_middle(n_tokens):
    starts = np.zeros((1, 10), np.uint8)
    starts[0, 0] = 2
    ids = np.where(np.arange(10) < n_tokens, np.arange(1, 11), 0)[None]
    texts = Texts(ids, starts, np.array([n_tokens]))
    left, right = tokens_of(split_crops(texts, drawn(1)[0:1].ravel()))
    assert (len(left), len(right)) == (4, n_tokens - 4)
