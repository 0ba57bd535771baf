"""Texts cut out of others, within scripts without spaces, against the tokenizers themselves."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, pre_tokenizers

from cocondenser_jax.corpus import first_words, spans
from cocondenser_jax.corpus.first_words import first_word_reader
from cocondenser_jax.corpus.pairs import split_crops
from cocondenser_jax.corpus.prompts import put_before
from cocondenser_jax.corpus.records import Document
from cocondenser_jax.corpus.spans import cut_documents
from cocondenser_jax.corpus.token_files import Texts
from cocondenser_jax.corpus.tokenizer import span_tokenizer

# Chinese, Japanese and Thai, that the tokenizers know, in words, and between Latin words.
LETTERS = "密集検索การค้นหา"
WORDS = ["the", "parser", "x=1", "한국어", "密集", "検索検索", "การค้นหา", "ab密集"]
WORDS += [LETTERS * n for n in (2, 7)]
SENTENCES = st.lists(st.sampled_from(WORDS), min_size=20, max_size=40).map(" ".join)
KINDS = ["roberta", "roberta after a space", "xlm-roberta", "modernbert"]
PROMPTS = ["", "query: ", "query:", "検索", "検索 ", "Instruct: find\n"]


@pytest.fixture(autouse=True)
def _keep_short_spans(monkeypatch):
    monkeypatch.setattr(spans, "MIN_TOKENS", 1)


@pytest.fixture(scope="module")
def get(tokenizers):
    """Gives a function that returns a tokenizer whose tokens tell of spaces."""

    @functools.cache
    def of_kind(kind):
        plain = tokenizers[kind.split()[0]]
        if kind != "roberta after a space":
            return plain
        backend = Tokenizer.from_str(plain.backend.to_str())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        return span_tokenizer(backend, kind)

    return of_kind


def is_whole(tokenizer, ids):
    """Whether no character was cut, as in a word of bytes that is longer than a span."""
    return "\ufffd" not in tokenizer.spell(ids)


@settings(deadline=None, max_examples=60)
@given(text=SENTENCES, limit=st.integers(10, 30), kind=st.sampled_from(KINDS))
def test_a_span_has_the_tokens_of_its_text_alone(get, text, limit, kind):
    tokenizer = get(kind)
    [found] = cut_documents([Document("d", text)], tokenizer, limit + 2)
    for span in found:
        ids = span.tokens.tolist()
        assert 0 < len(ids) <= limit
        assert len(span.starts) == len(ids)
        assert span.starts[0]
        if is_whole(tokenizer, ids):
            assert ids == tokenizer.ids_of(tokenizer.spell(ids).strip())


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_where_text_without_spaces_is_cut(get, kind):
    tokenizer = get(kind)
    text = "密集検索" * 40
    [found] = cut_documents([Document("d", text)], tokenizer, 22)
    assert len(found) > 3
    assert "".join(tokenizer.spell(span.tokens.tolist()).strip() for span in found) == text
    begins = [bool(tokenizer.follows_space_V[span.tokens[0]]) for span in found]
    assert begins == [kind in ("xlm-roberta", "roberta after a space")] * len(found)


@pytest.mark.parametrize("prompt", ["", "query: "])
def test_an_unknown_word_begins_once_behind_a_space(get, prompt):
    tokenizer = get("xlm-roberta")
    unknown = [tokenizer.unknown_id] * 2
    word = np.array(unknown, np.uint32).tobytes(), np.array([1, 0], np.uint8).tobytes()
    read = first_word_reader(prompt, tokenizer)(*word)
    before = tokenizer.ids_of(prompt.rstrip())
    assert len(tokenizer.space_ids) == 1
    assert read.ids == [*before, *tokenizer.space_ids, *unknown]
    assert read.starts.tolist() == [1, 0, 0]


@settings(deadline=None, max_examples=60)
@given(
    text=SENTENCES,
    kind=st.sampled_from(KINDS),
    prompt=st.sampled_from(PROMPTS),
    draw=st.integers(0, 2**63),
)
def test_a_crop_has_the_tokens_of_prompt_and_text_joined(get, text, kind, prompt, draw):
    tokenizer = get(kind)
    [[span]] = cut_documents([Document("d", text)], tokenizer, 5000)
    n_tokens = np.array([len(span.tokens)], np.int32)
    rows = (np.pad(row, (0, 20))[None] for row in (span.tokens.astype(np.int32), span.starts))
    crops = split_crops(Texts(*rows, n_tokens), np.array([draw], np.uint64))
    joined = put_before(prompt, crops, tokenizer)
    for n in range(2):
        text = tokenizer.spell(crops.ids_NxL[n, : crops.n_tokens_N[n]].tolist()).strip()
        found = joined.ids_NxL[n, : joined.n_tokens_N[n]].tolist()
        assert found == tokenizer.ids_of(prompt + text)
        assert not joined.ids_NxL[n, joined.n_tokens_N[n] :].any()


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("text", ["〇検索", "検〇索", "〇", "検索〇〇"])
def test_unknown_characters_stay_behind_a_space_or_a_prompt(get, text, prompt):
    tokenizer = get("xlm-roberta")
    assert tokenizer.unknown_id in tokenizer.ids_of(text)
    before = tokenizer.ids_of("集")
    within = tokenizer.ids_of(f"集{text}")
    assert within[: len(before)] == before
    ids, starts = np.array(within[len(before) :], np.uint32), np.ones(len(within) - len(before))
    word = first_word_reader(prompt, tokenizer)(ids.tobytes(), starts.astype(np.uint8).tobytes())
    assert word.ids == tokenizer.ids_of(prompt + text)
    assert len(word.ids) - word.n_prompt == len(tokenizer.ids_of(text)) - (
        prompt in ("検索", "query:")
    )


def test_what_is_long_is_not_remembered(get, monkeypatch):
    monkeypatch.setattr(first_words, "LONGEST_KNOWN", 4)
    first_word_reader.cache_clear()
    tokenizer = get("xlm-roberta")
    read = first_word_reader("", tokenizer)
    for text in ("密", "密集検索" * 3):
        ids = np.array(tokenizer.ids_of(text)[1:], np.uint32)
        is_kept = read(*[ids.tobytes(), bytes(len(ids))]) is read(ids.tobytes(), bytes(len(ids)))
        assert is_kept == (text == "密")
    first_word_reader.cache_clear()
