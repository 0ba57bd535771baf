"""Prompts before texts, against the tokens of prompt and text joined."""

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from cocondenser_jax.backbones import BACKBONES
from cocondenser_jax.corpus.batches import BatchSpec, held_out_batch, make_batch, require_room
from cocondenser_jax.corpus.build import build_store
from cocondenser_jax.corpus.examples import EXAMPLES
from cocondenser_jax.corpus.prompts import count_tokens, put_before
from cocondenser_jax.corpus.spans import STARTS_PROMPT, STARTS_SENTENCE
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.corpus.token_files import Texts
from cocondenser_jax.corpus.tokenizer import span_tokenizer
from cocondenser_jax.corpus.words import tokenize_words
from cocondenser_jax.errors import UserError
from tests.lines import whole
from tests.world import write_records

L = 400
PROMPTS = ["query: ", "query:", "query", "Instruct: find\nQuery:", "Instruct: find\n", "(", "12 "]
PROMPTS += [" after a space: ", "search_document: ", "検索"]
STRINGS = [
    "the default value isn't, of course, None.",
    '"quoted" words (in brackets) at 3.5 degrees',
    "able",
    "12 more arguments",
    "- an item",
]


def read(tokenizer, strings, space=""):
    """Texts with the tokens of strings by themselves, or of strings after a space."""
    texts = Texts(
        ids_NxL=np.zeros((len(strings), L), np.int32),
        starts_NxL=np.zeros((len(strings), L), np.uint8),
        n_tokens_N=np.zeros(len(strings), np.int32),
    )
    for n, string in enumerate(strings):
        words = string.split(" ")
        ids, starts = zip(*tokenize_words(tokenizer.backend, words, space), strict=True)
        ids = np.frombuffer(b"".join(ids), np.uint32)
        texts.ids_NxL[n, : len(ids)] = ids
        texts.starts_NxL[n, : len(ids)] = np.frombuffer(b"".join(starts), np.uint8)
        texts.starts_NxL[n, 0] = STARTS_SENTENCE
        texts.n_tokens_N[n] = len(ids)
    return texts


def ids_of(tokenizer, string):
    return tokenizer.backend.encode(string, add_special_tokens=False).ids


@pytest.mark.parametrize("space", ["", " "])
@pytest.mark.parametrize("prompt", [*PROMPTS, ""])
def test_tokens_are_those_of_prompt_and_text_joined(tokenizer, prompt, space):
    """Whether the texts began a span, or followed a space within one."""
    joined = put_before(prompt, read(tokenizer, STRINGS, space), tokenizer)
    # A byte-level tokenizer reads a space with the word, and a line break by itself.
    of_word = " " if tokenizer.is_byte_level and prompt.endswith(" ") else ""
    alone = read(tokenizer, STRINGS, of_word)
    n_prompt = len(ids_of(tokenizer, prompt.removesuffix(" ")))
    separates = prompt[-1:] in ("", " ", "\n")
    for n, string in enumerate(STRINGS):
        n_tokens = joined.n_tokens_N[n]
        assert joined.ids_NxL[n, :n_tokens].tolist() == ids_of(tokenizer, prompt + string)
        assert not joined.ids_NxL[n, n_tokens:].any()
        starts = joined.starts_NxL[n, :n_tokens].tolist()
        is_prompt = [start == STARTS_PROMPT for start in starts]
        first = is_prompt.index(False)
        assert not any(is_prompt[first:])
        assert starts[first] == STARTS_SENTENCE
        if separates:
            assert first == n_prompt
            assert starts[first:] == alone.starts_NxL[n, : alone.n_tokens_N[n]].tolist()


def test_a_word_that_cannot_be_read_back_stays_as_it_is(tokenizer):
    """An unknown one, and one that a span cut short."""
    texts = read(tokenizer, ["the words"])
    unknown = tokenizer.special_ids[-1]
    texts.ids_NxL[0, 0] = unknown
    joined = put_before("query", texts, tokenizer)
    prompt = ids_of(tokenizer, "query")
    n_tokens = int(texts.n_tokens_N[0])
    found = joined.ids_NxL[0, : joined.n_tokens_N[0]].tolist()
    assert found == [*prompt, *texts.ids_NxL[0, :n_tokens].tolist()]
    assert joined.starts_NxL[0, len(prompt)] == STARTS_SENTENCE


def test_a_word_that_was_cut_within_a_character_stays_as_it_is(tokenizers):
    """Its bytes spell another character, whose tokens are others."""
    (byte_level,) = [each for each in tokenizers.values() if each.kind == "roberta"]
    texts = read(byte_level, ["検"])
    (whole,) = texts.n_tokens_N
    assert whole > 1
    texts.n_tokens_N[0] = whole - 1
    texts.ids_NxL[0, whole - 1] = 0
    joined = put_before("query", texts, byte_level)
    prompt = ids_of(byte_level, "query")
    found = joined.ids_NxL[0, : joined.n_tokens_N[0]].tolist()
    assert found == [*prompt, *texts.ids_NxL[0, : whole - 1].tolist()]


def test_a_text_within_another_is_known_by_its_first_token(tokenizers):
    """Its last one here follows a space."""
    unigrams = tokenizers["xlm-roberta"]
    ids = ids_of(unigrams, "集検索 the")[len(ids_of(unigrams, "集")) :]
    texts = Texts(np.array([ids]), np.array([[1, 0, 1]], np.uint8), np.array([3]))
    joined = put_before("", texts, unigrams)
    assert joined.ids_NxL[0, :2].tolist() == ids_of(unigrams, "検索 the")[:2] != ids[:2]


def test_what_does_not_fit_is_cut_after_a_whole_word(tokenizer):
    texts = read(tokenizer, [" ".join(["value"] * 100), "v" * 90])
    texts = Texts(*(x[:, :30] if x.ndim == 2 else np.minimum(x, 30) for x in texts))
    joined = put_before("the query: ", texts, tokenizer)
    n_prompt = count_tokens("the query:", tokenizer)
    n_word = len(ids_of(tokenizer, "a value")) - len(ids_of(tokenizer, "a"))
    assert joined.ids_NxL.shape == (2, 30)
    assert joined.n_tokens_N[0] == n_prompt + (30 - n_prompt) // n_word * n_word
    expected = ids_of(tokenizer, "the query: " + " ".join(["value"] * 100))
    assert joined.ids_NxL[0, : joined.n_tokens_N[0]].tolist() == expected[: joined.n_tokens_N[0]]
    assert joined.n_tokens_N[1] == 30  # a single word: cut within
    assert (joined.starts_NxL[1] == STARTS_PROMPT).sum() == n_prompt


@pytest.fixture(scope="module")
def store(tmp_path_factory, wordpiece_folder):
    folder = tmp_path_factory.mktemp("prompts")
    rng = np.random.default_rng(0)
    words = "default value argument option parser string file name".split()
    texts = [{"spans": [" ".join(rng.choice(words, 30)) for _ in range(3)]} for _ in range(40)]
    source = write_records(folder / "texts.jsonl", texts)
    build_store(str(source), str(wordpiece_folder), folder / "store", max_length=32)
    return open_store(folder / "store")


SPEC = BatchSpec(seed=3, batch_size=8, length=32, held_out=4)
WITH = {"query_prompt": "option: ", "passage_prompt": "the file value "}


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_first_of_a_pair_is_a_query_and_all_others_are_passages(store, example):
    spec = SPEC._replace(example=example, masked=False, decoder_mask_probability=0.0)
    plain, prompted = make_batch(store, spec, 2), make_batch(store, spec._replace(**WITH), 2)
    np.testing.assert_array_equal(plain.origins_Sx2, prompted.origins_Sx2)
    n_rows = EXAMPLES[example].n_rows
    for row in range(spec.n_rows):
        is_query = n_rows == 2 and row % 2 == 0 and example != "copies"
        prompt = ids_of(store.tokenizer, WITH["query_prompt" if is_query else "passage_prompt"])
        n_tokens = int(prompted.attention_mask_SxL[row].sum())
        ids = prompted.input_ids_SxL[row, :n_tokens].tolist()
        before = plain.input_ids_SxL[row, : plain.attention_mask_SxL[row].sum()].tolist()
        assert ids[1 : len(prompt) + 1] == prompt
        text = ids[len(prompt) + 1 : -1]
        assert text == before[1 : len(text) + 1]
        assert len(text) == len(before) - 2 or 32 - n_tokens < 3  # else a word would still fit
        assert (ids[0], ids[-1]) == (store.cls_id, store.sep_id)


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_length_of_a_prompt_is_what_the_library_leaves_out(store, example):
    """Of a prompt that is not pooled, sentence-transformers leaves out all tokens but [SEP]."""
    read = PreTrainedTokenizerFast(tokenizer_file=str(store.tokenizer_folder / "tokenizer.json"))
    query, passage = (len(read(prompt)["input_ids"]) - 1 for prompt in WITH.values())
    assert query != passage > 2
    assert not make_batch(store, SPEC._replace(example=example), 2).prompt_lengths_S.any()
    batch = make_batch(store, SPEC._replace(example=example, **WITH), 2)
    n_rows = EXAMPLES[example].n_rows
    for row, length in enumerate(batch.prompt_lengths_S):
        is_query = n_rows == 2 and row % 2 == 0 and example != "copies"
        assert length == (query if is_query else passage)


@pytest.mark.parametrize("example", ["span", "sentence", "copies"])
def test_prompts_are_never_masked_and_count_for_no_budget(store, example):
    spec = SPEC._replace(example=example, batch_size=12, **WITH)
    n_prompts = {
        2: count_tokens("option:", store.tokenizer),
        1: count_tokens("the file value", store.tokenizer),
    }
    n_masked = n_tokens = 0
    for step in range(100):
        batch = make_batch(store, spec, step)
        for row in range(spec.n_rows):
            is_query = example == "sentence" and row % 2 == 0
            n_prompt = n_prompts[2 if is_query else 1]
            used = batch.weights_SxM[row] > 0
            assert (batch.masked_positions_SxM[row][used] > n_prompt).all()
            if example != "copies":
                n_masked += used.sum()
                n_tokens += batch.attention_mask_SxL[row].sum() - 2 - n_prompt
    if n_tokens:
        assert n_masked / n_tokens == pytest.approx(0.15, abs=0.01)


def test_a_batch_with_prompts_is_the_same_on_every_host(store):
    spec = SPEC._replace(example="crops", **WITH)
    whole = make_batch(store, spec, 5)
    parts = [make_batch(store, spec, 5, host=host, n_hosts=2) for host in range(2)]
    for name, array in whole._asdict().items():
        np.testing.assert_array_equal(array, np.concatenate([getattr(p, name) for p in parts]))


def test_held_out_pairs_have_prompts(store):
    spec = SPEC._replace(example="crops", **WITH)
    ids_SxL = held_out_batch(store, spec._replace(masked=False)).input_ids_SxL
    assert len(ids_SxL) == 8
    for row, ids in enumerate(ids_SxL):
        prompt = ids_of(store.tokenizer, [*WITH.values()][row % 2])
        assert ids[1 : len(prompt) + 1].tolist() == prompt


@pytest.mark.parametrize("example", EXAMPLES)
def test_queries_and_passages_are_cut_to_their_own_lengths(store, example):
    """To whole words, as if the text had ended there; a limit beyond the row changes nothing."""
    spec = SPEC._replace(example=example, masked=False, decoder_mask_probability=0.0, **WITH)
    limits = {"query_length": 9, "passage_length": 20}
    whole, cut = make_batch(store, spec, 2), make_batch(store, spec._replace(**limits), 2)
    np.testing.assert_array_equal(whole.origins_Sx2, cut.origins_Sx2)
    n_rows = EXAMPLES[example].n_rows
    longest = {9: 0, 20: 0}
    for row in range(spec.n_rows):
        limit = 9 if n_rows == 2 and row % 2 == 0 and example != "copies" else 20
        n_tokens = int(cut.attention_mask_SxL[row].sum())
        ids = cut.input_ids_SxL[row, :n_tokens].tolist()
        before = whole.input_ids_SxL[row, : whole.attention_mask_SxL[row].sum()].tolist()
        assert n_tokens <= limit
        assert ids[:-1] == before[: n_tokens - 1]
        assert ids[-1] == before[-1]  # [SEP]
        assert len(before) == n_tokens or n_tokens > limit - 3  # else a word would still fit
        assert not cut.attention_mask_SxL[row, n_tokens:].any()
        longest[limit] = max(longest[limit], n_tokens)
    assert longest[20] > 17
    beyond = spec._replace(query_length=99, passage_length=32)
    assert [each.length for each in beyond.pair_specs] == [32, 32]
    beyond = make_batch(store, beyond, 2)
    for name, array in whole._asdict().items():
        np.testing.assert_array_equal(array, getattr(beyond, name), err_msg=name)


def test_a_limit_that_leaves_no_room_is_refused(store):
    spec = SPEC._replace(example="crops", **WITH, query_length=4)
    require_room(spec._replace(query_length=5), store.tokenizer)
    said = (
        "the model reads 4 tokens of a text, its prompt 'option: ' included, which "
        "has 2; expected 5 or more"
    )
    with pytest.raises(UserError, match=whole(said)):
        require_room(spec, store.tokenizer)


def test_a_prompt_that_leaves_no_room_is_refused(store):
    spec = SPEC._replace(passage_prompt="file " * 22)
    require_room(spec, store.tokenizer)
    said = (
        "config.data.length 31 is too short for the model's prompt 'file file file "
        "file file file file file file file file file file file file file file "
        "file file file file file ', of 22 tokens; expected 32 or more"
    )
    with pytest.raises(UserError, match=whole(said)):
        require_room(spec._replace(length=31), store.tokenizer)


def test_kinds_of_tokenizers_are_covered(tokenizers):
    kinds = {BACKBONES[each.kind].tokenizer for each in tokenizers.values()}
    assert kinds == {"wordpiece", "byte-level", "unigram"}


def test_the_first_word_of_text_without_spaces_ends_at_a_space():
    """Each of its tokens is a word, but the tokenizer reads them together."""
    scores = {"<s>": 0, "<pad>": 0, "</s>": 0, "<unk>": 0, "<mask>": 0, "\u2581": -2, "\u2581p": -1}
    scores |= {"a": -3, "\u2581a": -1, "北京": -2, "大学": -2, "\u2581北京大": -0.5, "学": -1}
    backend = Tokenizer(models.Unigram([(piece, float(x)) for piece, x in scores.items()], 3))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer = span_tokenizer(backend, "unigrams")
    ids = [backend.token_to_id(piece) for piece in ("北京", "大学")]
    texts = Texts(
        np.array([[*ids, 0, 0]], np.int32),
        np.array([[1, 1, 0, 0]], np.uint8),
        np.array([2], np.int32),
    )
    for prompt in ("", "p "):
        joined = put_before(prompt, texts, tokenizer)
        expected = backend.encode(f"{prompt}北京大学", add_special_tokens=False)
        assert "\u2581北京大" in expected.tokens
        assert joined.ids_NxL[0, : joined.n_tokens_N[0]].tolist() == expected.ids
