import zlib

import numpy as np
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from cocondenser_jax.corpus import first_words, spans
from cocondenser_jax.corpus.first_words import first_word_reader
from cocondenser_jax.corpus.records import Document
from cocondenser_jax.corpus.spans import cut_documents, split_sentences
from tests.conftest import MODEL_TYPES
from tests.corpus.test_words import own_tokens

# Words with accents, figures, quotes, several scripts and pieces that no vocabulary knows.
WORDS = (
    "the parser Argument (see) Dr. e.g. U.S. 3.14 don't “quoted” naïve École 漢字。 zzyzx_9 --help "
    "'tis it's \"A statistics.mean ... ! what? [MASK] </s> x=1;y=2 unbelievably"
)
TEXTS = st.lists(
    st.tuples(
        st.sampled_from(WORDS.split(" ")),
        st.sampled_from([" ", " ", " ", "  ", "\n", ". ", "? ", "\n\n"]),
    )
)
DOCUMENTS = TEXTS.map(lambda words: "".join(word + space for word, space in words))


@pytest.fixture(autouse=True)
def _keep_short_spans(monkeypatch):
    monkeypatch.setattr(spans, "MIN_TOKENS", 1)


def greedy_spans(tokenizer, sentences, limit):
    """The longest runs of sentences that fit, by tokenizing every candidate from scratch."""
    texts = []
    for sentence in sentences:
        longer = f"{texts[-1]} {sentence}" if texts else sentence
        if texts and len(own_tokens(tokenizer, longer)[0]) <= limit:
            texts[-1] = longer
        else:
            texts.append(sentence)
    return texts


def plain(span):
    return span.tokens.tolist(), (span.starts > 0).tolist()


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One here. Two there? Yes! End", ["One here.", "Two there?", "Yes!", "End"]),
        ("Dr. J. R. Smith met Mrs. Jones.", ["Dr. J. R. Smith met Mrs. Jones."]),
        (
            "See Fig. 3 (cf. No. 4). Then go.",
            ["See Fig. 3 (cf. No. 4).", "Then go."],
        ),
        ("It cost 3.5 dollars, i.e. little. 7 men", ["It cost 3.5 dollars, i.e. little.", "7 men"]),
        ("He said “Go.” She went.", ["He said “Go.”", "She went."]),
        ("and so on ... or not. not this", ["and so on ... or not. not this"]),
        ("wrapped\n  line goes on\nNew one\n\nand a block", [
            "wrapped line goes on", "New one", "and a block",
        ]),
        ("一つ。二つ？ 三つ", ["一つ。", "二つ？", "三つ"]),
        ("好！？我。", ["好！？", "我。"]),
        ("नदी है। शहर है॥ पानी।किताब", ["नदी है।", "शहर है॥", "पानी।", "किताब"]),
        ("دریا ہے۔ شہر ہے۔ یو۔ایس", ["دریا ہے۔", "شہر ہے۔", "یو۔ایس"]),
        ("ወንዝ ነው። ተራራ፧ ገበያ", ["ወንዝ ነው።", "ተራራ፧", "ገበያ"]),
        ("գետ է։ Լեռ։", ["գետ է։", "Լեռ։"]),
        ("هذا واحد. هل هذا اثنان؟ «ثلاثة.» أربعة", [
            "هذا واحد.", "هل هذا اثنان؟", "«ثلاثة.»", "أربعة",
        ]),
        ("မြစ်။ မြို့။", ["မြစ်။", "မြို့။"]),
        ("ទន្លេ។ ទីក្រុង។", ["ទន្លេ។", "ទីក្រុង។"]),
        ("Really‽ Yes⁇ no ‼ lower", ["Really‽", "Yes⁇ no ‼ lower"]),
        ("Первая строка\nидёт. Новое\nи ещё", ["Первая строка идёт.", "Новое и ещё"]),
        ("Он жил в Москве, т.е. далеко. Потом", ["Он жил в Москве, т.е. далеко.", "Потом"]),
        ("Il parlait\nà la presse. Fin", ["Il parlait à la presse.", "Fin"]),
        ("これは文．次の文．３．５倍だ．次", ["これは文．", "次の文．", "３．５倍だ．", "次"]),
        ("Ｊ．Ｋ．ローリング．次", ["Ｊ．Ｋ．ローリング．", "次"]),
        ("ეს არის პირველი. ეს მეორე.\nმესამე", ["ეს არის პირველი.", "ეს მეორე.", "მესამე"]),
        ("བོད་སྐད། གཉིས་པ།", ["བོད་སྐད།", "གཉིས་པ།"]),
        *((f"行く。{mark}と言った。次", [f"行く。{mark}", "と言った。", "次"])
          for mark in "\"'”’»)]」』）"),
        *((f"It ended.{mark} Then", [f"It ended.{mark}", "Then"]) for mark in "\"'”’»)]"),
        ("And so on… Then", ["And so on…", "Then"]),
        (" \n \n\t", []),
    ],
)  # fmt: skip
def test_sentences(text, sentences):
    assert split_sentences(text) == sentences


@pytest.mark.parametrize(
    "name",
    "A U.S U.S.A Mr Mrs Ms Dr Drs Prof Rev Col Gen Capt Lt Sgt Sen Rep Gov St Mt Ft Jr Sr vs cf ca"
    " al p pp No no Nos nos Vol Vols vols ed Eds fig Fig Figs eq Eq Ref Refs approx est e.g i.e Inc"
    " Ltd Co Corp Bros Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec".split(),
)
def test_a_full_stop_after_an_abbreviation_ends_no_sentence(name):
    assert split_sentences(f"It was {name}. Next") == [f"It was {name}. Next"]
    assert split_sentences(f"{name}. Next ({name}. Next") == [f"{name}. Next ({name}. Next"]
    if "." not in name:
        assert split_sentences(f"It was x{name}. Next") == [f"It was x{name}.", "Next"]


def test_every_mark_that_ends_sentences_in_unicode_ends_one():
    marks = regex.findall(r"\p{Sentence_Terminal}", "".join(map(chr, range(0x110000))))
    assert len(marks) > 150
    for mark in marks:
        assert split_sentences(f"one{mark} Two{mark} three") == [
            f"one{mark}", *([f"Two{mark} three"] if _needs_space(mark) else [f"Two{mark}", "three"])
        ]  # fmt: skip


def _needs_space(mark):
    """Of scripts with capitals, before which a border is."""
    return regex.match(r"[.!?\u06D4\u2000-\u206F\uFE50-\uFE6F]", mark) is not None


@given(DOCUMENTS)
def test_sentences_keep_every_character_but_white_space(text):
    sentences = split_sentences(text)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence == " ".join(sentence.split()) != "" for sentence in sentences)


def test_text_without_borders_is_cut_at_a_bound():
    words = "word " * 10_000
    pieces = split_sentences(words + "x" * 25_000)
    assert max(map(len, pieces)) <= spans.MAX_SENTENCE_CHARACTERS
    assert " ".join(pieces).startswith(words)
    assert "".join(pieces).count("x") == 25_000
    assert len(pieces) == 5 + 3  # as few as the bound allows
    assert len(split_sentences(f"{'a' * 4_999} {'b' * 5_000}")) == 1  # just within it


@settings(deadline=None, max_examples=60)
@given(text=DOCUMENTS, limit=st.integers(30, 60), kind=st.sampled_from(MODEL_TYPES))
def test_spans_are_greedy_and_hold_the_tokenizers_own_tokens(tokenizers, text, limit, kind):
    tokenizer = tokenizers[kind]
    sentences = [s for s in split_sentences(text) if len(own_tokens(tokenizer, s)[0]) <= limit]
    text = "\n\n".join(sentences)
    [found] = cut_documents([Document("d", text)], tokenizer, limit + 2)
    expected = greedy_spans(tokenizer, split_sentences(text), limit)
    assert [plain(span) for span in found] == [own_tokens(tokenizer, t) for t in expected]


def blocks_of_the_release(sentences, limit, probability, rng):
    """Numbers of sentences in each block; `sentences` are their lengths in tokens."""

    def draw():
        return int(rng.integers(1, limit + 1)) if rng.random() < probability else limit

    blocks, target = [[]], draw()
    for length in sentences:
        if blocks[-1] and sum(blocks[-1]) + length > target:
            blocks.append([])
            target = draw()
        blocks[-1].append(length)
    return [len(block) for block in blocks if block]


@settings(deadline=None, max_examples=60)
@given(text=DOCUMENTS, probability=st.sampled_from([0.1, 0.6, 1.0]))
def test_short_spans_end_where_those_of_the_authors_release_do(tokenizers, text, probability):
    tokenizer = tokenizers["bert"]  # has the same tokens at the start of a span as within it
    limit = 40
    lengths = {s: len(own_tokens(tokenizer, s)[0]) for s in split_sentences(text)}
    text = "\n\n".join(s for s in split_sentences(text) if lengths[s] <= limit)
    sentences = [len(own_tokens(tokenizer, s)[0]) for s in split_sentences(text)]
    other = Document("e", "Another document.")
    [_, found] = cut_documents([other, Document("d", text)], tokenizer, limit + 2, probability)
    rng = np.random.default_rng(zlib.crc32(text.encode()))
    expected = blocks_of_the_release(sentences, limit, probability, rng)
    assert [int(np.sum(span.starts == 2)) for span in found] == expected
    assert sum(len(span.tokens) for span in found) == sum(sentences)


@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_how_often_and_how_early_spans_end(tokenizer, probability):
    limit, sentence = 40, "the list"
    length = len(own_tokens(tokenizer, sentence)[0])
    texts = [f"{sentence}\n\n" * (80_000 // length) + f"Number {i}" for i in range(2)]
    documents = [Document("d", text) for text in texts]
    found = cut_documents(documents, tokenizer, limit + 2, probability)
    counts = [int(np.sum(span.starts == 2)) for of_one in found for span in of_one[:-1]]
    assert len(counts) > 3000
    shares = np.bincount(counts, minlength=limit // length + 1) / len(counts)
    expected = np.zeros_like(shares)
    for target in range(1, limit + 1):
        expected[max(1, target // length)] += probability / limit
    expected[-1] += 1 - probability
    assert (np.abs(shares - expected) <= 4.5 * np.sqrt(expected / len(counts))).all()


def test_a_span_has_eight_tokens(tokenizer, monkeypatch):
    monkeypatch.undo()  # of what other tests allow
    texts = [" ".join(["list"] * n) for n in range(1, 12)]
    found = cut_documents([Document("d", text) for text in texts], tokenizer, 42)
    kept = [bool(spans) for spans in found]
    lengths = [len(own_tokens(tokenizer, text)[0]) for text in texts]
    assert min(lengths) < 8 <= max(lengths)
    assert kept == [length >= 8 for length in lengths]


def test_short_spans_are_not_so_short_that_they_would_be_dropped(tokenizer, monkeypatch):
    monkeypatch.setattr(spans, "MIN_TOKENS", 8)
    sentence = "the list"
    length = len(own_tokens(tokenizer, sentence)[0])
    text = f"{sentence}\n\n" * 400
    [found] = cut_documents([Document("d", text)], tokenizer, 42, 1.0)
    lengths = [len(span.tokens) for span in found]
    assert 8 <= min(lengths) < 8 + length
    assert 400 * length - sum(lengths) < 8  # the last span may be too short


@pytest.mark.parametrize("kind", MODEL_TYPES)
def test_spans_know_where_their_sentences_start(tokenizers, kind):
    sentences = ["The list is empty.", "It has no values.", "An error is raised."]
    text = " ".join([*sentences, "So a " + "very " * 60 + "long one is cut"])
    [found] = cut_documents([Document("d", text)], tokenizers[kind], 60)
    first = tokenizers[kind].backend.decode_batch(
        np.split(found[0].tokens, np.flatnonzero(found[0].starts == 2)[1:])
    )
    assert [part.strip().capitalize() for part in first] == sentences
    assert [int(np.sum(span.starts == 2)) for span in found[1:]] == [1, *[0] * (len(found) - 2)]
    assert len(found) > 2


@settings(deadline=None, max_examples=60)
@given(text=DOCUMENTS, limit=st.integers(8, 30), kind=st.sampled_from(MODEL_TYPES))
def test_long_sentences_are_cut_between_words_and_nothing_is_lost(tokenizers, text, limit, kind):
    tokenizer = tokenizers[kind]
    documents = [Document("d", text), Document("e", text)]
    found, again = cut_documents(documents, tokenizer, limit + 2)
    assert [plain(span) for span in found] == [plain(span) for span in again]
    assert all(0 < len(span.tokens) <= limit for span in found)
    assert all(span.starts[0] for span in found)
    forms = [form for word in text.split() for form in (word, f" {word}")]
    if any(len(own_tokens(tokenizer, form)[0]) > limit for form in forms):
        return  # the next test is about these
    whole_ids, whole_starts = own_tokens(tokenizer, " ".join(split_sentences(text)))
    if kind == "xlm-roberta" and "漢" in text:
        return  # cut within, it has other tokens: see test_first_words.py
    if not tokenizer.is_byte_level:
        assert np.concatenate([[], *(span.tokens for span in found)]).tolist() == whole_ids
        starts = np.concatenate([span.starts for span in found]) if found else np.zeros(0)
        assert (starts > 0).tolist() == whole_starts
    else:
        decode = tokenizer.backend.decode
        texts = [decode(span.tokens.tolist(), skip_special_tokens=False) for span in found]
        assert "".join("".join(texts).split()) == "".join(text.split())
        # Each reads as a text of its own, without the space that came before it.
        assert [plain(span) for span in found] == [own_tokens(tokenizer, t) for t in texts]


def test_a_word_longer_than_a_span_is_truncated(tokenizer):
    word = "qxzj" * 20  # not in the tokenizer, within WordPiece's 100 characters
    text = f"{word} after {word}"
    ids, starts = own_tokens(tokenizer, text)
    assert starts.index(True, 1) > 10
    [found] = cut_documents([Document("d", f"{text}\nAnd on")], tokenizer, 12)
    assert plain(found[0])[0] == ids[:10]
    assert plain(found[1]) == own_tokens(tokenizer, "after")
    assert plain(found[2])[0] == own_tokens(tokenizer, word)[0][:10]
    assert plain(found[3]) == own_tokens(tokenizer, "And on")
    assert len(found) == 4


def test_given_spans_stay_and_are_truncated_between_words(tokenizer):
    long = "the argument parser " * 8
    given_spans = ("One. Two.", long, "", "end")
    [found] = cut_documents([Document("d", "", given_spans)], tokenizer, 12)
    ids, starts = own_tokens(tokenizer, long.strip())
    stop = max(i for i in range(11) if starts[i])
    assert [span.tokens.tolist() for span in found] == [
        own_tokens(tokenizer, given_spans[0])[0],
        ids[:stop],
        own_tokens(tokenizer, "end")[0],
    ]


def test_short_spans_are_dropped(tokenizer, monkeypatch):
    monkeypatch.setattr(spans, "MIN_TOKENS", 3)
    document = Document("d", "", ("one two three four", "a"))
    [found] = cut_documents([document], tokenizer, 60)
    assert [span.tokens.tolist() for span in found] == [
        own_tokens(tokenizer, "one two three four")[0]
    ]


def test_batches_of_the_tokenizer_do_not_matter(tokenizer, paragraphs, monkeypatch):
    documents = [Document(str(i), text) for i, text in enumerate(paragraphs[:20])]
    whole = cut_documents(documents, tokenizer, 40)
    monkeypatch.setattr(spans, "ENCODE_BATCH", 3)
    monkeypatch.setattr(first_words, "KNOWN_WORDS", 1)
    first_word_reader.cache_clear()
    for document, expected in zip(documents, whole, strict=True):
        [found] = cut_documents([document], tokenizer, 40)
        assert [plain(span) for span in found] == [plain(span) for span in expected]
