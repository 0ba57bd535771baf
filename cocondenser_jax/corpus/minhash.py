"""Signatures of texts, whose agreement estimates how similar the texts are (MinHash).

A text is taken as the set of its shingles: all runs of five words. The similarity of two texts is
the Jaccard similarity of their sets, the share of all their shingles that both have. A signature
holds, for each of 112 hash functions, the smallest hash of the set; two texts agree in one with
the probability of their similarity (Broder, On the resemblance and containment of documents, 1997).

Comparing all pairs is not needed: the hash functions form 14 bands of 8, and texts that agree in a
whole band share one of its buckets, 1 - (1 - s^8)^14 of all pairs of similarity s: 99.96 % at 0.9,
92 % at 0.8, 5 % at 0.5. Lee et al. (arXiv 2107.06499) drop near-duplicates in this way from the
corpora of language models.

Letters: D texts, W words, S shingles, H hash functions, B bands.
"""

import functools
import hashlib
import re
import unicodedata
from collections.abc import Sequence
from itertools import chain, repeat

import numpy as np

from cocondenser_jax.corpus.scripts import UNSPACED

SHINGLE_WORDS = 5
N_BANDS = 14
BAND_ROWS = 8
N_HASHES = N_BANDS * BAND_ROWS
KNOWN_WORDS = 300_000  # whose hashes are remembered: about 40 MB

_WORD = re.compile(r"\w+")
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio, odd


def split_words(text: str) -> list[str]:
    """Returns the words of a text without capitals, punctuation and variants of characters.

    In scripts without spaces between words, each character is one.
    """
    text = unicodedata.normalize("NFKC", text).lower()
    return _WORD.findall(UNSPACED.sub(r" \g<0> ", text))


def sign(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Computes the signatures of texts. A text of one to four words is a single shingle.

    Returns:
      numbers_D: the positions in `texts` of those that have words, in ascending order.
      minima_DxH: their signatures, uint64.
    """
    words_of_texts = [split_words(text) for text in texts]
    numbers_D = np.flatnonzero([len(words) for words in words_of_texts])
    if not len(numbers_D):
        return numbers_D, np.zeros((0, N_HASHES), np.uint64)
    signed = [words_of_texts[number] for number in numbers_D]
    lengths_D = np.array([max(len(words), SHINGLE_WORDS) for words in signed])
    hashes = chain.from_iterable(
        chain(map(_hash_word, words), repeat(0, SHINGLE_WORDS - len(words))) for words in signed
    )
    words_W = np.fromiter(hashes, np.uint64, lengths_D.sum())
    n_shingles_D = lengths_D - (SHINGLE_WORDS - 1)
    shingles_S = _hash_shingles(words_W, np.cumsum(lengths_D))
    starts_D = np.cumsum(n_shingles_D) - n_shingles_D
    return numbers_D, _minima(shingles_S, starts_D)


@functools.lru_cache(KNOWN_WORDS)
def _hash_word(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest())


def _hash_shingles(words_W: np.ndarray, ends_D: np.ndarray) -> np.ndarray:
    """Hashes all shingles of texts that end before the words `ends_D`."""
    n_windows = len(words_W) - (SHINGLE_WORDS - 1)
    windows = np.zeros(n_windows, np.uint64)
    for place in range(SHINGLE_WORDS):
        windows = windows * _MULTIPLIER + words_W[place : place + n_windows]
    is_inside_W = np.ones(len(words_W), bool)
    for place in range(1, SHINGLE_WORDS):  # the last four words of a text start no shingle
        is_inside_W[ends_D - place] = False
    return _mix(windows[is_inside_W[:n_windows]])


def _minima(shingles_S: np.ndarray, starts_D: np.ndarray) -> np.ndarray:
    """Returns the smallest values of all hash functions, x -> a x + b modulo 2^64 with an odd a."""
    factors_H = _mix(np.arange(1, N_HASHES + 1, dtype=np.uint64)) | np.uint64(1)
    summands_H = _mix(factors_H)
    minima_HxD = np.empty((N_HASHES, len(starts_D)), np.uint64)
    hashes_S = np.empty_like(shingles_S)
    for row in range(N_HASHES):
        np.multiply(shingles_S, factors_H[row], out=hashes_S)
        np.add(hashes_S, summands_H[row], out=hashes_S)
        np.minimum.reduceat(hashes_S, starts_D, out=minima_HxD[row])
    return minima_HxD.T


def bucket_keys(minima_DxH: np.ndarray) -> np.ndarray:
    """Returns `keys_DxB`, uint64: two texts with a key in common agree in all of its band."""
    minima_DxBxR = minima_DxH.reshape(-1, N_BANDS, BAND_ROWS)
    keys_DxB = np.zeros((len(minima_DxH), N_BANDS), np.uint64)
    for row in range(BAND_ROWS):
        keys_DxB = _mix(keys_DxB ^ minima_DxBxR[:, :, row])
    return keys_DxB


def short_signatures(minima_DxH: np.ndarray) -> np.ndarray:
    """Returns eight bits of each smallest value, uint8.

    Two that differ agree in them once in 256 times (b-bit minwise hashing, Li and König, arXiv
    0910.3349), which adds at most 0.001 to a similarity of 0.8 or more.
    """
    return (_mix(minima_DxH) >> np.uint64(56)).astype(np.uint8)


def count_agreeing(signatures_DxH: np.ndarray, signature_H: np.ndarray) -> np.ndarray:
    """Counts in how many of `N_HASHES` hash functions texts agree with one, by short signatures.

    Their share estimates the similarity, with a standard error of at most 0.05 (0.03 at 0.9).
    """
    return (signatures_DxH == signature_H).sum(axis=1)


def _mix(values: np.ndarray) -> np.ndarray:
    """Maps uint64 one to one to values that look random (the last step of SplitMix64).

    Steele, Lea and Flood, Fast splittable pseudorandom number generators, 2014.
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
