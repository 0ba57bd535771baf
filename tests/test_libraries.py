"""What each library raises for broken input: one line with the file, and the row where it is known.

The type of the exception is that of the library at its current version, from which the package
makes its own: where it changes, what is caught may have to change too. `test_fuzz.py` and the files
of that name beside it damage files in ways that nobody thought of.
"""

import gzip
import io
import json
import lzma
import re
import shutil
import struct
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from backports import zstd

from cocondenser_jax.convert.from_torch import load_folder
from cocondenser_jax.corpus.sources import read_documents
from cocondenser_jax.corpus.tokenizer import load_tokenizer
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import read_json
from cocondenser_jax.model_folder.hub import find_folder
from cocondenser_jax.pretrain.checkpoint import read_arrays
from cocondenser_jax.retriever.search.embeddings import PASSAGES, map_table
from cocondenser_jax.retriever.search.models import load_retriever
from cocondenser_jax.retriever.train.hard_batches import load_batches


class Row(NamedTuple):
    """A broken file, and what comes of it."""

    file: str
    content: bytes
    raised: str  # the type of the library's exception; "": none, the package finds it itself
    message: str  # after the path


def flipped(content, place):
    """Inverts the bits of a byte."""
    changed = bytearray(content)
    changed[place] ^= 0xFF
    return bytes(changed)


def saved(write, *values, **options):
    """Returns the bytes that a library writes."""
    file = io.BytesIO()
    write(*values, file, **options)
    return file.getvalue()


def refusal(read, path):
    """Returns the line with which `read` refuses a path, and the exception that it is made from."""
    with pytest.raises(UserError) as error:
        read(path)
    line = str(error.value)
    assert "\n" not in line
    assert str(path) in line
    return line.replace(str(path), ""), error.value.__cause__


TEXT = b"One text.\nAnd another one.\n" * 50
PARQUET = saved(pq.write_table, pa.table({"text": [f"text {i}" for i in range(100)]}))
CUT_SHORT = "Compressed file ended before the end-of-stream marker"
NO_SCHEMA = ": Error creating dataset"
DOCUMENTS = {
    "gzip, cut short": Row("a.txt.gz", gzip.compress(TEXT)[:-9], "EOFError", CUT_SHORT),
    "gzip, plain": Row("a.txt.gz", TEXT, "BadGzipFile", "Not a gzipped file"),
    "gzip, checksum": Row("a.txt.gz", flipped(gzip.compress(TEXT), -6), "BadGzipFile", "CRC check"),
    "gzip, joined": Row(
        "a.txt.gz", gzip.compress(TEXT) + b"x", "BadGzipFile", "Not a gzipped file"
    ),
    "lzma, cut short": Row("a.txt.xz", lzma.compress(TEXT)[:-9], "EOFError", CUT_SHORT),
    "lzma, plain": Row("a.txt.xz", TEXT, "LZMAError", "Input format not supported"),
    "lzma, damaged": Row(
        "a.txt.xz", flipped(lzma.compress(TEXT), 40), "LZMAError", "Corrupt input"
    ),
    "zstd, cut short": Row("a.txt.zst", zstd.compress(TEXT)[:-9], "EOFError", CUT_SHORT),
    "zstd, plain": Row("a.txt.zst", TEXT, "ZstdError", "Unable to decompress Zstandard data"),
    "json, cut short": Row(
        "a.jsonl",
        b'{"text": "a"}\n{"text": "b\n',
        "JSONDecodeError",
        r":2 is not valid JSON: Unterminated string starting at, column 10",
    ),
    "json, nested": Row("a.jsonl", b"[" * 100_000, "RecursionError", ":1 is not valid JSON"),
    "json, a number": Row("a.jsonl", b"[%s]" % (b"9" * 5000), "ValueError", ":1 is not valid JSON"),
    "json, UTF-16": Row("a.jsonl", '{"text": "a"}'.encode("utf-16"), "", ":1: not UTF-8"),
    "csv, quotes": Row("a.tsv", b'id\ttext\n1\t"a" b\n', "", ":2: wrong quoting, expected csv"),
    "Parquet, no footer": Row("a.parquet", TEXT, "ArrowInvalid", f"{NO_SCHEMA}.* magic bytes"),
    "Parquet, empty": Row("a.parquet", b"", "ArrowInvalid", f"{NO_SCHEMA}.* size is 0 bytes"),
    "Parquet, cut short": Row(
        "a.parquet", PARQUET[: len(PARQUET) // 2], "ArrowInvalid", f"{NO_SCHEMA}.* magic bytes"
    ),
}


@pytest.mark.parametrize("case", DOCUMENTS)
def test_broken_documents(case, tmp_path):
    row = DOCUMENTS[case]
    path = tmp_path / ("a-long-name-" * 9) / row.file
    path.parent.mkdir()
    path.write_bytes(row.content)
    line, cause = refusal(lambda path: [*read_documents(str(path))], path)
    assert re.search(row.message, line)
    if row.raised:
        assert type(cause).__name__ == row.raised


def changed_header(weights, **changes):
    """Changes what a file of safetensors says of the word embeddings."""
    (size,) = struct.unpack("<Q", weights[:8])
    header = json.loads(weights[8 : 8 + size])
    header["bert.embeddings.word_embeddings.weight"].update(changes)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + weights[8 + size :]


def load(folder):
    """Reads a folder for JAX."""
    load_folder(str(folder))


def tokens(folder):
    """Reads a tokenizer."""
    load_tokenizer(str(folder)).backend.encode("abc")


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n"
NO_TENSORS = "as a file of tensors"
# A file of a model folder → of each case its content, which may be made of what was there; how it
# is read; and what is said after the folder.
WEIGHTS: dict[str, Any] = {
    "cut short": (lambda whole: whole[: len(whole) // 2], "SafetensorError"),
    "cut in the header": (lambda whole: whole[:20], "SafetensorError"),
    "empty": (lambda whole: b"", "SafetensorError"),
    "a pointer": (lambda whole: POINTER, "SafetensorError"),
    "another type": (lambda whole: changed_header(whole, dtype="X9"), "SafetensorError"),
    "another shape": (lambda whole: changed_header(whole, shape=[3, 3]), "SafetensorError"),
}
PICKLES = {
    "cut short": saved(torch.save, {"x": torch.zeros(99)})[:-200],
    "damaged": flipped(saved(torch.save, {"x": torch.zeros(99)}), 90),
    "empty": b"",
    "text": b"hello",
    "a pointer": POINTER,
    "a list": saved(torch.save, [1, 2]),
    "a module": saved(torch.save, {"x": torch.nn.Linear(1, 1)}),
    "nested": saved(torch.save, {"state_dict": {"x": torch.zeros(3)}}),
}


@pytest.mark.parametrize("read", [load, load_retriever])
@pytest.mark.parametrize("case", WEIGHTS)
def test_broken_safetensors(case, read, research_folders, tmp_path):
    folder = shutil.copytree(research_folders["bert"], tmp_path / "model")
    path = folder / "model.safetensors"
    change, raised = WEIGHTS[case]
    path.write_bytes(change(path.read_bytes()))
    _, cause = refusal(read, path if read is load else folder)
    if read is load_retriever:  # the package reads the header itself before it loads the rest
        assert type(cause).__name__ == raised


@pytest.mark.parametrize("read", [load, load_retriever])
@pytest.mark.parametrize("case", PICKLES)
def test_broken_pickles_of_weights(case, read, research_folders, tmp_path):
    folder = shutil.copytree(research_folders["bert"], tmp_path / "model")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(PICKLES[case])
    refusal(read, folder)


CONFIGS = {
    "cut short": b'{"model_type": "bert"',
    "a list": b"[]",
    "empty": b"",
    "no UTF-8": b'{"model_type": "\xe9"}',
    "no type": {"model_type": None},
    "unknown type": {"model_type": "nobody"},
    "a number as type": {"model_type": 3},
    "words as size": {"hidden_size": "wide"},
    "no size": {"hidden_size": None},
    "no heads": {"num_attention_heads": 0},
    "heads that do not divide": {"num_attention_heads": 3},
    "an unknown activation": {"hidden_act": "nobody"},
}


def change_file(path, change):
    """Writes bytes into a JSON file, or changes keys of its object."""
    if isinstance(change, dict):
        change = json.dumps(json.loads(path.read_text()) | change).encode()
    path.write_bytes(change)


@pytest.mark.parametrize("read", [load, load_retriever])
@pytest.mark.parametrize("case", CONFIGS)
def test_broken_configs(case, read, research_folders, tmp_path):
    folder = shutil.copytree(research_folders["bert"], tmp_path / "model")
    change_file(folder / "config.json", CONFIGS[case])
    refusal(read, folder)


TOKENIZERS = {
    "cut short": b'{"version": "1.0", "model": {',
    "empty": b"",
    "no model": b"{}",
    "a list": b"[]",
    "no UTF-8": b'{"\xe9": 1}',
    "unknown model": {"model": {"type": "Nobody"}},
    "another version": {"version": "9.0"},
    "no vocabulary": {"model": {"type": "WordPiece", "vocab": []}},
    "a negative id": {"model": {"type": "WordPiece", "vocab": {"a": -1}}},
    "a broken step": {"post_processor": {"type": "BertProcessing"}},
}


@pytest.mark.parametrize("read", [tokens, load_retriever])
@pytest.mark.parametrize("case", TOKENIZERS)
def test_broken_tokenizers(case, read, research_folders, tmp_path):
    folder = shutil.copytree(research_folders["bert"], tmp_path / "model")
    change_file(folder / "tokenizer.json", TOKENIZERS[case])
    refusal(read, folder)


MODULES = {
    "cut short": ("modules.json", b"[{"),
    "an object": ("modules.json", b"{}"),
    "no type": ("modules.json", b'[{"idx": 0, "name": "0", "path": ""}]'),
    "names": ("modules.json", b'["a"]'),
    "an unknown type": (
        "modules.json",
        b'[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Nobody"}]',
    ),
    "pooling, cut short": ("1_Pooling/config.json", b'{"word'),
    "pooling, a list": ("1_Pooling/config.json", b"[]"),
    "settings, a list": ("config_sentence_transformers.json", b"[]"),
    "settings, prompts": ("config_sentence_transformers.json", b'{"prompts": 3}'),
    "settings, length": ("sentence_bert_config.json", b'{"max_seq_length": "long"}'),
}


@pytest.fixture(scope="module")
def sentence_folder(research_folders, tmp_path_factory):
    """A folder of sentence-transformers."""
    folder = tmp_path_factory.mktemp("sentences") / "encoder"
    load_retriever(research_folders["bert"]).save_pretrained(str(folder))
    return folder


@pytest.mark.parametrize("read", [load, load_retriever])
@pytest.mark.parametrize("case", MODULES)
def test_broken_modules(case, read, sentence_folder, tmp_path):
    folder = shutil.copytree(sentence_folder, tmp_path / "model")
    name, content = MODULES[case]
    (folder / name).write_bytes(content)
    refusal(read, folder)


def arrow(table):
    """Returns an Arrow file."""
    file = io.BytesIO()
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return file.getvalue()


PASSAGE_TABLE = pa.table({"id": ["a", "b"], "title": ["", ""], "text": ["x", "y"]}, PASSAGES)
SHARD = arrow(PASSAGE_TABLE)
BATCHES = saved(lambda file: np.savez(file, batches=np.ones((2, 2), int)))
OTHERS = {
    "json": (read_json, b'{"a": 1', "JSONDecodeError"),
    "json, no UTF-8": (read_json, b"\xff", "UnicodeDecodeError"),
    "json, nested": (read_json, b"[" * 100_000, "RecursionError"),
    "numpy, no archive": (load_batches, b"x", "ValueError"),
    "numpy, cut short": (load_batches, BATCHES[:-30], "BadZipFile"),
    "numpy, empty": (load_batches, b"", "EOFError"),
    "checkpoint, empty": (lambda path: read_arrays(path, {}), b"", "SafetensorError"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_broken_files(case, tmp_path):
    read, content, raised = OTHERS[case]
    path = tmp_path / "file"
    path.write_bytes(content)
    _, cause = refusal(read, path)
    assert type(cause).__name__ == raised


@pytest.mark.parametrize(
    "content",
    [
        SHARD[:-9],
        SHARD[: len(SHARD) // 2],
        b"",
        b"ARROW1",
        arrow(pa.table({"id": [1, 2]})),
        SHARD[:-1] + b"x",
    ],
)
def test_a_broken_shard_is_none(content, tmp_path):
    """Its readers then say which one is missing or damaged."""
    path = tmp_path / "shard.arrow"
    path.write_bytes(SHARD)
    assert map_table(path, PASSAGES, 2) is not None
    path.write_bytes(content)
    assert map_table(path, PASSAGES, 2) is None


@pytest.mark.parametrize(
    "error", [OSError, ValueError, RuntimeError, EOFError, json.JSONDecodeError("no JSON", "", 0)]
)
def test_whatever_the_hub_raises(error, monkeypatch):
    def download(*_, **__):
        raise error if isinstance(error, Exception) else error("it failed:\n\n  the cause")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(UserError, match=r"^some/model: no such folder, .* hub: ") as found:
        find_folder("some/model")
    assert str(found.value).endswith(("it failed: the cause", "(char 0)"))
