"""Tokenizes the first word of a text again, if the text was cut out of another or gets a prompt.

A byte-level tokenizer joins a space to the word after it, and SentencePiece's unigrams put "▁"
before a text's first word even without a space, as within a Chinese sentence. So the tokens of a
text's first word depend on whether the text stands alone, within another text, or behind a prompt.
All other tokens stay the same: those up to a cut are the tokens of the text up to there.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from cocondenser_jax.corpus.tokenizer import SpanTokenizer
from cocondenser_jax.corpus.words import word_starts

KNOWN_WORDS = 100_000  # words that are cached for each prompt
LONGEST_KNOWN = 32  # tokens of cached words: longer ones, such as text without spaces, rarely recur


class FirstWord(NamedTuple):
    """The tokens of a prompt and the first word after it."""

    ids: list[int]
    starts: np.ndarray  # for the word's tokens, as in `Span.starts`

    @property
    def n_prompt(self) -> int:
        """The number of tokens that belong to the prompt only."""
        return len(self.ids) - len(self.starts)


@functools.lru_cache(maxsize=8)  # for its cache of words
def first_word_reader(prompt: str, tokenizer: SpanTokenizer) -> Callable[[bytes, bytes], FirstWord]:
    """Makes a function from the ids (32 bits) and starts of a first word to prompt and word.

    From the first unknown token on, tokens stay unchanged, because they cannot be decoded. So does
    a word that was cut within a character.

    Args:
      prompt: "" for none.
      tokenizer: the tokenizer that made the word.
    """
    backend = tokenizer.backend
    alone = tokenizer.ids_of(prompt.rstrip())
    is_after_space = prompt.endswith(" ") if prompt else tokenizer.puts_space
    is_after_space |= prompt[-1:].isspace() and not tokenizer.is_byte_level  # a line break
    space_ids = tokenizer.space_ids if is_after_space else []

    def read(first_ids: bytes, first_starts: bytes) -> FirstWord:
        ids = np.frombuffer(first_ids, np.uint32).tolist()
        starts = np.frombuffer(first_starts, np.uint8)
        n_known = next((n for n, i in enumerate(ids) if i in tokenizer.special_ids), len(ids))
        word = tokenizer.spell(ids[:n_known]).strip()
        if not word:
            own = np.zeros(len(space_ids) + len(ids) - n_known, np.uint8)
            own[len(space_ids) + 1 :] = starts[n_known + 1 :]
            own[0] = starts[0]
            return FirstWord([*alone, *space_ids, *ids[n_known:]], own)
        joined = backend.encode(prompt + word, add_special_tokens=False)
        n_prompt = sum(end <= len(prompt) for _, end in joined.offsets)
        if "\ufffd" in word or n_prompt == len(joined.ids):
            return FirstWord([*alone, *ids], starts)
        own = np.frombuffer(word_starts(joined, prompt + word), np.uint8)[n_prompt + 1 :]
        return FirstWord(
            [*joined.ids, *ids[n_known:]], np.concatenate([starts[:1], own, starts[n_known:]])
        )

    known = functools.lru_cache(KNOWN_WORDS)(read)

    def look_up(ids: bytes, starts: bytes) -> FirstWord:
        return (known if len(starts) <= LONGEST_KNOWN else read)(ids, starts)

    return look_up
