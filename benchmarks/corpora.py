"""Texts, a tokenizer and a store for the benchmarks, from the docstrings of installed packages."""

import json
from pathlib import Path

from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer, BertConfig, BertModel

from cocondenser_jax.corpus.build import build_store
from cocondenser_jax.corpus.pydocs import read_docstrings
from cocondenser_jax.corpus.store import TokenStore, open_store
from cocondenser_jax.corpus.tokenizer import save_tokenizer, train_tokenizer


def docstrings() -> list[str]:
    """Returns about 14,000 texts, 17 MB."""
    return [text for _, text in read_docstrings()]


def write_tokenizer(texts: list[str], folder: Path) -> Path:
    """Trains a WordPiece vocabulary of 30,522 entries on the texts."""
    folder.mkdir()
    save_tokenizer(train_tokenizer(texts, 30522), folder)
    return folder


def write_retriever(tokenizer: Path, folder: Path) -> Path:
    """Writes a random model of all-MiniLM-L6-v2's size that sentence-transformers loads."""
    shape = BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    network = folder.with_name("network")
    BertModel(shape).save_pretrained(network)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(network)
    SentenceTransformer(str(network), device="cpu").save(str(folder))  # mean pooling
    return folder


def make_store(texts: list[str], tokenizer: Path, folder: Path, max_length: int) -> TokenStore:
    """Builds and opens a store of the texts."""
    source = folder.with_suffix(".jsonl")
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    build_store(str(source), str(tokenizer), folder, max_length=max_length)
    return open_store(folder)
