"""Terms of texts in several languages, and what BM25 finds by them."""

import unicodedata

import bm25s
import numpy as np
import pytest
import Stemmer

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.data.folder import Passage
from cocondenser_jax.retriever.data.ranking import evaluate_run
from cocondenser_jax.retriever.search.bm25 import Bm25Settings, bm25_run
from cocondenser_jax.retriever.search.terms import languages, term_finder
from tests.languages import SENTENCES, sentences_of


def terms_by_library(texts, stop_words, stemmer):
    return bm25s.tokenize(
        texts,
        return_ids=False,
        token_pattern=r"\w\w+|(?<!\w['’])\w(?!['’]\w)",
        stopwords=stop_words,
        stemmer=stemmer and Stemmer.Stemmer(stemmer),
        show_progress=False,
    )


@pytest.mark.parametrize(
    ("language", "stop_words", "stemmer"),
    [
        ("english", "en", "porter"),
        ("german", "german", "german"),
        ("french", "french", "french"),
        ("russian", "russian", "russian"),
        ("finnish", None, "finnish"),
        ("korean", "korean", None),
        ("none", None, None),
    ],
)
def test_words_are_those_of_the_libraries(language, stop_words, stemmer):
    texts = [
        "The runners were running to the houses; it's 3.5 of x_1, naïve cafés.",
        "J S Bach's concerto in A, opus 1, for x_1 and y2",
        "Vitamin D or C? R 4.2: 1.7 liters; don't say it’s Ö, é or ß",
        *sentences_of("german"),
        "L'eau des fleuves coulait vers les mers et les océans",
        "Вода замерзает, когда становится холодно, а реки текут к морям",
        "서울은 대한민국의 수도이며 가령 한강이 흐른다",
        "",
        "?!",
    ]
    of_library = terms_by_library(texts, stop_words, stemmer)
    # Porter's stemmer leaves nothing of a single "s".
    expected = [[term or "s" for term in terms] for terms in of_library]
    assert [*map(term_finder(language), texts)] == expected
    assert ("the" in expected[0]) == (stop_words != "en")


def test_words_of_one_letter_or_digit_find_their_passages():
    texts = {
        "c": "vitamin c 3 deficiency",
        "d": "a deficiency of vitamin D is common in the winter",
        "r": "the language R has version 4",
        "s": "it's Bach's, don't ask: l'eau",
        "ö": "Ö ist ein Ort",
    }
    passages = [Passage(name, "", text) for name, text in texts.items()]
    queries = {"d": "vitamin D deficiency", "r": "R", "4": "4", "s": "s t l _", "ö": "ö"}
    run = bm25_run(passages, queries, 10, Bm25Settings())
    best = {query: next(iter(run.get(query, {})), None) for query in queries}
    assert best == {"d": "d", "r": "r", "4": "r", "s": None, "ö": "ö"}


def test_english_is_the_default():
    assert term_finder(Bm25Settings().language)("The houses") == ["hous"]


@pytest.mark.parametrize("language", ["english", "none", "german"])
@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("北京是首都", "北京 京是 是首 首都"),
        ("水。火！北京", "水 火 北京"),
        ("𠮷野家", "𠮷野 野家"),  # beyond the first 65,536 characters
        ("東京タワー", "東京 京タ タワ ワー"),
        ("ひらがな、カナ", "ひら らが がな カナ"),
        ("ที่นี่", "ที่นี่"),  # two characters, each with marks
        ("น้ำตก", "น้ำ ำต ตก"),
        ("ພາສາລາວ", "ພາ າສ ສາ າລ ລາ າວ"),
        ("ភាសា", "ភាសា"),
        ("မြန်မာ", "မြန် န်မာ"),
        ("བོད་ཡིག", "བོད ཡིག"),
        ("iPhone手机2023年", "iphone 手机 2023 年"),
        ("서울 물은 물", "서울 물은 물"),
        ("ﾀﾜｰ ＪＲ ガ", "タワ ワー jr ガ"),
    ],
)
def test_scripts_without_spaces_are_pairs_of_characters(language, text, terms):
    iphone = {"english": "iphon", "german": "iphon"}.get(language, "iphone")
    expected = [iphone if term == "iphone" else term for term in terms.split()]
    assert term_finder(language)(text) == expected


def test_marks_belong_to_words():
    find_terms = term_finder("none")
    text = "हिन्दी में लिखा"
    assert find_terms(text) == text.split()
    for text in ("Müller Éric", "ガラス", "서울"):
        decomposed = unicodedata.normalize("NFD", text)
        assert decomposed != text
        assert find_terms(decomposed) == find_terms(text)


def test_turkish_has_two_letters_i():
    find_terms = term_finder("turkish")
    assert find_terms("IRMAK") == find_terms("\N{LATIN SMALL LETTER DOTLESS I}rmak")
    assert find_terms("IRMAK") != find_terms("irmak")
    for language in ("turkish", "english"):
        find_terms = term_finder(language)
        assert find_terms("İzmir") == find_terms("izmir") != []


@pytest.mark.parametrize(
    ("language", "one", "other"),
    [
        ("german", "Häuser", "Haus"),
        ("arabic", "المدرسة", "مدرسة"),
        ("russian", "рекой", "реки"),
        ("spanish", "canciones", "canción"),
    ],
)
def test_endings_are_those_of_the_language(language, one, other):
    find_terms = term_finder(language)
    assert find_terms(one) == find_terms(other) != []
    assert term_finder("none")(one) != term_finder("none")(other)


def test_every_language_of_the_libraries_is_there():
    for stemmer in set(Stemmer.algorithms()) - {"porter", "dutch_porter"}:
        assert stemmer in languages()
        assert term_finder(stemmer)("a1 words") != []
    in_later_releases = ["danish"] if hasattr(bm25s.stopwords, "STOPWORDS_DANISH") else []
    for language in ("chinese", "korean", "turkish", *in_later_releases):
        (stop_word, *_) = bm25s.tokenization._infer_stopwords(language)
        assert stop_word in term_finder("none")(stop_word)
        assert term_finder(language)(stop_word) == []
    assert languages()[-1] == "none"


@pytest.mark.parametrize("language", ["japanese", "", "English", "de", "porter", "en_plus"])
def test_an_unknown_language_is_refused_with_all(language):
    with pytest.raises(UserError, match=r"expected one of arabic, .*german, .*yiddish, none$"):
        term_finder(language)


def piece_of(sentence, rng):
    """Returns four words in a row, or eight characters in a row of a script without spaces."""
    words = sentence.split()
    if len(words) < 7:
        first = rng.integers(len(sentence) - 8)
        return sentence[first : first + 8]
    first = rng.integers(len(words) - 3)
    return " ".join(words[first : first + 4])


@pytest.mark.parametrize("language", [None, "english", "none"])
def test_a_text_is_found_by_a_piece_of_it(language):
    texts = [(kind, text) for kind in SENTENCES for text in sentences_of(kind)]
    assert len(texts) >= 60
    rng = np.random.default_rng(0)
    queries = {f"{i}": piece_of(text, rng) for i, (_, text) in enumerate(texts)}
    found = {}
    for kind in SENTENCES:
        # Of its own language, where there is one; its texts are among those of all languages.
        own = (kind if kind in languages() else "none") if language is None else language
        passages = [Passage(f"{i}", "", text) for i, (_, text) in enumerate(texts)]
        wanted = {f"{i}": {f"{i}": 1} for i, (each, _) in enumerate(texts) if each == kind}
        run = bm25_run(passages, {q: queries[q] for q in wanted}, 10, Bm25Settings(language=own))
        found[kind] = evaluate_run(wanted, run, ["MRR@10"])["mean"]["MRR@10"]
    assert min(found.values()) >= 0.95, found


@pytest.mark.parametrize("language", ["en", "en_plus", "porter", "dutch_porter"])
def test_a_variant_is_no_language(language):
    assert language not in languages()
    with pytest.raises(UserError, match=f"^language '{language}': expected one of arabic, "):
        term_finder(language)
