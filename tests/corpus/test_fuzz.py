"""Whatever a file holds, it is read or refused with one clear line; and nothing in it is run."""

import gzip
import io
import json
import lzma
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd

from cocondenser_jax.corpus.build import build_store
from cocondenser_jax.corpus.sources import read_documents
from cocondenser_jax.corpus.store import manifest_checksum, open_store, verify_store
from cocondenser_jax.corpus.tokenizer import load_tokenizer
from cocondenser_jax.errors import UserError
from tests.conftest import TEXTS
from tests.mutations import fuzz_content, fuzz_file, fuzz_record, jsonl
from tests.world import write_tokenizer


def _documents(path):
    for document in read_documents(str(path)):
        f"{document.id} {document.text}".encode()


_TEXT = b"One. Two.\n\nThree four.\nFive.\n"
_JSONL = jsonl(
    {"_id": "d1", "title": "T", "text": "One. Two."}, {"_id": "d2", "spans": ["a", "b"], "text": ""}
)


def _parquet():
    file = io.BytesIO()
    table = pa.table(
        {"id": ["d1", "d2"], "title": ["T", None], "text": ["One.", "Two."], "n": [1, 2]}
    )
    pq.write_table(table, file)
    return file.getvalue()


READERS = {
    "a.txt": (_TEXT, _documents),
    "a.jsonl": (_JSONL, _documents),
    "a.tsv": (b'title\tid\ttext\nT\t1\t"one ""two"""\nT\t2\tthree\n', _documents),
    "a.txt.gz": (gzip.compress(_TEXT), _documents),
    "a.txt.xz": (lzma.compress(_TEXT), _documents),
    "a.parquet": (_parquet(), _documents),
    "a.jsonl.zst": (zstd.compress(_JSONL), _documents),
}


@pytest.mark.parametrize("name", READERS)
def test_a_broken_file_is_read_or_refused(name, tmp_path):
    fuzz_content(tmp_path / name, *READERS[name])


def test_json_of_wrong_types_is_read_or_refused(tmp_path):
    record = {"_id": "d1", "title": "T", "text": "One.", "spans": ["a"]}
    fuzz_record(tmp_path / "a.jsonl", record, _documents)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    lines = jsonl(*({"_id": str(i), "spans": [*TEXTS[:3], f"{TEXTS[0]} {i}"]} for i in range(9)))
    (folder / "a.jsonl").write_bytes(lines)
    words = [word for text in TEXTS for word in text.split()]
    write_tokenizer(folder / "tokenizer", words, 200)
    build_store(str(folder / "a.jsonl"), str(folder / "tokenizer"), folder / "store")
    return folder / "store"


def _whole_store(folder):
    open_store(folder)
    verify_store(folder)
    opened = open_store(folder)
    opened.read_spans(np.arange(opened.n_spans), 16)
    for document in range(opened.n_documents):
        opened.document_id(document)


@pytest.mark.parametrize(
    "name",
    [
        "manifest.json",
        "tokens.bin",
        "span_offsets.bin",
        "first_span.bin",
        "id_offsets.bin",
        "ids.txt",
        "starts.bin",
    ],
)
def test_a_broken_store_opens_or_is_refused(name, store, tmp_path):
    folder = shutil.copytree(store, tmp_path / "store")
    fuzz_file(folder, name, _whole_store)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "vocab.txt"])
def test_a_broken_tokenizer_loads_or_is_refused(name, store, tmp_path):
    folder = shutil.copytree(store / "tokenizer", tmp_path / "tokenizer")
    if name != "tokenizer.json":  # it would be read in place of the other files
        (folder / "tokenizer.json").unlink()
    fuzz_file(folder, name, lambda folder: load_tokenizer(str(folder)), 0.2)


@pytest.mark.parametrize("name", ["../outside", "/outside", "tokenizer/../../outside"])
def test_files_of_a_store_lie_inside_it(name, store, tmp_path):
    folder = shutil.copytree(store, tmp_path / "store")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][name] = {"bytes": 0, "sha256": ""}
    manifest["checksum"] = manifest_checksum(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "outside").touch()
    with pytest.raises(UserError, match="names files outside of its folder"):
        open_store(folder)
