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
    """N masked spans of C content tokens with room for M masked tokens each."""

    ids_NxC: np.ndarray  # int32, with the replacements
    positions_NxM: np.ndarray  # int32, content tokens to predict, from 0; 0 in unused slots
    labels_NxM: np.ndarray  # int32, what they were; 0 in unused slots
    weights_NxM: np.ndarray  # float32, 1 in used slots, 0 in unused ones


def mask_capacity(length: int, probability: float = MASK_PROBABILITY) -> int:
    """Returns the slots for masked tokens in a span, with room for most last words."""
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
    probability: float | np.ndarray = MASK_PROBABILITY,
) -> MaskedSpans:
    """Masks `probability` of the tokens of each text, in whole words, 80/10/10.

    Words are taken in random order while they fit the budget of `probability * n_tokens`. The word
    at its border is masked with the probability that makes the expected number of masked tokens
    equal to the budget, so short texts are not masked less than others. Words of many tokens are:
    they meet the border more often, and one that ends past `capacity` is never masked. In the
    quickstart's store words of one token are masked 15.2 % of the time, of two tokens 14.2 %, of
    four 10.2 %, of eight or more never; in all, 14.95 % of the tokens. The tokens of a prompt are
    never masked, and count for no budget.

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

    # One integer per token: the random rank of its word, where the word starts, where it is.
    is_start_NxC = texts.starts_NxL > 0
    start_NxC = np.maximum.accumulate(np.where(is_start_NxC, column_C, np.uint64(0)), axis=1)
    rank_NxC = np.take_along_axis(order_NxC, start_NxC.astype(np.int64), axis=1) >> np.uint64(33)
    rank_NxC = np.where(inside_NxC, rank_NxC, np.uint64(2**31))  # prompt and padding go last
    packed_NxC = (rank_NxC << np.uint64(32)) | (start_NxC << np.uint64(16)) | column_C
    packed_NxC.sort(axis=1)
    # The words that may be masked end within the first M columns; one more column shows which do.
    # What goes last counts as a word, and so does the column after the content.
    front_NxS = packed_NxC[:, : capacity + 1] >> np.uint64(16)
    begins_NxS = np.ones((n_spans, capacity + 1), bool)
    begins_NxS[:, 1:content] = front_NxS[:, 1:] != front_NxS[:, :-1]

    n_masked_N = _count_masked(begins_NxS, n_tokens_N, choice_Nx1[:, 0] / 2.0**64, probability)
    used_NxM = np.arange(capacity) < n_masked_N[:, None]
    columns_NxM = (packed_NxC[:, :capacity] & np.uint64(0xFFFF)).astype(np.int64)
    positions_NxM = np.where(used_NxM, columns_NxM, 0)
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


def _count_masked(
    begins_NxS: np.ndarray,
    n_tokens_N: np.ndarray,
    choice_N: np.ndarray,
    probability: float | np.ndarray,
) -> np.ndarray:
    """Returns how many tokens to mask: whole words from the front, the budget in expectation."""
    capacity = begins_NxS.shape[1] - 1
    column_S = np.arange(capacity + 1)
    budget_N = probability * n_tokens_N
    # Masking so many tokens masks whole words only.
    whole_NxS = begins_NxS & (column_S <= n_tokens_N[:, None])
    within_NxS = column_S <= budget_N[:, None]
    before_N = np.max(np.where(whole_NxS & within_NxS, column_S, 0), axis=1)
    after_N = np.min(np.where(whole_NxS & ~within_NxS, column_S, capacity + 1), axis=1)
    fraction_N = (budget_N - before_N) / np.maximum(after_N - before_N, 1)
    return np.where((after_N <= capacity) & (choice_N < fraction_N), after_N, before_N)
