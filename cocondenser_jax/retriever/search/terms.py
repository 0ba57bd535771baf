"""Cuts texts into the terms that BM25 counts, in the way of their language.

Terms are words in lower case, without stop words and without endings; a single letter or digit is a
word, as in Lucene. Scripts that put no spaces
between words are cut into pairs of neighboring characters, as Lucene cuts Chinese and Japanese; a
character that stands alone is a term of its own. This does not depend on the language: a collection
may hold several.
"""

import functools
import re
import unicodedata
from collections.abc import Callable
from itertools import pairwise

import regex
import Stemmer

from cocondenser_jax.corpus.scripts import UNSPACED, UNSPACED_BLOCKS
from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.search.import_bm25s import import_bm25s

LANGUAGE = "english"
NO_LANGUAGE = "none"  # words as they are

# The stemmer and the stop words that are not named like their language, and variants of others.
_STEMMERS = {"english": "porter"}
_STOP_WORDS = {"english": "en"}
_VARIANTS = {"porter", "dutch_porter", "en", "en_plus"}

# A single letter beside an apostrophe, as in it's, don't and l'eau, is the rest of a word.
_ASCII_WORD = re.compile(r"\w\w+|(?<!\w')[^\W_](?!'\w)")
# A word, or a run of an unspaced script. Marks belong to words, such as the vowels of Hindi and
# Thai, which are not in re's \w.
_WORD = regex.compile(
    rf"""(?V1x)
      [[\p{{L}}\p{{N}}_]--[{UNSPACED_BLOCKS}]] [[\p{{L}}\p{{M}}\p{{N}}_]--[{UNSPACED_BLOCKS}]]+
    | (?<!\w['’]) [[\p{{L}}\p{{N}}]--[{UNSPACED_BLOCKS}]] (?!['’]\w)
    | [[\p{{L}}\p{{N}}]&&[{UNSPACED_BLOCKS}]] [[\p{{L}}\p{{M}}\p{{N}}]&&[{UNSPACED_BLOCKS}]]*
    """  # noqa: RUF001
)
_CHARACTER = regex.compile(r".\p{M}*")
_OTHER_WIDTH = re.compile(r"[\uFF00-\uFFEF]+")  # Unicode's block of half and full widths


def term_finder(language: str) -> Callable[[str], list[str]]:
    """Returns the function from a text to its terms, in the order of the text.

    It remembers the stem of every word that it meets.

    Args:
      language: one of `languages()`. English has Porter's stemmer (Program, 1980).
    """
    require_language(language)
    stop_words = frozenset(_stop_words().get(_STOP_WORDS.get(language, language), ()))
    lower = _lower_turkish if language == "turkish" else str.lower
    stem = _stemmer(language)
    return lambda text: [stem(word) for word in _words(text, lower) if word not in stop_words]


def require_language(language: str) -> None:
    """Raises a UserError, with all languages, for one that is unknown."""
    if language not in languages():
        raise UserError(f"language {language!r}: expected one of {', '.join(languages())}")


@functools.cache
def languages() -> tuple[str, ...]:
    """Returns the languages that Snowball has a stemmer or bm25s stop words for, and "none"."""
    names = {*Stemmer.algorithms(), *_stop_words()} - _VARIANTS
    return (*sorted(names), NO_LANGUAGE)


def _stop_words() -> dict[str, tuple[str, ...]]:
    lists = vars(import_bm25s().stopwords).items()
    prefix = "STOPWORDS_"
    return {name[len(prefix) :].lower(): words for name, words in lists if name.startswith(prefix)}


def _stemmer(language: str) -> Callable[[str], str]:
    name = _STEMMERS.get(language, language)
    if name not in Stemmer.algorithms():
        return str
    cut = Stemmer.Stemmer(name, 0).stemWord  # 0: without a cache of its own
    return functools.cache(lambda word: cut(word) or word)  # Porter's leaves nothing of "s"


def _words(text: str, lower: Callable[[str], str]) -> list[str]:
    """Returns the words of a text in lower case, and the pairs of characters of unspaced runs."""
    if text.isascii():
        return _ASCII_WORD.findall(lower(text))
    words = []
    for word in _WORD.findall(lower(_normalize(text))):
        if UNSPACED.match(word):
            words += _pairs(word)
        else:
            words.append(word)
    return words


def _normalize(text: str) -> str:
    """Gives a character one code: composed with its accents, and of the usual width."""
    text = _OTHER_WIDTH.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text)
    return unicodedata.normalize("NFC", text).replace("İ", "i")  # its lower case is two characters


def _lower_turkish(text: str) -> str:
    """Returns a text in lower case, where I is the capital of the letter without a dot."""
    return text.replace("I", "\N{LATIN SMALL LETTER DOTLESS I}").lower()


def _pairs(run: str) -> list[str]:
    """Returns each two neighbors, with their marks, or the only character."""
    characters = _CHARACTER.findall(run)
    return [left + right for left, right in pairwise(characters)] or characters
