"""Puts a prompt before texts, with the tokens of the joined string.

sentence-transformers joins prompt and text and then tokenizes. Concatenating their tokens may
differ at the seam: a byte-level tokenizer reads "query: " and "the" as "query", ":" and " the", but
the text alone as "the". So the first word of a text is tokenized again with the prompt before it
(see `first_words`); its other tokens stay the same.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cocondenser_jax.corpus.first_words import FirstWord, first_word_reader
from cocondenser_jax.corpus.spans import STARTS_PROMPT, Span
from cocondenser_jax.corpus.token_files import Texts, cut_after_words
from cocondenser_jax.corpus.tokenizer import N_AROUND, SpanTokenizer


class RowSpec(NamedTuple):
    """How the text of a row is read."""

    prompt: str  #: put before it
    length: int  #: maximum tokens, prompt and specials included


def put_before(prompt: str, texts: Texts, tokenizer: SpanTokenizer) -> Texts:
    """Puts a prompt before texts, its tokens marked with `STARTS_PROMPT`.

    Text that no longer fits into the columns is cut off after a whole word. A text that was cut out
    of another one is read as if it stood alone; without a prompt, nothing else changes.

    Args:
      prompt: "" for none.
      texts: N of L columns, with a token or more each; the first token starts a word.
      tokenizer: the tokenizer that made the texts.
    """
    if not (prompt or tokenizer.is_byte_level or _lack_space(texts, tokenizer).any()):
        return texts
    n_firsts_N, beginnings = _beginnings(prompt, texts, tokenizer)
    n_begun_N = np.array([len(each.tokens) for each in beginnings], np.int32)
    n_more_N = n_begun_N - n_firsts_N
    n_columns = texts.ids_NxL.shape[1]
    column_M = np.arange(n_columns + max(int(n_more_N.max(initial=0)), 0) + 1)
    joined = Texts(
        ids_NxL=np.zeros((len(n_begun_N), len(column_M)), np.int32),
        starts_NxL=np.zeros((len(n_begun_N), len(column_M)), np.uint8),
        n_tokens_N=texts.n_tokens_N + n_more_N,
    )
    column_L = column_M[:n_columns]
    rest_NxL = (column_L >= n_firsts_N[:, None]) & (column_L < texts.n_tokens_N[:, None])
    begun_NxM = column_M < n_begun_N[:, None]
    rest_NxM = ~begun_NxM & (column_M < joined.n_tokens_N[:, None])
    joined.ids_NxL[rest_NxM] = texts.ids_NxL[rest_NxL]
    joined.starts_NxL[rest_NxM] = texts.starts_NxL[rest_NxL]
    if beginnings:
        joined.ids_NxL[begun_NxM] = np.concatenate([each.tokens for each in beginnings])
        joined.starts_NxL[begun_NxM] = np.concatenate([each.starts for each in beginnings])
    return cut_after_words(joined, n_columns)


def read_as(row_spec: RowSpec, texts: Texts, tokenizer: SpanTokenizer) -> Texts:
    """Puts a prompt before texts and truncates them; see `put_before`."""
    prompt, length = row_spec
    content = length - N_AROUND
    n_spare = texts.ids_NxL.shape[1] - content
    if n_spare <= 0:
        return put_before(prompt, texts, tokenizer)
    cut = put_before(prompt, cut_after_words(texts, content), tokenizer)
    spare = (0, 0), (0, n_spare)
    return Texts(np.pad(cut.ids_NxL, spare), np.pad(cut.starts_NxL, spare), cut.n_tokens_N)


def count_tokens(prompt: str, tokenizer: SpanTokenizer) -> int:
    """Returns the number of tokens of a prompt."""
    return len(tokenizer.ids_of(prompt))


def prompt_lengths(prompts: Sequence[str], tokenizer: SpanTokenizer) -> np.ndarray:
    """Returns `Batch.prompt_lengths_S` of texts behind these prompts."""
    lengths = {"": 0}
    for prompt in {*prompts} - {""}:
        lengths[prompt] = 1 + count_tokens(prompt, tokenizer)
    return np.array([lengths[prompt] for prompt in prompts], np.int32)


def _beginnings(
    prompt: str, texts: Texts, tokenizer: SpanTokenizer
) -> tuple[np.ndarray, list[Span]]:
    """Returns how many of each text's first tokens are replaced, and their replacements."""
    n_firsts_N = _count_first_words(texts, tokenizer)
    if not tokenizer.is_byte_level and _stands_apart(prompt, tokenizer):
        n_firsts_N = np.where(_lack_space(texts, tokenizer), n_firsts_N, 0)
    read = first_word_reader(prompt, tokenizer)
    only_prompt = _marked(FirstWord(tokenizer.ids_of(prompt.rstrip()), np.zeros(0, np.uint8)))
    rows = zip(texts.ids_NxL, texts.starts_NxL, n_firsts_N.tolist(), strict=True)
    return n_firsts_N, [
        _marked(read(ids[:n].tobytes(), starts[:n].tobytes())) if n else only_prompt
        for ids, starts, n in rows
    ]


def _stands_apart(prompt: str, tokenizer: SpanTokenizer) -> bool:
    """Whether a word has the same tokens behind a prompt as alone."""
    ids_of = tokenizer.ids_of
    return ids_of(f"{prompt}a") == ids_of(prompt.rstrip()) + ids_of("a")


def _lack_space(texts: Texts, tokenizer: SpanTokenizer) -> np.ndarray:
    """Returns which texts begin with other tokens than they would alone: in text without spaces."""
    if not tokenizer.puts_space:
        return np.zeros(len(texts.n_tokens_N), bool)
    return ~tokenizer.follows_space_V[texts.ids_NxL[:, 0]]


def _count_first_words(texts: Texts, tokenizer: SpanTokenizer) -> np.ndarray:
    """Returns the number of leading tokens of each text that its first word may change."""
    begins_NxL = texts.starts_NxL[:, 1:] > 0
    if tokenizer.space:
        begins_NxL &= tokenizer.follows_space_V[texts.ids_NxL[:, 1:]]
    n_firsts_N = np.where(begins_NxL.any(axis=1), np.argmax(begins_NxL, axis=1) + 1, 1 << 30)
    return np.minimum(n_firsts_N, texts.n_tokens_N)


def _marked(word: FirstWord) -> Span:
    of_prompt = np.full(word.n_prompt, STARTS_PROMPT, np.uint8)
    return Span(np.array(word.ids, np.uint32), np.concatenate([of_prompt, word.starts]))
