"""Splits texts into the terms that BM25 counts, depending on the language.

Terms are stemmed lower-case words without stop words; as in Lucene, a single letter or digit is a
word. Scripts without spaces between words are split into pairs of adjacent characters, as Lucene
does for Chinese and Japanese; an isolated character is a term. This does not depend on the
language, since a collection may contain several.
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
NO_LANGUAGE = "none"  # words unchanged

# Stemmers and stop words with other names than their language, and variants of languages.
_STEMMERS = {"english": "porter"}
_STOP_WORDS = {"english": "en"}
_VARIANTS = {"porter", "dutch_porter", "en", "en_plus"}

# A single letter next to an apostrophe, as in it's, don't and l'eau, is not a word.
_ASCII_WORD = re.compile(r"\w\w+|(?<!\w')[^\W_](?!'\w)")
# A word, or a run of an unspaced script. Words include marks, such as the vowels of Hindi and Thai,
# which re's \w does not match.
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
    """Returns a function from a text to its terms, in the order of the text.

    It caches the stem of every word.

    Args:
      language: one of `languages()`. English has Porter's stemmer (Program, 1980).
    """
    require_language(language)
    stop_words = frozenset(_stop_words().get(_STOP_WORDS.get(language, language), ()))
    lower = _lower_turkish if language == "turkish" else str.lower
    stem = _stemmer(language)
    return lambda text: [stem(word) for word in _words(text, lower) if word not in stop_words]


def require_language(language: str) -> None:
    """Raises a UserError for an unknown language; the message lists all known ones."""
    if language not in languages():
        raise UserError(f"language {language!r}: expected one of {', '.join(languages())}")


@functools.cache
def languages() -> tuple[str, ...]:
    """Returns all languages with a Snowball stemmer or stop words in bm25s, and "none"."""
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
    """Returns a text's lower-case words, and pairs of characters in unspaced scripts."""
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
    """Normalizes characters: composed with their accents, and of the usual width."""
    text = _OTHER_WIDTH.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text)
    return unicodedata.normalize("NFC", text).replace("İ", "i")  # its lower case is two characters


def _lower_turkish(text: str) -> str:
    """Lower-cases a Turkish text, in which I is the capital of the dotless ı."""
    return text.replace("I", "\N{LATIN SMALL LETTER DOTLESS I}").lower()


def _pairs(run: str) -> list[str]:
    """Returns all pairs of adjacent characters, with their marks, or the only character."""
    characters = _CHARACTER.findall(run)
    return [left + right for left, right in pairwise(characters)] or characters
