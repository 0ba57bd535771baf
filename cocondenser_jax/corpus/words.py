"""Looks up the tokens of texts word by word, several times faster than tokenizing again.

The tokenizers treat each space-separated word independently (byte-level ones with the space before
it), so the tokens of a text are the concatenated tokens of its words.

The unit of whole-word masking is a word of the pre-tokenizer: WordPiece's words also end at
punctuation and at each Chinese character, XLM-R's only at spaces. In scripts without spaces between
words (Chinese, Japanese, Thai, Lao, Tibetan, Burmese, Khmer), every token is a word.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from tokenizers import Encoding, Tokenizer

from cocondenser_jax.corpus.scripts import UNSPACED
from cocondenser_jax.corpus.tokenizer import SpanTokenizer

KNOWN_WORDS = 300_000  # the table is emptied beyond this: about 80 MB
ENCODE_WORDS = 64  # new words in one text for the tokenizer: each text costs it an object


class WordTable:
    """The tokens of all words seen so far."""

    def __init__(self, tokenizer: SpanTokenizer):
        self._tokenizer = tokenizer.backend
        self._space = " " if tokenizer.is_byte_level else ""
        self._known: dict[str, tuple[bytes, bytes]] = {}

    def tokenize(self, texts: Sequence[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields token ids and word starts, as `tokenize_words` does, of texts after a space.

        Args:
          texts: words separated by single spaces.
        """
        if len(self._known) > KNOWN_WORDS:
            self._known.clear()
        words_T = [text.split(" ") for text in texts]
        new = list(set().union(*words_T).difference(self._known))
        self._known.update(zip(new, tokenize_words(self._tokenizer, new, self._space), strict=True))
        for words in words_T:
            ids, starts = zip(*map(self._known.__getitem__, words), strict=True)
            yield (
                np.frombuffer(b"".join(ids), np.uint32),
                np.frombuffer(bytearray().join(starts), np.uint8),
            )


def tokenize_words(
    tokenizer: Tokenizer, words: Sequence[str], space: str
) -> Iterator[tuple[bytes, bytes]]:
    """Tokenizes words, with `space` before the first.

    Yields:
      The bytes of a word's token ids, uint32, and of uint8: 1 where a token starts a word of the
      pre-tokenizer.
    """
    groups = [words[i : i + ENCODE_WORDS] for i in range(0, len(words), ENCODE_WORDS)]
    texts = [space + " ".join(group) for group in groups]
    encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
    for group, text, encoding in zip(groups, texts, encodings, strict=True):
        ids = np.array(encoding.ids, np.uint32)
        places = [place for place, _ in encoding.offsets]
        starts = word_starts(encoding, text)
        first = 0
        end = len(space) - 1
        for word in group:
            end += len(word) + 1  # the space after it, which may belong to a token of the next word
            stop = bisect_left(places, end, first)
            yield ids[first:stop].tobytes(), starts[first:stop]
            first = stop


def word_starts(encoding: Encoding, text: str) -> bytes:
    """Returns uint8 for each token of a text: 1 where it starts a word of the pre-tokenizer."""
    starts = bytes(left != right for left, right in pairwise([None, *encoding.word_ids]))
    if not UNSPACED.search(text):
        return starts
    return _split_unspaced(text, [place for place, _ in encoding.offsets], starts)


def _split_unspaced(text: str, places: Sequence[int], starts: bytes) -> bytes:
    """Marks each token of such a script and the token after it, but not a character's later bytes.

    A space that is its own token stays with the token after it.
    """
    is_unspaced = [UNSPACED.match(text, place) is not None for place in places]
    marked = bytearray(starts)
    for i in range(1, len(places)):
        if is_unspaced[i] or is_unspaced[i - 1]:
            before = text[places[i - 1] : places[i]]
            marked[i] |= before != "" and not before.isspace()
    return bytes(marked)
