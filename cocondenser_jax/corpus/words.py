"""Looks up the tokens of texts word by word, several times as fast as tokenizing again.

The tokenizers treat each word between spaces by itself (byte-level ones with the space before it),
so the tokens of a text are those of its words, end to end.

What is masked as a whole is a word of the pre-tokenizer: WordPiece's also ends at punctuation and
at each Chinese character, XLM-R's only at spaces. In scripts without spaces between words (Chinese,
Japanese, Thai, Lao, Tibetan, Burmese, Khmer) every token is one.
"""

from collections.abc import Sequence
from itertools import chain, count
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from cocondenser_jax.corpus.tokenizer import SpanTokenizer

KNOWN_TOKENS = 1_000_000  # the table is emptied beyond this: about 50 MB
ENCODE_WORDS = 64  # new words in one text for the tokenizer: each text costs it an object
# Where Unicode's blocks of scripts without spaces begin and end, in turn: Thai to Burmese, Khmer,
# East Asian (without Hangul), their compatibility characters, rarer ideographs.
_UNSPACED = np.array(
    [0x0E00, 0x10A0, 0x1780, 0x1800, 0x2E80, 0xA4D0, 0xF900, 0xFB00, 0x20000, 0x40000]
)


class Tokens(NamedTuple):
    """The content tokens of texts, end to end."""

    ids: np.ndarray  # token ids, uint32
    word_starts: np.ndarray  # bool, true where a token starts a word of the pre-tokenizer
    ends: np.ndarray  # int64, where each text ends


class WordTable:
    """The tokens of all words seen so far."""

    def __init__(self, tokenizer: SpanTokenizer):
        self._tokenizer = tokenizer.backend
        self._space = " " if tokenizer.is_byte_level else ""
        self._forget()

    def _forget(self) -> None:
        self._rows: dict[str, int] = {}
        self._ids = np.zeros(0, np.uint32)
        self._starts = np.zeros(0, bool)
        self._borders = np.zeros(1, np.int64)  # of the words, in the order of their rows

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Returns the tokens of texts as they read after a space.

        Args:
          texts: at least one, words separated by single spaces.
        """
        if len(self._ids) > KNOWN_TOKENS:
            self._forget()
        words = " ".join(texts).split(" ")
        self._learn(list(set(words).difference(self._rows)))
        rows = np.fromiter(map(self._rows.__getitem__, words), np.int64, len(words))
        known_starts = self._borders[rows]
        lengths = self._borders[rows + 1] - known_starts
        ends = np.cumsum(lengths)
        # A token is as far from the start of its word in the table as in the text.
        places = np.arange(ends[-1]) + np.repeat(known_starts - (ends - lengths), lengths)
        last_words = np.cumsum([text.count(" ") + 1 for text in texts]) - 1
        return Tokens(self._ids[places], self._starts[places], ends[last_words])

    def _learn(self, words: Sequence[str]) -> None:
        if not words:
            return
        new = tokenize_words(self._tokenizer, words, self._space)
        self._rows.update(zip(words, count(len(self._rows))))
        self._borders = np.concatenate([self._borders, len(self._ids) + new.ends])
        self._ids = np.concatenate([self._ids, new.ids])
        self._starts = np.concatenate([self._starts, new.word_starts])


def tokenize_words(tokenizer: Tokenizer, words: Sequence[str], space: str = "") -> Tokens:
    """Tokenizes words, at least one, with `space` before the first."""
    firsts = range(0, len(words), ENCODE_WORDS)
    texts = [space + " ".join(words[first : first + ENCODE_WORDS]) for first in firsts]
    encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
    text_lengths = np.array([len(encoding) for encoding in encodings])
    n_tokens = text_lengths.sum()
    ids = np.fromiter(chain.from_iterable(e.ids for e in encodings), np.uint32, n_tokens)
    numbers = np.fromiter(chain.from_iterable(e.word_ids for e in encodings), np.int64, n_tokens)
    offsets = np.fromiter((start for e in encodings for start, _ in e.offsets), np.int64, n_tokens)
    # The word of a token follows from its character, counted through all texts.
    ends = np.cumsum([len(word) + 1 for word in words])
    text_starts = np.concatenate([[0], ends])[: len(words) : ENCODE_WORDS]
    places = offsets + np.repeat(text_starts, text_lengths)
    owners = np.searchsorted(ends, places, "right")
    starts = (np.diff(numbers, prepend=-1) != 0) | (np.diff(owners, prepend=-1) != 0)
    characters = np.frombuffer(
        (space + " ".join(words)).encode("utf-32-le", "surrogatepass"), "<u4"
    )
    is_word = np.searchsorted(_UNSPACED, characters[places], "right") % 2 == 1
    is_word[1:] |= is_word[:-1]  # and what follows such a token
    starts |= is_word & (np.diff(places, prepend=-1) != 0)  # bytes of one character stay together
    return Tokens(ids, starts, np.cumsum(np.bincount(owners, minlength=len(words))))
