import json
import os
import shutil
import subprocess
import sys
from collections import Counter

import pytest
from tokenizers import AddedToken, ByteLevelBPETokenizer, Tokenizer, models
from transformers import AutoTokenizer, BertTokenizer, RobertaTokenizer

from cocondenser_jax.corpus import tokenizer as tokenizer_module
from cocondenser_jax.corpus.spans import spans_of_texts
from cocondenser_jax.corpus.tokenizer import (
    load_tokenizer,
    save_tokenizer,
    span_tokenizer,
    special_strings,
    train_tokenizer,
)
from cocondenser_jax.errors import UserError
from tests.lines import whole

TEXTS = [
    "The Parser's arguments aren't parsed twice: see `add_argument` (v2.0).",
    "  Naïve café, Ångström ÉCOLE — “quotes” … 3.14% of 1,000,000\ttabs\n\nand lines ",
    "漢字かな交じり文。Привет мир! 👩‍🚀 emoji and \u200b zero width",
    "",
    "x" * 150,
]


def assert_same_ids(tokenizer, reference):
    assert len(set(TEXTS)) == len(TEXTS)
    for text in TEXTS:
        assert tokenizer.backend.encode(text).ids == reference(text)["input_ids"]
    pair = tokenizer.backend.encode(TEXTS[0], TEXTS[1])
    assert pair.ids == reference(TEXTS[0], TEXTS[1])["input_ids"]


def test_vocab_txt_gives_the_ids_of_transformers(wordpiece_folder):
    tokenizer = load_tokenizer(str(wordpiece_folder))
    assert tokenizer.kind == "bert"
    assert_same_ids(tokenizer, BertTokenizer.from_pretrained(wordpiece_folder))


def test_vocab_json_and_merges_give_the_ids_of_transformers(byte_level_folder, tmp_path):
    odd = shutil.copytree(byte_level_folder, tmp_path / "a [b] é🙂")
    tokenizer = load_tokenizer(str(odd))
    assert tokenizer.kind == "roberta"
    save_tokenizer(tokenizer, odd)
    (odd / "vocab.json").unlink()
    tokenizer = load_tokenizer(str(odd))
    assert tokenizer.kind == "roberta"
    assert_same_ids(tokenizer, RobertaTokenizer.from_pretrained(byte_level_folder))


@pytest.mark.parametrize("rule", ["do_lower_case", "strip_accents", "tokenize_chinese_chars"])
def test_the_config_beside_the_vocabulary_decides(wordpiece_folder, tmp_path, rule):
    shutil.copytree(wordpiece_folder, tmp_path, dirs_exist_ok=True)
    default = load_tokenizer(str(tmp_path)).backend.encode("".join(TEXTS)).ids
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({rule: False}))
    tokenizer = load_tokenizer(str(tmp_path))
    assert_same_ids(tokenizer, BertTokenizer.from_pretrained(tmp_path, **{rule: False}))
    saved = tmp_path / "saved"
    saved.mkdir()
    save_tokenizer(tokenizer, saved)
    assert_same_ids(tokenizer, AutoTokenizer.from_pretrained(saved))
    assert tokenizer.backend.encode("".join(TEXTS)).ids != default


def test_transformers_loads_what_was_saved(tokenizer, tmp_path):
    save_tokenizer(tokenizer, tmp_path, model_max_length=77)
    reference = AutoTokenizer.from_pretrained(tmp_path)
    assert reference.is_fast
    classes = {"bert": "BertTokenizer", "roberta": "RobertaTokenizer", "mpnet": "MPNetTokenizer"}
    assert type(reference).__name__ == classes.get(tokenizer.kind, "TokenizersBackend")
    assert reference.model_max_length == 77
    assert_same_ids(tokenizer, reference)
    for role in ("cls", "sep", "pad", "mask"):
        assert getattr(reference, f"{role}_token_id") == getattr(tokenizer, f"{role}_id")
    numbers = set(reference.get_vocab().values())  # without those of a piece that is listed twice
    assert sorted(reference.all_special_ids) == sorted(numbers.intersection(tokenizer.special_ids))
    padded = reference(["a long text", "short"], padding=True)["input_ids"]
    assert padded[1][-1] == tokenizer.pad_id


def test_the_checksum_survives_saving_by_us_and_by_transformers(tokenizer, tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    save_tokenizer(tokenizer, ours)
    AutoTokenizer.from_pretrained(ours).save_pretrained(theirs)
    assert load_tokenizer(str(ours)).sha256 == tokenizer.sha256
    assert load_tokenizer(str(theirs)).sha256 == tokenizer.sha256


def test_another_entry_or_rule_changes_the_checksum(wordpiece_folder, tmp_path):
    shutil.copytree(wordpiece_folder, tmp_path, dirs_exist_ok=True)
    checksums = {load_tokenizer(str(tmp_path)).sha256}
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    checksums.add(load_tokenizer(str(tmp_path)).sha256)
    lines = (tmp_path / "vocab.txt").read_text().splitlines()
    lines[-1], lines[-2] = lines[-2], lines[-1]
    (tmp_path / "vocab.txt").write_text("\n".join(lines))
    checksums.add(load_tokenizer(str(tmp_path)).sha256)
    assert len(checksums) == 3


def test_another_merge_or_space_changes_the_checksum_and_is_saved(byte_level_folder, tmp_path):
    state = json.loads(load_tokenizer(str(byte_level_folder)).backend.to_str())
    checksums = {span_tokenizer(Tokenizer.from_str(json.dumps(state)), "as it was").sha256}
    merges = state["model"]["merges"]
    merges[-2:] = merges[:-3:-1]
    checksums.add(span_tokenizer(Tokenizer.from_str(json.dumps(state)), "merged").sha256)
    state["pre_tokenizer"]["add_prefix_space"] = True
    tokenizer = span_tokenizer(Tokenizer.from_str(json.dumps(state)), "after a space")
    assert len(checksums | {tokenizer.sha256}) == 3
    save_tokenizer(tokenizer, tmp_path)
    assert_same_ids(tokenizer, AutoTokenizer.from_pretrained(tmp_path))


def test_an_error_in_the_last_bit_of_a_score_changes_no_checksum(unigrams):
    state = json.loads(unigrams.backend.to_str())
    pieces = state["model"]["vocab"]

    def checksum(change):
        state["model"]["vocab"] = [[piece, score + change] for piece, score in pieces]
        return span_tokenizer(Tokenizer.from_str(json.dumps(state)), "changed").sha256

    assert checksum(1e-9) == checksum(0) != checksum(1e-3)


def test_truncation_and_padding_of_a_published_file_are_switched_off(tokenizer, tmp_path):
    published = Tokenizer.from_str(tokenizer.backend.to_str())
    published.enable_truncation(8)
    published.enable_padding(length=8)
    published.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(str(tmp_path))
    assert loaded.sha256 == tokenizer.sha256
    text = "one two three four five six seven eight nine ten"
    assert loaded.backend.encode(text).ids == tokenizer.backend.encode(text).ids


def test_a_special_token_spelt_in_a_text_is_text(tokenizer):
    text = "[CLS] [SEP] [PAD] [MASK] <s> </s> <pad> <mask>"
    encoding = tokenizer.backend.encode(text, add_special_tokens=False)
    unknown = tokenizer.backend.token_to_id("[UNK]")
    assert not set(encoding.ids) & (set(tokenizer.special_ids) - {unknown})


def test_added_tokens_of_several_words_are_refused(wordpiece_folder, tmp_path):
    """The model in use reads them; words are tokenized one by one here."""
    library = AutoTokenizer.from_pretrained(wordpiece_folder)
    library.add_tokens(["riverstone", "   "])
    library.add_tokens(["[EXTRA]"], special_tokens=True)
    library.save_pretrained(tmp_path)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[EXTRA]"]
    ids = library.convert_tokens_to_ids(special)
    assert load_tokenizer(str(tmp_path)).special_ids == tuple(ids)
    library.add_tokens(["river stone"])
    library.save_pretrained(tmp_path)
    assert "river stone" in library.tokenize("a river stone")
    with pytest.raises(
        UserError,
        match=whole(
            "tokenizer TMP has added tokens that hold or take spaces, such as 'river stone': "
            "texts are tokenized word by word here, so they would not be read as the "
            "model reads them"
        ),
    ):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize("is_special", [False, True])
def test_an_added_token_that_takes_the_next_words_space_is_refused(byte_level_folder, is_special):
    """Words have no space of their own in WordPiece; special tokens are text in training."""
    backend = load_tokenizer(str(byte_level_folder)).backend
    backend = Tokenizer.from_str(backend.to_str())
    backend.add_tokens([AddedToken("seabridge", rstrip=True, special=is_special)])
    if is_special:
        span_tokenizer(backend, "mine")
        return
    with pytest.raises(
        UserError, match=whole("tokenizer mine has added tokens that hold or take spaces…")
    ):
        span_tokenizer(backend, "mine")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("added_tokens.json", {"rivermarket": 99}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"99": {"content": "rivermarket"}}}),
        ("tokenizer_config.json", {"additional_special_tokens": ["rivermarket"]}),
        ("special_tokens_map.json", {"additional_special_tokens": [{"content": "rivermarket"}]}),
        ("tokenizer_config.json", {"extra_special_tokens": ["rivermarket"]}),
        ("tokenizer_config.json", {"extra_special_tokens": {"a_token": "rivermarket"}}),
        ("tokenizer_config.json", {"bos_token": {"content": "rivermarket"}}),
        ("special_tokens_map.json", {"mask_token": "rivermarket"}),
    ],
)
def test_a_token_that_another_file_adds_is_not_overlooked(
    wordpiece_folder, tmp_path, name, content
):
    """transformers reads it in every text."""
    shutil.copytree(wordpiece_folder, tmp_path / "model")
    AutoTokenizer.from_pretrained(wordpiece_folder).save_pretrained(tmp_path / "model")
    load_tokenizer(str(tmp_path / "model"))
    file = tmp_path / "model" / name
    before = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(before | content))
    said = "TMP/model: tokenizer.json lacks rivermarket, which other files add, so that…"
    with pytest.raises(UserError, match=whole(said)):
        load_tokenizer(str(tmp_path / "model"))


def test_a_model_in_use_reads_special_tokens_in_a_text(composed_bytes):
    """Not the other tokens that were added: runs of spaces here."""
    assert special_strings(composed_bytes) == ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]


def test_numbers_that_are_no_entry_stand_for_no_text(wordpiece_folder):
    state = json.loads(load_tokenizer(str(wordpiece_folder)).backend.to_str())
    entries = state["model"]["vocab"]
    moved = {entry: number + 3 * (number >= 40) for entry, number in entries.items()}
    state["model"]["vocab"] = moved
    tokenizer = span_tokenizer(Tokenizer.from_str(json.dumps(state)), "with a gap")
    assert tokenizer.vocab_size == len(entries) + 3
    assert tokenizer.special_ids == (0, 1, 2, 3, 4, 40, 41, 42)


def test_training_is_deterministic_and_numbers_the_special_tokens_first(
    paragraphs,
):
    first, *others = (train_tokenizer(iter(paragraphs), 500) for _ in range(4))
    assert [other.sha256 for other in others] == [first.sha256] * 3
    assert first.vocab_size == 500
    assert [first.backend.id_to_token(i) for i in range(5)] == [
        "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]",
    ]  # fmt: skip
    assert first.special_ids == (0, 1, 2, 3, 4)
    encoding = first.backend.encode("PARSER")
    assert (encoding.tokens[0], encoding.tokens[-1]) == ("[CLS]", "[SEP]")
    assert encoding.ids == first.backend.encode("parser").ids
    assert max(first.backend.get_vocab().values()) == 499


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_a_vocabulary_is_the_same_whatever_the_number_of_threads(kind, paragraphs, tmp_path):
    # Words of equal counts: with ties, an order that depends on threads shows.
    words = sorted({word for text in paragraphs for word in text.split()})
    (tmp_path / "texts.txt").write_text("\n".join(words * 20))
    program = (
        "import sys; from cocondenser_jax.corpus.tokenizer import train_tokenizer as train;"
        "print(train(open(sys.argv[1], encoding='utf-8'), 600, sys.argv[2]).sha256)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "texts.txt"), kind]
    found = [
        subprocess.run(command, env={**os.environ, **variables}, capture_output=True, check=True)
        for variables in (
            {"TOKENIZERS_PARALLELISM": "false"},
            {"TOKENIZERS_PARALLELISM": "true", "RAYON_NUM_THREADS": "2"},
            {"TOKENIZERS_PARALLELISM": "true", "RAYON_NUM_THREADS": "5"},
        )
    ]
    assert len({run.stdout for run in found}) == 1


def test_the_vocabulary_of_mpnet_is_that_of_bert_with_other_special_tokens(paragraphs):
    bert, mpnet = (train_tokenizer(paragraphs, 500, kind) for kind in ("bert", "mpnet"))
    assert mpnet.kind == "mpnet"
    assert mpnet.pad_id == 1
    special = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]
    assert [mpnet.backend.id_to_token(i) for i in range(5)] == special
    entries = mpnet.backend.get_vocab().items()
    others = {entry: number for entry, number in bert.backend.get_vocab().items() if number > 4}
    assert {entry: number for entry, number in entries if number > 4} == others
    first, *inner, last = mpnet.backend.encode(TEXTS[0]).ids
    assert (first, last) == (0, 2)
    assert len(inner) > 9
    assert inner == bert.backend.encode(TEXTS[0], add_special_tokens=False).ids


def test_byte_level_training_is_the_librarys_own(paragraphs, byte_level_folder):
    texts = [" " + " ".join(text.split()) for text in paragraphs]
    reference = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    reference.train_from_iterator(texts, 700, min_frequency=0, special_tokens=special)
    found = train_tokenizer(paragraphs, 700, "roberta")
    assert found.backend.get_vocab() == reference.get_vocab()
    assert (found.kind, found.vocab_size, found.special_ids) == ("roberta", 700, (0, 1, 2, 3, 4))
    assert_same_ids(found, lambda *texts: {"input_ids": _roberta_ids(reference, *texts)})


def _roberta_ids(reference, *texts):
    """RoBERTa's <s> A </s> or <s> A </s></s> B </s>."""
    first, *second = (reference.encode(text).ids for text in texts)
    return [0, *first, 2, *(i for ids in second for i in (2, *ids, 2))]


def test_a_vocabulary_is_cased_where_asked(paragraphs):
    cased = train_tokenizer(paragraphs, 500, lowercase=False).backend
    assert cased.encode("Parser").ids != cased.encode("parser").ids
    with pytest.raises(
        UserError, match=whole("a vocabulary of 260 entries: roberta needs at least 261")
    ):
        train_tokenizer(paragraphs, 260, "roberta")
    assert train_tokenizer(paragraphs, 261, "roberta").vocab_size == 261
    with pytest.raises(
        UserError, match=whole("the texts hold no words to learn a vocabulary from")
    ):
        train_tokenizer([" ", "\n"], 100)


def test_the_most_frequent_letters_are_the_alphabet():
    counts = {letter: 30 - i for i, letter in enumerate("zyxwvutsrq")} | dict.fromkeys("cba", 3)
    text = " ".join(letter for letter, n in counts.items() for _ in range(n))
    entries = train_tokenizer([text], 48).backend.get_vocab()
    # A quarter of 48: ten, and of those that are equally frequent the first two.
    assert {entry for entry in entries if len(entry) == 1} == {*"zyxwvutsrq", "a", "b"}


def test_an_alphabet_has_a_thousand_letters():
    text = " ".join(map(chr, range(0x4E00, 0x4E00 + 1100)))
    entries = train_tokenizer([text], 8000).backend.get_vocab()
    assert len([entry for entry in entries if len(entry) == 1]) == 1000


def test_a_word_is_repeated_as_often_as_it_was_counted(monkeypatch):
    monkeypatch.setattr(tokenizer_module, "_REPEATS", 3)
    texts = [*tokenizer_module._repeated(Counter({"a": 7, "b": 3}))]
    assert texts == [" a a a", " a a a", " a", " b b b"]


def test_a_tokenizer_without_words_is_refused():
    with pytest.raises(UserError, match=whole("tokenizer empty has no vocabulary")):
        span_tokenizer(Tokenizer(models.BPE()), "empty")


def test_what_holds_no_tokenizer_is_refused(wordpiece_folder, tmp_path):
    with pytest.raises(
        UserError,
        match=whole("TMP holds no tokenizer that loads: …"),
    ):
        load_tokenizer(str(tmp_path))
    with pytest.raises(
        UserError,
        match=whole(
            "no folder TMP/vocab.txt, and no tokenizer of that name from the Hugging Face hub: …"
        ),
    ):
        load_tokenizer(str(wordpiece_folder / "vocab.txt"))
    with pytest.raises(
        UserError,
        match=whole(
            "no folder nobody/nothing, and no tokenizer of that name from the Hugging Face hub: …"
        ),
    ):
        load_tokenizer("nobody/nothing")

    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))
    with pytest.raises(UserError, match="holds no tokenizer that loads"):
        load_tokenizer(str(tmp_path))


def test_a_tokenizer_of_another_family_is_refused(wordpiece_folder, byte_level_folder, tmp_path):
    state = json.loads(load_tokenizer(str(wordpiece_folder)).backend.to_str())
    state["normalizer"] = {"type": "Lowercase"}
    said = (
        "tokenizer TMP is of another kind (WordPiece, Lowercase, "
        "BertPreTokenizer): expected one of bert, roberta, xlm-roberta, "
        "modernbert, mpnet"
    )
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    with pytest.raises(UserError, match=whole(said)):
        load_tokenizer(str(tmp_path))
    # Such as that of Qwen, by its parts.
    text = load_tokenizer(str(byte_level_folder)).backend.to_str().replace("<mask>", "<other>")
    with pytest.raises(
        UserError, match=whole("tokenizer changed has no <mask>, which roberta models need")
    ):
        span_tokenizer(Tokenizer.from_str(text), "changed")


@pytest.mark.parametrize(
    ("cutter", "is_refused"),
    [
        ([{"prepend_scheme": "always"}], False),
        ([{"prepend_scheme": "first"}], False),  # without a step that takes the spaces away
        ([{"prepend_scheme": "never"}], True),
        ([{"prepend_scheme": "always", "split": False}], True),
        (["WhitespaceSplit", {"prepend_scheme": "always"}], False),
        (["WhitespaceSplit", {"prepend_scheme": "never"}], False),
        (["WhitespaceSplit", {"prepend_scheme": "first"}], True),
    ],
)
def test_unigrams_of_a_word_that_depend_on_its_place_are_refused(unigrams, cutter, is_refused):
    """Words are looked up one by one; what is accepted has the tokenizer's own tokens."""
    steps = [
        {"type": step}
        if isinstance(step, str)
        else {"type": "Metaspace", "replacement": "▁", "split": True} | step
        for step in cutter
    ]
    state = json.loads(unigrams.backend.to_str())
    state["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    backend = Tokenizer.from_str(json.dumps(state))
    if is_refused:
        with pytest.raises(UserError, match=r"tokenizer changed reads 'a a' as .*expected a pre-"):
            span_tokenizer(backend, "changed")
        return
    text = "the list the parser"
    [span] = spans_of_texts(span_tokenizer(backend, "changed"), [text])
    assert span.tokens.tolist() == backend.encode(text, add_special_tokens=False).ids


def test_tokens_are_spelled_without_the_files_decoder(tokenizer):
    state = json.loads(tokenizer.backend.to_str()) | {"decoder": None}
    bare = span_tokenizer(Tokenizer.from_str(json.dumps(state)), "without a decoder")
    text = "the default value (in brackets)"
    ids = bare.backend.encode(text, add_special_tokens=False).ids
    assert bare.spell(ids).replace("( ", "(").replace(" )", ")") == text


def test_a_tokenizer_without_a_token_for_unknown_words_is_refused(wordpiece_folder):
    state = json.loads(load_tokenizer(str(wordpiece_folder)).backend.to_str())
    state["model"]["unk_token"] = "[NONE]"
    with pytest.raises(
        UserError, match=whole("tokenizer changed has no [NONE], which stands for unknown words")
    ):
        span_tokenizer(Tokenizer.from_str(json.dumps(state)), "changed")


def test_unigrams_of_special_tokens_alone_make_unknown_tokens(unigrams):
    state = json.loads(unigrams.backend.to_str())
    state["model"]["vocab"] = state["model"]["vocab"][:5]
    tokenizer = span_tokenizer(Tokenizer.from_str(json.dumps(state)), "changed")
    unknown = state["model"]["unk_id"]
    assert set(tokenizer.backend.encode("words", add_special_tokens=False).ids) == {unknown}


def test_an_id_too_large_for_any_vocabulary_is_refused(wordpiece_folder, tmp_path):
    """tokenizers writes a vocabulary with all ids up to the largest, whatever memory that takes."""
    save_tokenizer(load_tokenizer(str(wordpiece_folder)), tmp_path)
    rules = json.loads((tmp_path / "tokenizer.json").read_text())
    (token, *_) = reversed(rules["model"]["vocab"])
    rules["model"]["vocab"][token] = 10_000_000
    (tmp_path / "tokenizer.json").write_text(json.dumps(rules))
    with pytest.raises(UserError, match=f"token '{token}' has the id 10,000,000: expected less"):
        load_tokenizer(str(tmp_path))


def test_unigrams_go_on_spelling_unknown_characters_in_bytes(unigrams):
    state = json.loads(unigrams.backend.to_str())
    state["model"]["byte_fallback"] = True
    state["model"]["vocab"] += [[f"<0x{byte:02X}>", -20.0] for byte in range(256)]
    library = Tokenizer.from_str(json.dumps(state))
    tokenizer = span_tokenizer(Tokenizer.from_str(json.dumps(state)), "with bytes")
    text = "a \N{SLIGHTLY SMILING FACE}"
    assert tokenizer.ids_of(text) == library.encode(text, add_special_tokens=False).ids
    assert tokenizer.unknown_id not in tokenizer.ids_of(text)
