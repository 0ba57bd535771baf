"""Whatever a store or a tokenizer holds, it is read or refused with one clear line."""

import json
import shutil

import numpy as np
import pytest

from cocondenser_jax.corpus.build import build_store
from cocondenser_jax.corpus.store import manifest_checksum, open_store, verify_store
from cocondenser_jax.corpus.tokenizer import load_tokenizer
from cocondenser_jax.errors import UserError
from tests.conftest import TEXTS
from tests.lines import whole
from tests.mutations import fuzz_file, jsonl
from tests.world import write_tokenizer


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
    with pytest.raises(
        UserError, match=whole("TMP/store/manifest.json names files outside of its folder")
    ):
        open_store(folder)
