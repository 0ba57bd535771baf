"""BERT's masking in whole words, for many spans in the same few array operations."""

import math
from typing import NamedTuple

import numpy as np

from cocondenser_jax.corpus.spans import STARTS_PROMPT
from cocondenser_jax.corpus.token_files import Texts

MASK_PROBABILITY = 0.15
REPLACE_WITH_MASK = 0.8
REPLACE_WITH_RANDOM = 0.1  # the remaining tenth stays as it is


class MaskedSpans(NamedTuple):
    """N masked spans of C content tokens, with slots for M masked tokens each."""

    ids_NxC: np.ndarray  # int32, with the replacements
    positions_NxM: np.ndarray  # int32, content tokens to predict, from 0; 0 in unused slots
    labels_NxM: np.ndarray  # int32, their original ids; 0 in unused slots
    weights_NxM: np.ndarray  # float32, 1 in used slots, 0 in unused ones


def mask_capacity(length: int, probability: float = MASK_PROBABILITY) -> int:
    """Returns the number of slots for masked tokens in a span."""
    return math.ceil(length / 5) + math.ceil(length * (probability - MASK_PROBABILITY))


def draws_per_span(content: int, capacity: int) -> int:
    """Returns the number of 64-bit random numbers that `mask_whole_words` needs for a span."""
    return 1 + content + capacity


def mask_whole_words(
    texts: Texts,
    draws_NxR: np.ndarray,
    *,
    mask_id: int,
    ordinary_ids: np.ndarray,
    capacity: int,
    probability: float | np.ndarray,
) -> MaskedSpans:
    """Masks `probability` of the tokens of each text, in whole words, 80/10/10.

    Words are chosen in random order until `probability * n_tokens` tokens are masked; this number
    is randomly rounded up or down, so that short texts are not masked less. Of the last word, only
    as many tokens are masked as still fit, its first or its last ones. Tokens of short and long
    words are equally likely to be masked; if a single word is longer than the number of tokens to
    mask, its tokens are less likely, by half at most. Prompt tokens are never masked and do not
    count.

    Args:
      texts: N of C columns, with a token or more each; the first token starts a word.
      draws_NxR: independent uniform uint64, `draws_per_span(C, capacity)` for each text.
      mask_id: the id of the mask token.
      ordinary_ids: the ids that may replace a token at random (no specials).
      capacity: slots for masked tokens, M.
      probability: the fraction of tokens to mask, of all texts or of each.
    """
    ids_NxC = texts.ids_NxL
    n_spans, content = ids_NxC.shape
    capacity = min(capacity, content)
    column_C = np.arange(content, dtype=np.uint64)
    inside_NxC = column_C < texts.n_tokens_N[:, None].astype(np.uint64)
    inside_NxC &= texts.starts_NxL != STARTS_PROMPT
    n_tokens_N = inside_NxC.sum(axis=1)
    choice_Nx1, order_NxC, action_NxM, _ = np.split(
        draws_NxR, np.cumsum([1, content, capacity]), axis=1
    )
    choice = _choose(choice_Nx1[:, 0], n_tokens_N)

    # One integer per token: the random rank of its word, where the word starts, where it is.
    is_start_NxC = texts.starts_NxL > 0
    start_NxC = np.maximum.accumulate(np.where(is_start_NxC, column_C, np.uint64(0)), axis=1)
    rank_NxC = np.take_along_axis(order_NxC, start_NxC.astype(np.int64), axis=1) >> np.uint64(33)
    rank_NxC = np.where(inside_NxC, rank_NxC, np.uint64(2**31))  # prompt and padding go last
    # In some texts, words are read from their ends, so that the last one is cut at either side.
    mirror_Nx1 = choice.mirror_N[:, None]
    packed_NxC = (rank_NxC << np.uint64(32)) | (start_NxC << np.uint64(16)) | column_C ^ mirror_Nx1
    packed_NxC.sort(axis=1)

    first_N = _first_places(packed_NxC >> np.uint64(16), choice)
    place_NxM = first_N[:, None] + np.arange(capacity)
    place_NxM %= np.maximum(n_tokens_N, 1)[:, None]
    columns_NxM = np.take_along_axis(packed_NxC, place_NxM, axis=1) & np.uint64(0xFFFF) ^ mirror_Nx1
    n_masked_N = np.floor(probability * n_tokens_N + choice.fraction_N)
    used_NxM = np.arange(capacity) < n_masked_N[:, None]
    positions_NxM = np.where(used_NxM, columns_NxM, np.uint64(0)).astype(np.int64)
    labels_NxM = np.take_along_axis(ids_NxC, positions_NxM, axis=1)

    fraction_NxM = (action_NxM >> np.uint64(32)) / 2.0**32
    random_NxM = ordinary_ids[(action_NxM & np.uint64(0xFFFFFFFF)) % np.uint64(len(ordinary_ids))]
    replacement_NxM = np.where(
        fraction_NxM < REPLACE_WITH_MASK,
        mask_id,
        np.where(fraction_NxM < REPLACE_WITH_MASK + REPLACE_WITH_RANDOM, random_NxM, labels_NxM),
    )
    masked_ids_NxC = ids_NxC.copy()
    row_NxM = np.broadcast_to(np.arange(n_spans)[:, None], used_NxM.shape)
    masked_ids_NxC[row_NxM[used_NxM], positions_NxM[used_NxM]] = replacement_NxM[used_NxM]
    return MaskedSpans(
        ids_NxC=masked_ids_NxC,
        positions_NxM=positions_NxM.astype(np.int32),
        labels_NxM=np.where(used_NxM, labels_NxM, 0).astype(np.int32),
        weights_NxM=used_NxM.astype(np.float32),
    )


class _Choice(NamedTuple):
    """The random values of each of N texts."""

    fraction_N: np.ndarray  # from 0 to 1: how the number of masked tokens is rounded
    token_N: np.ndarray  # a random token of the text, in the order of words
    is_next_N: np.ndarray  # whether to start at the word after that token's word
    mirror_N: np.ndarray  # all bits of a column, or 0


def _choose(draw_N: np.ndarray, n_tokens_N: np.ndarray) -> _Choice:
    """Derives the random values from one 64-bit number."""
    low_N = draw_N & np.uint64(0xFFFFFFFF)
    return _Choice(
        fraction_N=(draw_N >> np.uint64(34)) / 2.0**30,
        token_N=(low_N * n_tokens_N.astype(np.uint64) >> np.uint64(32)).astype(np.int64),
        is_next_N=(draw_N >> np.uint64(33) & np.uint64(1)).astype(bool),
        mirror_N=(draw_N >> np.uint64(32) & np.uint64(1)) * np.uint64(0xFFFF),
    )


def _first_places(word_NxC: np.ndarray, choice: _Choice) -> np.ndarray:
    """Returns the place of the first masked token in the order of words, which is a circle.

    Starting at a random token would mask each token with the same probability but cut two words.
    Starting at a random word would cut long words more often than start with them. Instead, the
    start is the word of a random token or, unless that is the word's first token, with probability
    1/2 the next word. A word is then the start for (length + 1) / 2 of its tokens; together with
    cutting the last word at either side, all tokens are masked with the same probability.
    """
    same_NxC = word_NxC == np.take_along_axis(word_NxC, choice.token_N[:, None], axis=1)
    begin_N = np.argmax(same_NxC, axis=1)
    is_next_N = choice.is_next_N & (choice.token_N > begin_N)
    return np.where(is_next_N, begin_N + np.count_nonzero(same_NxC, axis=1), begin_N)
