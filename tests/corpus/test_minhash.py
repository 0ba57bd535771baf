"""Signatures estimate the Jaccard similarity that sets of words give."""

import numpy as np
import pytest

from cocondenser_jax.corpus import minhash
from tests.world import make_texts


def shingles(text):
    """The shingles of an ASCII text of five words or more, as a set."""
    words = "".join(c if c.isalnum() else " " for c in text.lower()).split()
    return {tuple(words[i : i + 5]) for i in range(len(words) - 4)}


def jaccard(left, right):
    """The similarity of two texts, by their shingles."""
    left, right = shingles(left), shingles(right)
    return len(left & right) / len(left | right)


def altered(text, n_words, rng):
    """Puts new words in the place of some."""
    words = text.split()
    for place in rng.choice(len(words), n_words, replace=False):
        words[place] = f"new{rng.integers(1 << 30)}"
    return " ".join(words)


@pytest.fixture(scope="module")
def pairs():
    """Pairs of texts of all similarities."""
    rng = np.random.default_rng(0)
    texts = make_texts(300, n_sentences=12, seed=2)
    return [(text, altered(text, k % 15, rng)) for k, text in enumerate(texts)]


def test_agreement_estimates_the_similarity(pairs):
    exact = np.array([jaccard(*pair) for pair in pairs])
    _, left = minhash.sign([pair[0] for pair in pairs])
    _, right = minhash.sign([pair[1] for pair in pairs])
    short = [minhash.short_signatures(each) for each in (left, right)]
    n_agreeing = [minhash.count_agreeing(a[None], b)[0] for a, b in zip(*short, strict=True)]
    errors = np.array(n_agreeing) / 112 - exact
    assert {exact.min() < 0.3, exact.max() == 1} == {True}
    # Of independent hash functions: the standard errors of a share of 112.
    expected = np.sqrt(exact * (1 - exact) / 112)
    assert abs(errors.mean()) < 0.01
    assert np.sqrt((errors**2).mean()) == pytest.approx(np.sqrt((expected**2).mean()), rel=0.15)
    assert short[0].dtype == np.uint8


def test_texts_share_a_bucket_as_often_as_the_formula_says(pairs):
    expected = [1 - (1 - jaccard(*pair) ** 8) ** 14 for pair in pairs]
    keys = [minhash.bucket_keys(minhash.sign(texts)[1]) for texts in zip(*pairs, strict=True)]
    found = [bool({*a} & {*b}) for a, b in zip(*(each.tolist() for each in keys), strict=True)]
    assert np.mean(found) == pytest.approx(np.mean(expected), abs=0.04)
    assert 0.3 < np.mean(found) < 0.9
    assert len({*keys[0].ravel().tolist()}) > 300 * 13  # of unlike texts and bands: others


def test_a_signature_does_not_depend_on_the_texts_beside_it(pairs):
    texts = ["", "one word and two", *(pair[0] for pair in pairs[:20]), "...", "a"]
    numbers, minima = minhash.sign(texts)
    assert numbers.tolist() == [*range(1, 22), 23]
    for row, number in enumerate(numbers):
        assert np.array_equal(minhash.sign([texts[number]])[1], minima[row : row + 1])
    assert minhash.sign(["", " . "])[1].shape == minhash.sign([])[1].shape == (0, 112)


def test_words_are_without_capitals_punctuation_and_variants():
    assert minhash.split_words('He said: "Don\'t!"') == ["he", "said", "don", "t"]
    assert minhash.split_words("Ｃａｆe\u0301") == ["café"]
    assert minhash.split_words("用JAX训练。") == ["用", "jax", "训", "练"]
    assert minhash.split_words(" \n") == []


def signature(text):
    return minhash.sign([text])[1].tolist()


def test_a_text_shorter_than_a_shingle_is_one():
    assert signature("A few words") == signature("a few... WORDS")
    others = ["a few", "words few a", "a few words a few", "a few words more"]
    assert all(signature("a few words") != signature(other) for other in others)


def test_the_order_of_words_counts():
    assert signature("one two three four five") != signature("two one three four five")
