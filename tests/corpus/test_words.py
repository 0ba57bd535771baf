from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from cocondenser_jax.corpus import words
from cocondenser_jax.corpus.tokenizer import SpanTokenizer, span_tokenizer
from cocondenser_jax.corpus.words import WordTable
from cocondenser_jax.errors import UserError

# Any character, and more often what tokenizers treat apart: accents, ligatures, controls, marks.
ODD = "aé\u0301ßŉ\0漢#'s1=[🙂"
LETTERS = st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from(ODD)))
TEXTS = st.lists(LETTERS.map(lambda text: " ".join(text.split())).filter(bool), min_size=1)


def found_tokens(table: WordTable, texts: list[str]) -> list[tuple[list[int], list[bool]]]:
    ids, starts, ends = table.tokenize(texts)
    borders = pairwise([0, *ends.tolist()])
    return [(ids[i:j].tolist(), starts[i:j].tolist()) for i, j in borders]


def own_tokens(tokenizer: SpanTokenizer, text: str) -> tuple[list[int], list[bool]]:
    """The tokenizer's for the whole text."""
    space = " " if tokenizer.kind == "roberta" else ""
    encoding = tokenizer.backend.encode(space + text, add_special_tokens=False)
    numbers = encoding.word_ids
    return encoding.ids, [i == 0 or numbers[i] != numbers[i - 1] for i in range(len(numbers))]


@settings(deadline=None)
@given(texts=TEXTS, kind=st.sampled_from(["bert", "roberta"]))
def test_tokens_are_those_of_the_whole_text(
    tokenizers: dict[str, SpanTokenizer], texts: list[str], kind: str
) -> None:
    tokenizer = tokenizers[kind]
    table = WordTable(tokenizer)
    expected = [own_tokens(tokenizer, text) for text in texts]
    assert found_tokens(table, texts) == expected
    assert found_tokens(table, texts[::-1]) == expected[::-1]  # all words are known now


@pytest.mark.parametrize(("known_tokens", "encode_words"), [(1, 1), (50, 3), (10**6, 10**6)])
def test_forgotten_words_are_looked_up_again(
    tokenizer: SpanTokenizer,
    paragraphs: list[str],
    monkeypatch: pytest.MonkeyPatch,
    known_tokens: int,
    encode_words: int,
) -> None:
    monkeypatch.setattr(words, "KNOWN_TOKENS", known_tokens)
    monkeypatch.setattr(words, "ENCODE_WORDS", encode_words)
    table = WordTable(tokenizer)
    for paragraph in paragraphs[:20]:
        texts = [" ".join(line.split()) for line in paragraph.split("\n") if line.strip()]
        expected = [own_tokens(tokenizer, text) for text in texts]
        assert found_tokens(table, texts) == expected


@pytest.mark.parametrize("token", [AddedToken("New York"), AddedToken("New", rstrip=True)])
def test_a_token_across_a_space_is_refused(tokenizer: SpanTokenizer, token: AddedToken) -> None:
    backend = Tokenizer.from_str(tokenizer.backend.to_str())
    backend.add_tokens(["York"])
    WordTable(span_tokenizer(backend, "within a word"))
    backend.add_tokens([token])
    with pytest.raises(UserError, match=r"added token 'New.*' reaches across a space"):
        WordTable(span_tokenizer(backend, "across"))
