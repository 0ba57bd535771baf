"""Shards as they lie on disk: how many, and damage."""

import pickle
from pathlib import Path

import pyarrow
import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.retrieval import embeddings as embeddings_module
from cocondenser_jax.retrieval import encode
from cocondenser_jax.retrieval.encode import Encoding
from cocondenser_jax.storage.files import write_json
from tests.mutations import Payload


@pytest.fixture
def embeddings(model_folder, beir, tmp_path):
    out = tmp_path / "embeddings"
    encode.encode_corpus(Encoding(model_folder, passage_length=16), beir, out, shard_size=25)
    return out


def test_a_shard_may_hold_one_passage(embeddings):
    manifest = embeddings_module.read_manifest(embeddings)
    single = manifest._replace(shard_size=1)
    write_json(embeddings / embeddings_module.MANIFEST, single.to_json())
    assert embeddings_module.read_manifest(embeddings) == single
    assert single.n_shards == 60


def test_a_damaged_shard_is_named(embeddings):
    manifest = embeddings_module.read_manifest(embeddings)
    path = embeddings / "embeddings-00001.arrow"
    whole = path.read_bytes()
    said = r"embeddings-00001\.arrow is missing or damaged: encode again"
    for content in (b"", whole[:-1], whole + b"x", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(UserError, match=said):
            embeddings_module.open_shards(embeddings, manifest)
    path.unlink()
    with pytest.raises(UserError, match=said):
        embeddings_module.open_shards(embeddings, manifest)
    path.write_bytes(whole)
    assert len(embeddings_module.open_shards(embeddings, manifest)) == 60
    for changed in ({"dimension": 16}, {"dtype": "float16"}, {"shard_size": 20}):
        with pytest.raises(UserError, match=r"embeddings-0000\d\.arrow is missing or damaged"):
            embeddings_module.open_shards(embeddings, manifest._replace(**changed))


def test_nothing_in_a_file_is_unpickled(tmp_path):
    pickled = {
        "ARROW:extension:name": "arrow.py_extension_type",
        "ARROW:extension:metadata": pickle.dumps(Payload(tmp_path / "ran")),
    }
    schema = pyarrow.schema([pyarrow.field("id", pyarrow.large_string(), metadata=pickled)])
    embeddings_module.write_table(tmp_path / "a.arrow", pyarrow.table([["x"]], schema=schema))
    embeddings_module.map_table(tmp_path / "a.arrow", schema, 1)
    assert not (tmp_path / "ran").exists()


def test_more_files_than_a_process_may_open(tmp_path):
    table = pyarrow.table({"id": ["x"]})
    for i in range(50):
        embeddings_module.write_table(tmp_path / f"{i}", table)
    n_open = len(list(Path("/proc/self/fd").iterdir()))
    tables = [embeddings_module.map_table(tmp_path / f"{i}", table.schema, 1) for i in range(50)]
    assert len(list(Path("/proc/self/fd").iterdir())) == n_open
    assert [found["id"][0].as_py() for found in tables] == ["x"] * 50


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("representation", None),
        ("representation", {"pooling": "cls"}),
        ("dtype", "float128x"),
        ("unknown", 1),
        ("dimension", 0),
        ("dimension", 10**30),
        ("passages", "60"),
        ("passages", 60.0),
        ("shard_size", None),
    ],
)
def test_a_manifest_that_no_encoding_writes_is_refused(embeddings, tmp_path, key, value):
    fields = embeddings_module.read_manifest(embeddings).to_json()
    write_json(tmp_path / embeddings_module.MANIFEST, fields | {key: value})
    with pytest.raises(UserError, match=r"manifest\.json is not what cocondenser encode writes"):
        embeddings_module.read_manifest(tmp_path)


def test_a_manifest_without_a_field_is_refused(embeddings):
    fields = embeddings_module.read_manifest(embeddings).to_json()
    for name in fields:
        missing = {key: value for key, value in fields.items() if key != name}
        write_json(embeddings / embeddings_module.MANIFEST, missing)
        with pytest.raises(UserError, match=r"is not what cocondenser encode writes"):
            embeddings_module.read_manifest(embeddings)
