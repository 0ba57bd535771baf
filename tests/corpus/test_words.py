import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cocondenser_jax.corpus import words
from cocondenser_jax.corpus.scripts import UNSPACED
from cocondenser_jax.corpus.words import WordTable
from tests.conftest import MODEL_TYPES

# Any character, and more often what tokenizers treat apart: accents, ligatures, controls, marks.
ODD = "aé\u0301ßŉ\0漢#'s1=[🙂"
LETTERS = st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from(ODD)))
TEXTS = st.lists(LETTERS.map(lambda text: " ".join(text.split())).filter(bool), min_size=1)


def found_tokens(table, texts):
    return [(ids.tolist(), starts.tolist()) for ids, starts in table.tokenize(texts)]


def is_unspaced(letter):
    """Whether a letter is of a script that writes no spaces between words, by Unicode's blocks."""
    code = ord(letter)
    return (
        0x0E00 <= code <= 0x0FFF  # Thai, Lao, Tibetan
        or 0x1000 <= code <= 0x109F  # Burmese
        or 0x1780 <= code <= 0x17FF  # Khmer
        or 0x2E80 <= code <= 0xA4CF  # radicals, kana, ideographs, Yi
        or 0xF900 <= code <= 0xFAFF  # compatibility ideographs
        or 0x20000 <= code <= 0x3FFFF  # rarer ideographs
    )


def tokens_after_a_space(tokenizer, text):
    return own_tokens(tokenizer, " " * (tokenizer.kind in ("roberta", "modernbert")) + text)


def own_tokens(tokenizer, text):
    """The tokenizer's for the whole text, and which of them start a word."""
    encoding = tokenizer.backend.encode(text, add_special_tokens=False)
    numbers, places = encoding.word_ids, [first for first, _ in encoding.offsets]
    starts = []
    for i, place in enumerate(places):
        is_new = i == 0 or numbers[i] != numbers[i - 1]
        if i and text[places[i - 1] : place].strip():
            is_new |= is_unspaced(text[place]) or is_unspaced(text[places[i - 1]])
        starts.append(is_new)
    return encoding.ids, starts


def test_tokens_without_spaces_between_them_are_words(
    unigrams,
):
    """In Chinese, Japanese and Thai; Korean and Latin words stay whole."""
    chinese, thai, korean, mixed = found_tokens(
        WordTable(unigrams), ["密集検索。", "การค้นหา", "한국어", "retrieval検x"]
    )
    assert len(chinese[0]) >= 5
    assert chinese[1][-4:] == [True] * 4  # the first piece may be a space's and the character's
    assert len(thai[0]) >= 5
    assert all(thai[1][2:])
    assert sum(korean[1]) == 1
    assert sum(mixed[1]) == 3  # a word, an ideograph, another word


@settings(deadline=None)
@given(texts=TEXTS, kind=st.sampled_from(MODEL_TYPES))
def test_tokens_are_those_of_the_whole_text(tokenizers, texts, kind):
    tokenizer = tokenizers[kind]
    table = WordTable(tokenizer)
    expected = [tokens_after_a_space(tokenizer, text) for text in texts]
    assert found_tokens(table, texts) == expected
    assert found_tokens(table, texts[::-1]) == expected[::-1]  # all words are known now


@pytest.mark.parametrize("known_words", [0, 30, 10**6])
def test_forgotten_words_are_looked_up_again(tokenizer, paragraphs, monkeypatch, known_words):
    monkeypatch.setattr(words, "KNOWN_WORDS", known_words)
    table = WordTable(tokenizer)
    for paragraph in paragraphs[:20]:
        texts = [" ".join(line.split()) for line in paragraph.split("\n") if line.strip()]
        expected = [tokens_after_a_space(tokenizer, text) for text in texts]
        assert found_tokens(table, texts) == expected


def test_a_letter_of_each_script_without_spaces_is_known():
    """Thai, Lao, Tibetan, Burmese, Khmer, radicals, kana, ideographs, Yi; the rarer ones."""
    codes = (0x0E01, 0x0E81, 0x0F40, 0x1000, 0x1780, 0x2E80, 0x304B, 0x6F22, 0xA000)
    for code in (*codes, 0xF900, 0x20000):
        assert UNSPACED.fullmatch(chr(code)), hex(code)
    assert not any(map(UNSPACED.match, "a\u00e9\u05d0\u0905\ud55c"))
