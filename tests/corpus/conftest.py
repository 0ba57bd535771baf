"""Small tokenizers of all kinds, learned from the documentation of the standard library."""

import argparse
import csv
import math
import optparse
import statistics
from collections import Counter

import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from cocondenser_jax.corpus.build import build_store
from cocondenser_jax.corpus.tokenizer import (
    load_tokenizer,
    span_tokenizer,
    train_tokenizer,
)
from tests.world import write_records


@pytest.fixture(scope="session")
def paragraphs():
    modules = (argparse, csv, optparse, statistics)
    docstrings = [
        getattr(item, "__doc__", None) or ""
        for module in modules
        for item in (module, *vars(module).values())
    ]
    return [text for text in docstrings if len(text) > 100]


@pytest.fixture(scope="session")
def byte_level_folder(paragraphs, tmp_path_factory):
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
    (folder / "config.json").write_text('{"model_type": "roberta"}')
    return folder


@pytest.fixture(scope="session")
def wordpiece_folder(paragraphs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wordpiece")
    train_tokenizer(paragraphs, 900).backend.model.save(str(folder))
    (folder / "config.json").write_text('{"model_type": "bert"}')
    return folder


@pytest.fixture(scope="session")
def unigrams(paragraphs):
    """As XLM-R's: SentencePiece's unigrams, words by spaces alone.

    The pieces are listed, since `UnigramTrainer` learns others in each process, and their scores
    are multiples of 1/8, since `tokenizers` (0.23) reads other floats with errors in the last bit:
    either may decide between two segmentations of equal probability.
    """
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    words = [f"▁{word}" for text in paragraphs for word in text.split()]
    others = "密集検索。การค้นหา한국어"
    letters = sorted({*"".join(words), *others})
    counts = Counter(word[i : i + n] for word in words for i in range(len(word)) for n in (2, 3, 4))
    common = [piece for piece, _ in counts.most_common(800)]
    scores = [round(8 * math.log(counts[piece] / len(words))) / 8 for piece in common]
    pieces = [*((token, 0.0) for token in special), *((letter, -9.0) for letter in letters)]
    pieces += zip(common, scores, strict=True)
    tokenizer = Tokenizer(models.Unigram(pieces, special.index("<unk>")))
    tokenizer.add_special_tokens(special)
    tokenizer.normalizer = normalizers.NFKC()
    steps = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.Metaspace()
    return span_tokenizer(tokenizer, "unigrams")


@pytest.fixture(scope="session")
def composed_bytes(byte_level_folder):
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
def words_between_s(wordpiece_folder):
    """As MPNet's: BERT's vocabulary, its special tokens included, between those of MPNet."""
    entries = (wordpiece_folder / "vocab.txt").read_text().split("\n")[:-1]
    entries = ["<s>", "<pad>", "</s>", "<unk>", *entries, "<mask>"]
    numbers = {entry: number for number, entry in enumerate(entries)}
    tokenizer = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    mask = AddedToken("<mask>", lstrip=True)
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "[UNK]", mask])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return span_tokenizer(tokenizer, "words between <s> and </s>")


@pytest.fixture(scope="session")
def tokenizers(
    wordpiece_folder,
    byte_level_folder,
    unigrams,
    composed_bytes,
    words_between_s,
):
    return {
        "bert": load_tokenizer(str(wordpiece_folder)),
        "roberta": load_tokenizer(str(byte_level_folder)),
        "xlm-roberta": unigrams,
        "modernbert": composed_bytes,
        "mpnet": words_between_s,
    }


@pytest.fixture
def tokenizer(tokenizers, model_type):
    return tokenizers[model_type]


@pytest.fixture(scope="session")
def mixed(tmp_path_factory, wordpiece_folder):
    """Two stores: of documents of one and of three spans, each with words of its own."""
    folder = tmp_path_factory.mktemp("mixed")
    for name, words, n_documents in (("some", "ab", 10), ("many", "cd", 20)):
        texts = [
            {"_id": f"{name}{i}", "spans": [" ".join([*words[: 1 + i % 2]] * 9)] * (1 + i % 2 * 2)}
            for i in range(n_documents)
        ]
        # Duplicates are dropped: a number makes each text one of its own.
        for i, text in enumerate(texts):
            text["spans"] = [f"{span} {i} {j}" for j, span in enumerate(text["spans"])]
        source = write_records(folder / f"{name}.jsonl", texts)
        build_store(str(source), str(wordpiece_folder), folder / name, max_length=30)
    return {name: folder / name for name in ("some", "many")}
