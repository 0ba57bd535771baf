"""Small tokenizers of all kinds, learnt from the documentation of the standard library."""

import argparse
import csv
import optparse
import statistics
from pathlib import Path

import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from cocondenser_jax.corpus.tokenizer import (
    SpanTokenizer,
    load_tokenizer,
    span_tokenizer,
    train_tokenizer,
)


@pytest.fixture(scope="session")
def paragraphs() -> list[str]:
    modules = (argparse, csv, optparse, statistics)
    docstrings = [
        getattr(item, "__doc__", None) or ""
        for module in modules
        for item in (module, *vars(module).values())
    ]
    return [text for text in docstrings if len(text) > 100]


@pytest.fixture(scope="session")
def byte_level_folder(paragraphs: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("byte_level")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(paragraphs, trainer)
    tokenizer.model.save(str(folder))
    return folder


@pytest.fixture(scope="session")
def wordpiece_folder(paragraphs: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wordpiece")
    train_tokenizer(paragraphs, 900).backend.model.save(str(folder))
    return folder


@pytest.fixture(scope="session")
def unigrams(paragraphs: list[str]) -> SpanTokenizer:
    """As XLM-R's: SentencePiece's unigrams, words by spaces alone."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    steps = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=900, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    others = ["密集検索。 密 集 検 索 。", "การค้นหา " + " ".join("การค้นหา"), "한국어", "検x"]
    tokenizer.train_from_iterator(paragraphs + others * 50, trainer)
    tokenizer.decoder = decoders.Metaspace()
    return span_tokenizer(tokenizer, "unigrams")


@pytest.fixture(scope="session")
def composed_bytes(byte_level_folder: Path) -> SpanTokenizer:
    """As ModernBERT's: byte-level, composed characters, BERT's special tokens, runs of spaces."""
    folder = str(byte_level_folder)
    tokenizer = Tokenizer(models.BPE.from_file(f"{folder}/vocab.json", f"{folder}/merges.txt"))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(" " * n, normalized=False) for n in (2, 3, 4)])
    tokenizer.add_special_tokens(["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"])
    return span_tokenizer(tokenizer, "composed bytes")


@pytest.fixture(scope="session")
def tokenizers(
    wordpiece_folder: Path,
    byte_level_folder: Path,
    unigrams: SpanTokenizer,
    composed_bytes: SpanTokenizer,
) -> dict[str, SpanTokenizer]:
    return {
        "bert": load_tokenizer(str(wordpiece_folder)),
        "roberta": load_tokenizer(str(byte_level_folder)),
        "xlm-roberta": unigrams,
        "modernbert": composed_bytes,
    }


@pytest.fixture
def tokenizer(tokenizers: dict[str, SpanTokenizer], model_type: str) -> SpanTokenizer:
    return tokenizers[model_type]
