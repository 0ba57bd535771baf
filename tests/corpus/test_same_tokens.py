"""Tokens that training reads, beside those of transformers' tokenizers."""

import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, tokenization_utils_base

from cocondenser_jax.corpus.records import Document
from cocondenser_jax.corpus.same_tokens import (
    TEXTS,
    require_same_tokens,
    search_reader,
    tokens_in_training,
)
from cocondenser_jax.corpus.spans import cut_documents
from cocondenser_jax.corpus.tokenizer import load_tokenizer
from cocondenser_jax.errors import UserError
from tests.lines import whole
from tests.published_tokenizers import files_of

KINDS = (
    "WordPiece, cut and padded by its file",
    "cased WordPiece of BERT",
    "WordPiece of MPNet",
    "unigrams",
    "byte-level BPE of RoBERTa",
    "byte-level BPE of ModernBERT",
)


@pytest.fixture
def write(tmp_path):
    """Gives a function that writes a tokenizer with changes of its files."""

    def write_files(kind, **changes):
        for name, content in files_of(kind).items():
            change = changes.get(name.removesuffix(".json"), {})
            (tmp_path / name).write_text(json.dumps(content | change))
        return tmp_path

    return write_files


@pytest.mark.parametrize("prompt", ["", "query: "])
@pytest.mark.parametrize("kind", KINDS)
def test_training_reads_the_tokens_of_the_library(kind, prompt, write):
    folder = write(kind)
    library = AutoTokenizer.from_pretrained(folder)
    tokenizer = load_tokenizer(str(folder))
    expected = [library(prompt + text)["input_ids"] for text in TEXTS]
    assert tokens_in_training(tokenizer, TEXTS, prompt) == expected
    require_same_tokens(folder, tokenizer, search_reader(folder, lowers_case=False), [prompt])


@pytest.mark.parametrize("kind", KINDS)
def test_control_characters_are_no_spaces(kind, write):
    """Python's `str.split` takes them for white space, and no tokenizer does."""
    folder = write(kind)
    text = "the tab\x0bpage\x0cbreak  and unit\x1cnext\x1fone of a\x85line, then more of it"
    expected = AutoTokenizer.from_pretrained(folder)(text.replace("  ", " "))["input_ids"]
    for document in (Document("", text), Document("", text, (text,))):
        ((span,),) = cut_documents([document], load_tokenizer(str(folder)), max_length=512)
        assert expected[1:-1] == span.tokens.tolist()


def test_a_search_that_cuts_long_texts_is_found(write):
    """As a limit does that only one of its files has."""
    folder = write("WordPiece")
    tokenizer, read = load_tokenizer(str(folder)), search_reader(folder, lowers_case=False)
    longest = 512

    def cut(text):
        ids = read(text)
        return ids if len(ids) <= longest else [*ids[: longest - 1], ids[-1]]

    require_same_tokens(folder, tokenizer, cut, [""], longest)
    with pytest.raises(
        UserError,
        match=whole(
            "TMP reads 'The 0 old Rivers The 1 old Rivers The 2 ' as ['river', '##s', "
            "'the', '[SEP]'], but its tokenizer.json as ['river', '##s', 'the', "
            "'[UNK]', 'old', 'river', '##s', 'the']: training would see other tokens "
            "than the search (is do_lower_case said in another file only?)"
        ),
    ):
        require_same_tokens(folder, tokenizer, cut, [""])


def test_tokens_behind_every_prompt_are_compared(write):
    folder = write("WordPiece")
    tokenizer, read = load_tokenizer(str(folder)), search_reader(folder, lowers_case=False)
    prompts = ["", "query: ", "passage: "]
    require_same_tokens(folder, tokenizer, read, prompts)
    for prompt in prompts[1:]:

        def without(text, prompt=prompt):
            return read(text.removeprefix(prompt))

        with pytest.raises(UserError, match=f"reads '{prompt}A Bad Café' as "):
            require_same_tokens(folder, tokenizer, without, prompts)


def test_texts_are_cut_where_the_search_cuts_them(write):
    folder = write("WordPiece")
    tokenizer, library = load_tokenizer(str(folder)), AutoTokenizer.from_pretrained(folder)

    def search(length, **options):
        return lambda text: library(text, truncation=True, max_length=length, **options)[
            "input_ids"
        ]

    require_same_tokens(folder, tokenizer, search(12), [""], 12)
    with pytest.raises(
        UserError,
        match=whole(
            "TMP reads 'ÉCOLE naïve Ångström' as ['##a', '##i', '##v', '[SEP]'], but "
            "its tokenizer.json as ['##a', '##i', '##v', '##e', '[SEP]']: training "
            "would see other tokens than the search (is do_lower_case said in another "
            "file only?)"
        ),
    ):
        require_same_tokens(folder, tokenizer, search(11), [""], 12)
    library.truncation_side = "left"
    with pytest.raises(
        UserError,
        match=whole(
            "TMP reads 'ÉCOLE naïve Ångström' as ['[CLS]', '##v', '##e', 'a', '##n', "
            "'##g'], but its tokenizer.json as ['[CLS]', 'e', '##c', '##o', '##l', "
            "'##e']: training would see other tokens than the search (is do_lower_case "
            "said in another file only?)"
        ),
    ):
        require_same_tokens(folder, tokenizer, search(12), [""], 12)


def test_capitals_that_another_file_lowers_are_found(write):
    folder = write("cased WordPiece of BERT")
    tokenizer = load_tokenizer(str(folder))
    require_same_tokens(folder, tokenizer, search_reader(folder, lowers_case=False), [""])
    with pytest.raises(
        UserError,
        match=whole(
            "TMP reads 'A Bad Café' as ['[CLS]', 'a', 'b', '##a', '##d', 'café'], but "
            "its tokenizer.json as ['[CLS]', 'A', '[UNK]', 'C', '##a', '##f']: "
            "training would see other tokens than the search (is do_lower_case said in "
            "another file only?)"
        ),
    ):
        require_same_tokens(folder, tokenizer, search_reader(folder, lowers_case=True), [""])


def test_a_tokenizer_that_is_made_anew_is_compared_as_it_is_made(write):
    folder = write("WordPiece", tokenizer_config={"do_lower_case": False})
    with pytest.raises(
        UserError,
        match=whole(
            "TMP reads 'A Bad Café' as ['[CLS]', '[UNK]', '[UNK]', '[UNK]', '[SEP]'], "
            "but its tokenizer.json as ['[CLS]', 'a', 'b', '##a', '##d', 'cafe']: "
            "training would see other tokens than the search (is do_lower_case said in "
            "another file only?)"
        ),
    ):
        require_same_tokens(
            folder, load_tokenizer(str(folder)), search_reader(folder, lowers_case=False), [""]
        )
    with pytest.raises(
        UserError,
        match=whole(
            "TMP/nothing holds no tokenizer that loads: Repo id must be in the form "
            "'repo_name' or 'namespace/repo_name': 'TMP/nothing'. Use `repo_type` "
            "argument if needed."
        ),
    ):
        search_reader(folder / "nothing", lowers_case=False)


@pytest.mark.parametrize(
    "character", "\u2019\u201c\u201d\u2013\u2026\u2022\u00ad\u200b\ufb01\u00bd\u2460\u00df"
)
def test_a_character_that_only_one_of_both_replaces_is_found(write, character):
    """transformers makes the tokenizer of XLM-R anew, with the rules of SentencePiece alone."""
    folder = write("unigrams")
    theirs = search_reader(folder, lowers_case=False)
    content = json.loads((folder / "tokenizer.json").read_text())
    replaced = {"type": "Replace", "pattern": {"String": character}, "content": "a"}
    content["normalizer"] = {
        "type": "Sequence",
        "normalizers": [replaced, *([content["normalizer"]] if content["normalizer"] else [])],
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="training would see other tokens than the search"):
        require_same_tokens(folder, load_tokenizer(str(folder)), theirs, [""])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"truncation_side": "left"}, "TMP: truncation_side is 'left'; expected 'right'"),
        ({"padding_side": "left"}, "TMP: padding_side is 'left'; expected 'right'"),
    ],
)
def test_a_side_that_no_converted_model_has_is_refused(write, settings, said):
    folder = write("WordPiece", tokenizer_config=settings)
    with pytest.raises(UserError, match=whole(said)):
        search_reader(folder, lowers_case=False)


def test_token_types_are_refused(write):
    folder = write("WordPiece", tokenizer_config={"tokenizer_class": "PreTrainedTokenizerFast"})
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    special = {
        name: {"id": name, "ids": [token["id"]], "tokens": [name]}
        for token in content["added_tokens"]
        if (name := token["content"]) in ("[CLS]", "[SEP]")
    }
    for type_id in (0, 1):
        parts = [
            {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": type_id}},
            {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
        ]
        template = {"type": "TemplateProcessing", "single": parts, "pair": parts}
        content["post_processor"] = template | {"special_tokens": special}
        file.write_text(json.dumps(content))
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        settings["model_input_names"] = ["input_ids", "token_type_ids"]
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        read = search_reader(folder, lowers_case=False)
        if not type_id:
            assert len(read("a")) > 2
            continue
        with pytest.raises(
            UserError, match=whole("TMP reads texts with token types; expected 0 for each token")
        ):
            read("a")


@pytest.mark.parametrize("longest", [20, 99, 101])
def test_another_length_of_unknown_words_is_found(write, longest):
    """transformers makes WordPiece anew, with 100."""
    folder = write("cased WordPiece of BERT")
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["max_input_chars_per_word"] = longest
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="training would see other tokens than the search"):
        require_same_tokens(
            folder, load_tokenizer(str(folder)), search_reader(folder, lowers_case=False), [""]
        )


def test_unknown_bytes_stay_where_a_first_word_is_read_again(write):
    """They spell nothing that could be read once more: "<unk>" would be five letters."""
    content = files_of("byte-level BPE of RoBERTa")["tokenizer.json"]
    special = {each["content"]: each["id"] for each in content["added_tokens"]}
    letters = {letter: len(special) + n for n, letter in enumerate("Ġabuknx<>")}
    small = Tokenizer(models.BPE(special | letters, [], unk_token="<unk>"))
    small.pre_tokenizer = pre_tokenizers.ByteLevel()
    model = json.loads(small.to_str())["model"]
    tokenizer = load_tokenizer(str(write("byte-level BPE of RoBERTa", tokenizer={"model": model})))
    ids = tokens_in_training(tokenizer, ["éa b"], prompt="")[0]
    assert ids == tokenizer.backend.encode("éa b").ids
    assert ids.count(special["<unk>"]) >= 1


def test_a_text_longer_than_the_model_is_read_without_a_warning(write, monkeypatch):
    """The library's says that running it "will result in indexing errors": nothing runs it."""
    said = []
    monkeypatch.setattr(
        tokenization_utils_base.logger, "warning", lambda *words: said.append(words)
    )
    read = search_reader(
        write("cased WordPiece of BERT", tokenizer_config={"model_max_length": 4}),
        lowers_case=False,
    )
    assert len(read("one two three four five six")) > 4
    assert said == []
