"""Small tokenizers of both kinds, learnt from the documentation of the standard library."""

import argparse
import csv
import optparse
import statistics
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from cocondenser_jax.corpus.tokenizer import SpanTokenizer, load_tokenizer, train_wordpiece


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
    train_wordpiece(paragraphs, 900).backend.model.save(str(folder))
    return folder


@pytest.fixture(scope="session")
def tokenizers(wordpiece_folder: Path, byte_level_folder: Path) -> dict[str, SpanTokenizer]:
    return {
        "bert": load_tokenizer(str(wordpiece_folder)),
        "roberta": load_tokenizer(str(byte_level_folder)),
    }


@pytest.fixture
def tokenizer(tokenizers: dict[str, SpanTokenizer], model_type: str) -> SpanTokenizer:
    return tokenizers[model_type]
