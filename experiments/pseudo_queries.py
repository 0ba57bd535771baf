"""Makes queries of passages, of several kinds."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from cocondenser_jax.corpus.examples import MIN_WORDS
from cocondenser_jax.pipelines.agreement import N_WORDS

MOST_WORDS = 30  # of a sentence
_END = re.compile(r"(?<=[.!?:])\s+|\n+")


def make_queries(texts: Sequence[str], n: int, seed: int) -> list[str]:
    """Makes n queries of texts that are drawn by a seed, of the kinds in turn; fewer of few texts.

    The kinds are words in a row, the words that the fewest texts have, the first sentence, and any
    sentence of five words or more. A text gives no more than one query of a kind.
    """
    rng = np.random.default_rng(seed)
    counts = Counter(word for text in texts for word in {*text.split()})
    kinds = (
        words_in_a_row,
        lambda text, _: rarest_words(text, counts),
        lambda text, _: _short(_sentences(text)[0]) if text.strip() else "",
        _any_sentence,
    )
    drawn = rng.permutation(len(texts)).tolist()
    pairs = (
        (texts[i], kinds[(i + turn) % len(kinds)]) for turn in range(len(kinds)) for i in drawn
    )
    made = (kind(text, rng) for text, kind in pairs)
    return [query for query in made if query][:n]


def words_in_a_row(text: str, rng: np.random.Generator) -> str:
    """Returns N_WORDS consecutive words of a text, or all where it has fewer."""
    words = text.split()
    first = rng.integers(max(len(words) - N_WORDS, 0) + 1)
    return " ".join(words[first : first + N_WORDS])


def rarest_words(text: str, counts: Mapping[str, int], n: int = N_WORDS) -> str:
    """Returns the n different words of a text that the fewest texts have, in their order."""
    words = list(dict.fromkeys(word for word in text.split() if word.isalpha()))
    rarest = sorted(words, key=lambda word: counts[word])[:n]
    return " ".join(word for word in words if word in rarest)


def _any_sentence(text: str, rng: np.random.Generator) -> str:
    long = [part for part in _sentences(text) if len(part.split()) >= MIN_WORDS]
    return _short(long[rng.integers(len(long))]) if long else ""


def _sentences(text: str) -> list[str]:
    return _END.split(text.strip())


def _short(text: str) -> str:
    return " ".join(text.split()[:MOST_WORDS])
