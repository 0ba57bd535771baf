"""Splits documents into non-overlapping spans that end with a sentence if possible.

A span is cut and tokenized only here, so tokens, word boundaries and masks always line up. Its text
is its sentences, with collapsed white space, joined by single spaces.
"""

import functools
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, repeat
from typing import NamedTuple

import numpy as np
import regex

from cocondenser_jax.corpus.first_words import first_word_reader
from cocondenser_jax.corpus.records import Document
from cocondenser_jax.corpus.tokenizer import N_AROUND, SpanTokenizer
from cocondenser_jax.corpus.words import WordTable

MIN_TOKENS = 8  # a span with fewer content tokens has too little text and is dropped
MAX_SENTENCE_CHARACTERS = 10_000  # text without any border is cut here: bounds tokenizer calls
ENCODE_BATCH = 8192  # sentences tokenized together: enough for many threads, in bounded memory
STARTS_SENTENCE = 2
STARTS_PROMPT = 3  # of each token of a prompt

# White space in Python, but dropped or kept within a word by tokenizers.
_CONTROL = re.compile(r"[\x0b\x0c\x1c-\x1f\x85]")
_SPACE = re.compile(r"[^\S\x0b\x0c\x1c-\x1f\x85]+")
# A letter that begins no sentence. All of Georgian's are lower-case by Unicode.
_SMALL = r"[\p{Ll}--\p{Georgian}]"
# A line break is a boundary unless the next line starts with a lower-case letter, as in
# hard-wrapped text. A blank line always is one.
_LINE_BORDER = regex.compile(rf"(?V1)\n\s*\n|\n(?!\s*{_SMALL})")
# A mark that ends sentences, closing quotes and brackets, a space, and then anything but a
# lower-case letter. Marks of scripts without capitals, such as 。 or ।, need no space; Urdu's also
# occurs in abbreviations, and the wide full stop in wide numbers and initials. Tibetan's shad is no
# Sentence_Terminal, but the only mark that its sentences have.
_OWN_MARK = r"[\p{Sentence_Terminal}\u0F0D--[\x00-\x7F\u06D4\u2000-\u206F\uFE50-\uFE6F\uFF0E]]"
_WIDE_STOP = r"(?<![\p{N}\uFF21-\uFF3A\uFF41-\uFF5A])\uFF0E"
_SENTENCE_BORDER = regex.compile(
    rf"(?V1)(?:{_OWN_MARK}|{_WIDE_STOP})+[\"'”’»)\]」』）]*"  # noqa: RUF001
    rf"|[\p{{Sentence_Terminal}}…][\"'”’»)\]]* (?!{_SMALL})"  # noqa: RUF001
)
# A period after these does not end a sentence, nor does one after initials ("J. R. Smith").
_ABBREVIATION = re.compile(
    r"(?<!\w)(?:(?:[A-Z]\.)*[A-Z]|Mrs?|Ms|Drs?|Prof|Rev|Gen|Col|Capt|Lt|Sgt|Sen|Rep|Gov|St|Mt|Ft|Jr"
    r"|Sr|vs|cf|ca|al|[Nn]os?|pp?|[Vv]ols?|[Ee]ds?|[Ff]igs?|[Ee]qs?|Refs?|approx|est|e\.g|i\.e|Inc|Ltd"
    r"|Co|Corp|Bros|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)$"
)


class Span(NamedTuple):
    """The content tokens of one span, without [CLS] and [SEP]."""

    tokens: np.ndarray  # [L] token ids, uint32
    # [L] uint8: 1 where a token starts a word, 2 where a sentence too, else 0. 3: `prompts.py`.
    starts: np.ndarray


def split_sentences(text: str) -> list[str]:
    """Splits a text into nonempty sentences by rules, with collapsed white space."""
    sentences = []
    for line in _LINE_BORDER.split(text):
        line = _with_single_spaces(line)
        begin = 0
        for border in _SENTENCE_BORDER.finditer(line):
            stop = border.start()
            if line[stop] == "." and _ABBREVIATION.search(line, max(begin, stop - 12), stop):
                continue
            sentences.extend(_bounded(line[begin : border.end()].strip()))
            begin = border.end()
        sentences.extend(_bounded(line[begin:].strip()))
    return sentences


def _with_single_spaces(text: str) -> str:
    """Collapses the white space of a text."""
    if _CONTROL.search(text):
        return _SPACE.sub(" ", text).strip(" ")
    return " ".join(text.split())


def cut_documents(
    documents: Sequence[Document],
    tokenizer: SpanTokenizer,
    max_length: int,
    short_span_prob: float = 0.0,
) -> list[list[Span]]:
    """Cuts documents into spans.

    Consecutive sentences are packed greedily. A sentence longer than a span is cut between words,
    and a word longer than a span is truncated. A document with `spans` keeps them; those that are
    too long are truncated between words.

    Args:
      documents: what to cut.
      tokenizer: the model's.
      max_length: longest span, [CLS] and [SEP] included.
      short_span_prob: fraction of spans that end early, as in the preprocessing of Condenser's
        authors: at the last sentence boundary within a uniformly random length, which depends only
        on the document's text, but after at least one whole sentence and, before the last span,
        MIN_TOKENS.

    Returns:
      For each document its spans of at least MIN_TOKENS content tokens, in the order of the text.
    """
    texts_D = [*map(_sentences_of, documents)]
    encoded = _encode(tokenizer, list(chain.from_iterable(texts_D)))
    spans_D = []
    for document, texts in zip(documents, texts_D, strict=True):
        sentences = islice(encoded, len(texts))
        spans = _spans_of(document, sentences, tokenizer, max_length - N_AROUND, short_span_prob)
        spans_D.append([span for span in spans if len(span.tokens) >= MIN_TOKENS])
    return spans_D


def _sentences_of(document: Document) -> list[str]:
    """Returns the texts to tokenize: sentences, or the spans that a source has already split."""
    if document.spans is None:
        return split_sentences(document.text)
    return [_bounded(_with_single_spaces(span))[0] for span in document.spans if span.strip()]


def _spans_of(
    document: Document,
    sentences: Iterable[Span],
    tokenizer: SpanTokenizer,
    limit: int,
    short_span_prob: float,
) -> Iterator[Span]:
    """Yields the spans of a document, including those that are too short."""
    as_first = _first_form(tokenizer)
    if document.spans is None:
        return _pack(sentences, limit, _targets(document.text, limit, short_span_prob), as_first)
    return (_truncate(as_first(span), limit) for span in sentences)


def _bounded(sentence: str) -> list[str]:
    """Cuts at MAX_SENTENCE_CHARACTERS, at a space if possible; no piece is empty."""
    pieces = []
    while len(sentence) > MAX_SENTENCE_CHARACTERS:
        stop = sentence.rfind(" ", 1, MAX_SENTENCE_CHARACTERS)
        stop = MAX_SENTENCE_CHARACTERS if stop < 0 else stop
        pieces.append(sentence[:stop])
        sentence = sentence[stop:].strip()
    return [*pieces, sentence] if sentence else pieces


def _encode(tokenizer: SpanTokenizer, texts: Sequence[str]) -> Iterator[Span]:
    """Tokenizes texts as if they followed a space, which byte-level BPE makes part of a token."""
    words = _word_table(tokenizer)
    for begin in range(0, len(texts), ENCODE_BATCH):
        for ids, starts in words.tokenize(texts[begin : begin + ENCODE_BATCH]):
            starts[:1] = STARTS_SENTENCE
            yield Span(ids, starts)


_word_table = functools.lru_cache(maxsize=1)(WordTable)  # its words are kept between calls


def spans_of_texts(tokenizer: SpanTokenizer, texts: Sequence[str]) -> list[Span]:
    """Returns each text as a span of any length.

    Args:
      tokenizer: the model's.
      texts: words separated by single spaces.
    """
    return [*map(_first_form(tokenizer), _encode(tokenizer, texts))]


def _first_form(tokenizer: SpanTokenizer) -> Callable[[Span], Span]:
    """Makes a function that gives text cut out of another one the tokens that it has alone.

    WordPiece's tokens do not depend on spaces, and stay the same.
    """
    if not tokenizer.space:
        return lambda span: span
    read = first_word_reader("", tokenizer)
    follows_space = tokenizer.follows_space_V

    def as_first(span: Span) -> Span:
        if not len(span.tokens) or follows_space[span.tokens[0]] == tokenizer.puts_space:
            return span
        spaces = np.flatnonzero(follows_space[span.tokens[1:]])
        stop = int(spaces[0]) + 1 if len(spaces) else len(span.tokens)
        first = read(span.tokens[:stop].tobytes(), span.starts[:stop].tobytes())
        rest = Span(span.tokens[stop:], span.starts[stop:])
        return _join([Span(np.array(first.ids, np.uint32), first.starts), rest])

    return as_first


def _targets(text: str, limit: int, short_span_prob: float) -> Iterator[int]:
    """Yields the lengths, in content tokens, to which the spans of a text are packed."""
    if not short_span_prob:
        yield from repeat(limit)
    rng = np.random.default_rng(zlib.crc32(text.encode()))
    while True:
        is_short = rng.random() < short_span_prob
        yield int(rng.integers(1, limit, endpoint=True)) if is_short else limit


def _pack(
    sentences: Iterable[Span],
    limit: int,
    targets: Iterator[int],
    as_first: Callable[[Span], Span],
) -> Iterator[Span]:
    waiting: list[Span] = []
    n_waiting = 0
    target = next(targets)
    for sentence in sentences:
        allowed = target if n_waiting >= MIN_TOKENS else limit
        if waiting and n_waiting + len(sentence.tokens) <= allowed:
            waiting.append(sentence)
            n_waiting += len(sentence.tokens)
            continue
        if waiting:
            yield _join(waiting)
            target = next(targets)
        rest = as_first(sentence)
        while len(rest.tokens) > limit:
            span = _truncate(rest, limit)
            yield span
            # If it ends within a word, the rest of the word is lost.
            borders = np.flatnonzero(rest.starts[len(span.tokens) :])
            begin = len(span.tokens) + int(borders[0]) if len(borders) else len(rest.tokens)
            rest = as_first(Span(rest.tokens[begin:], rest.starts[begin:]))
        waiting = [rest] if len(rest.tokens) else []
        n_waiting = len(rest.tokens)
    if waiting:
        yield _join(waiting)


def _truncate(span: Span, limit: int) -> Span:
    """Cuts at the last word boundary within `limit` tokens, or at `limit` within the first word."""
    if len(span.tokens) <= limit:
        return span
    borders = np.flatnonzero(span.starts[1 : limit + 1]) + 1
    stop = int(borders[-1]) if len(borders) else limit
    return Span(span.tokens[:stop], span.starts[:stop])


def _join(spans: Sequence[Span]) -> Span:
    if len(spans) == 1:
        return spans[0]
    tokens = np.concatenate([span.tokens for span in spans])
    return Span(tokens, np.concatenate([span.starts for span in spans]))
