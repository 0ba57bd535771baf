"""Tokenizers of families that only PyTorch computes here, against the library's own tokens."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from tokenizers import Tokenizer, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from cocondenser_jax.corpus.batches import BatchSpec, make_batch
from cocondenser_jax.corpus.build import build_store
from cocondenser_jax.corpus.records import Document
from cocondenser_jax.corpus.same_tokens import tokens_in_training
from cocondenser_jax.corpus.spans import cut_documents
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.corpus.tokenizer import load_tokenizer, save_tokenizer, span_tokenizer
from cocondenser_jax.errors import UserError
from tests.corpus.test_spans import DOCUMENTS
from tests.other_families import write_tokenizer
from tests.world import make_texts, write_records

FAMILIES = ("qwen2", "gemma", "t5", "deberta-v2")


@pytest.fixture(scope="module")
def folders(paragraphs, tmp_path_factory):
    return {
        family: write_tokenizer(family, paragraphs, tmp_path_factory.mktemp(family))
        for family in FAMILIES
    }


@pytest.mark.parametrize(
    ("family", "around", "space", "joins_space"),
    [
        ("qwen2", ([], ["<|endoftext|>"]), "Ġ", True),
        ("gemma", (["<bos>"], ["<eos>"]), "▁", True),
        ("t5", ([], ["</s>"]), "▁", False),
        ("deberta-v2", (["[CLS]"], ["[SEP]"]), "▁", False),
    ],
)
def test_the_tokenizer_of_another_family_is_read_as_it_is(
    folders, tmp_path, family, around, space, joins_space
):
    found = load_tokenizer(str(folders[family]))
    spelled = found.backend.id_to_token
    assert (found.kind, found.mask_id) == ("", None)
    assert (found.space, found.joins_space) == (space, joins_space)
    assert [*map(spelled, found.prefix_ids)] == around[0]
    assert [*map(spelled, found.suffix_ids)] == around[1]
    assert {*found.prefix_ids, *found.suffix_ids} <= {*found.special_ids}
    save_tokenizer(found, tmp_path)
    again = load_tokenizer(str(tmp_path))
    same = ("sha256", "prefix_ids", "suffix_ids", "special_ids", "vocab_size")
    assert [getattr(again, name) for name in same] == [getattr(found, name) for name in same]


def test_the_unknown_token_stands_for_no_text_where_it_is_not_an_added_one(folders):
    whole = load_tokenizer(str(folders["t5"]))
    state = json.loads(whole.backend.to_str())
    state["added_tokens"] = [t for t in state["added_tokens"] if t["content"] != "<unk>"]
    assert len(state["added_tokens"]) == len(whole.backend.get_added_tokens_decoder()) - 1
    found = span_tokenizer(Tokenizer.from_str(json.dumps(state)), "of which one is not added")
    assert found.backend.id_to_token(found.unknown_id) == "<unk>"
    assert found.special_ids == whole.special_ids


def test_more_than_two_tokens_around_a_text_are_refused(folders, tmp_path):
    tokenizer = Tokenizer.from_file(str(folders["gemma"] / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> <bos> $A <eos>", special_tokens=[("<bos>", 2), ("<eos>", 1)]
    )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"as <bos>, <bos>, a, .*: expected at most 2 tokens"):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_have_the_tokens_of_the_library(folders, family):
    library = AutoTokenizer.from_pretrained(folders[family])
    tokenizer = load_tokenizer(str(folders[family]))

    @settings(deadline=None)
    @given(DOCUMENTS.map(lambda text: " ".join(text.split())).filter(bool))
    def check(text):
        # The library reads these as special tokens.
        plain_text = text.replace("</s>", "s").replace("[MASK]", "mask")
        assert tokens_in_training(tokenizer, [plain_text]) == [library(plain_text)["input_ids"]]

    check()


@pytest.mark.parametrize("family", ["qwen2", "gemma", "t5"])
def test_words_start_where_the_text_has_spaces(folders, family):
    tokenizer = load_tokenizer(str(folders[family]))
    text = "the parser has been made for the library"
    (spans,) = cut_documents([Document("0", text)], tokenizer, 60)
    decode = tokenizer.backend.decode
    words = np.split(spans[0].tokens, np.flatnonzero(spans[0].starts)[1:])
    assert [decode(word.tolist()).strip() for word in words] == text.split()


@pytest.mark.parametrize("family", ["qwen2", "gemma", "t5"])
def test_rows_are_what_the_library_reads(folders, tmp_path, family):
    folder = str(folders[family])
    texts = ({"text": text} for text in make_texts(12, n_sentences=2))
    write_records(tmp_path / "texts.jsonl", texts)
    build_store(str(tmp_path / "texts.jsonl"), folder, tmp_path / "store", max_tokens=100)
    store = open_store(tmp_path / "store")
    spec = BatchSpec(seed=0, batch_size=6, length=100, example="crops", masked=False)
    library = AutoTokenizer.from_pretrained(folder)
    batch = make_batch(store, spec, 0)
    for ids, mask in zip(batch.input_ids_SxL, batch.attention_mask_SxL, strict=True):
        text = library.decode(ids[mask], skip_special_tokens=True).strip()
        assert ids[mask].tolist() == library(text)["input_ids"]
        assert mask.sum() == mask.argmin()
        assert (ids[~mask] == store.pad_id).all()
    with pytest.raises(UserError, match="has no mask: no token can be predicted"):
        make_batch(store, spec._replace(masked=True), 0)
