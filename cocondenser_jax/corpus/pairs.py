"""Makes two texts from one span, for a contrastive loss: a sentence and the rest, or two crops.

All spans of a batch are cut at word boundaries, in the same few array operations.
"""

import numpy as np

from cocondenser_jax.corpus.spans import STARTS_SENTENCE
from cocondenser_jax.corpus.token_files import Texts

SENTENCE_STAYS = 0.1  # probability that the sentence of a cloze stays in its span


def split_sentence(
    spans: Texts, draws_Ix2: np.ndarray, *, min_words: int = 1, is_first: bool = False
) -> Texts:
    """Takes a random sentence out of each span: the inverse cloze task.

    As in arXiv 1906.00300, section 4, the sentence also stays in its span in a tenth of the
    examples. A span of a single sentence gives its first half.

    Args:
      spans: I of C columns, with a token or more each.
      draws_Ix2: independent uniform uint64.
      min_words: the minimum length of the sentence, if the span has one that long.
      is_first: take the first sentence, and always remove it from its span.

    Returns:
      Twice as many texts: 2i is a sentence, 2i + 1 the rest of its span.
    """
    starts_IxC = spans.starts_NxL
    n_tokens_Ix1 = spans.n_tokens_N[:, None]
    column_C = np.arange(starts_IxC.shape[1])
    inside_IxC = column_C < n_tokens_Ix1
    begins_IxC = inside_IxC & ((starts_IxC == STARTS_SENTENCE) | (column_C == 0))
    is_single_I = begins_IxC.sum(axis=1) == 1
    middle_I = _middle(starts_IxC, inside_IxC)
    begins_IxC[is_single_I, middle_I[is_single_I]] = True

    sentence_IxC = np.cumsum(begins_IxC, axis=1) - 1
    # The candidates are marked at their first tokens; a single sentence has one, its first half.
    n_columns = len(column_C)
    places_IxC = np.arange(len(starts_IxC))[:, None] * n_columns + sentence_IxC
    starting_W = places_IxC[(starts_IxC > 0) & inside_IxC]
    n_words_IxC = np.bincount(starting_W, minlength=places_IxC.size)[places_IxC]
    is_long_IxC = begins_IxC & (n_words_IxC >= min_words)
    is_candidate_IxC = np.where(is_long_IxC.any(axis=1)[:, None], is_long_IxC, begins_IxC)
    is_candidate_IxC = np.where(is_single_I[:, None], column_C == 0, is_candidate_IxC)
    draws_I = np.zeros_like(draws_Ix2[:, 0]) if is_first else draws_Ix2[:, 0]
    first_I = _choose_column(is_candidate_IxC, draws_I)
    chosen_I = np.take_along_axis(sentence_IxC, first_I[:, None], axis=1)
    in_sentence_IxC = sentence_IxC == chosen_I
    stays_I = draws_Ix2[:, 1] / 2.0**64 < (0.0 if is_first else SENTENCE_STAYS)
    return _select(
        spans, in_sentence_IxC & inside_IxC, (~in_sentence_IxC | stays_I[:, None]) & inside_IxC
    )


def _middle(starts_IxC: np.ndarray, inside_IxC: np.ndarray) -> np.ndarray:
    """Returns where the second half of each text begins.

    It is the last word that starts in the first half, otherwise the next word, otherwise the
    middle.
    """
    column_C = np.arange(starts_IxC.shape[1])
    n_tokens_I = inside_IxC.sum(axis=1)
    is_word_IxC = (starts_IxC > 0) & inside_IxC & (column_C > 0)
    is_early_IxC = is_word_IxC & (column_C <= (n_tokens_I[:, None] + 1) // 2)
    last_I = np.max(np.where(is_early_IxC, column_C, 0), axis=1)
    next_I = np.argmax(is_word_IxC, axis=1)  # 0 if there is none
    return np.select([last_I > 0, next_I > 0], [last_I, next_I], n_tokens_I // 2)


def split_crops(spans: Texts, draws_I: np.ndarray) -> Texts:
    """Cuts each span in two, at a random word boundary in its middle half.

    Unlike Contriever's crops (arXiv 2112.09118), the halves do not overlap. Arguments and result
    are as for `split_sentence`: texts 2i and 2i + 1 are the left and the right half.
    """
    starts_IxC = spans.starts_NxL
    n_tokens_Ix1 = spans.n_tokens_N[:, None]
    column_C = np.arange(starts_IxC.shape[1])
    inside_IxC = column_C < n_tokens_Ix1
    is_middle_IxC = (4 * column_C >= n_tokens_Ix1) & (4 * column_C <= 3 * n_tokens_Ix1)
    is_border_IxC = is_middle_IxC & inside_IxC & (starts_IxC > 0) & (column_C > 0)
    within_word_IxC = column_C == n_tokens_Ix1 // 2
    has_border_Ix1 = np.any(is_border_IxC, axis=1, keepdims=True)
    is_border_IxC = np.where(has_border_Ix1, is_border_IxC, within_word_IxC)
    is_left_IxC = column_C < _choose_column(is_border_IxC, draws_I)[:, None]
    return _select(spans, is_left_IxC & inside_IxC, ~is_left_IxC & inside_IxC)


def _choose_column(is_candidate_IxC: np.ndarray, draws_I: np.ndarray) -> np.ndarray:
    """Returns one of the marked columns of each row, at least one, uniformly."""
    counts_IxC = np.cumsum(is_candidate_IxC, axis=1)
    chosen_I = draws_I % counts_IxC[:, -1].astype(np.uint64)
    return np.argmax(counts_IxC > chosen_I.astype(np.int64)[:, None], axis=1)


def _select(spans: Texts, first_IxC: np.ndarray, second_IxC: np.ndarray) -> Texts:
    """Returns the tokens of each span under either mask, in the order of `split_sentence`."""
    column_C = np.arange(first_IxC.shape[1])
    keep_SxC = np.stack([first_IxC, second_IxC], axis=1).reshape(-1, len(column_C))
    order_SxC = np.argsort(~keep_SxC, axis=1, stable=True)
    n_tokens_S = keep_SxC.sum(axis=1, dtype=np.int32)

    def packed(values_IxC: np.ndarray) -> np.ndarray:
        values_SxC = np.take_along_axis(np.repeat(values_IxC, 2, axis=0), order_SxC, axis=1)
        return np.where(column_C < n_tokens_S[:, None], values_SxC, 0)

    return Texts(packed(spans.ids_NxL), packed(spans.starts_NxL), n_tokens_S)
