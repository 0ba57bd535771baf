"""Shards as they lie on disk: how many, and damage."""

import pickle
import struct
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.ipc
import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import write_json
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.retriever.search import embeddings as embeddings_module
from cocondenser_jax.retriever.search import encode
from cocondenser_jax.retriever.search.encode import Encoding
from cocondenser_jax.retriever.search.index import build_index
from cocondenser_jax.retriever.search.opening import open_index
from tests import lines
from tests.mutations import Payload


@pytest.fixture
def embeddings(model_folder, beir, tmp_path):
    out = tmp_path / "embeddings"
    encode.encode_corpus(
        Encoding(open_model(model_folder), max_length=16), beir, out, shard_size=25
    )
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
    said = lines.whole(
        "TMP/embeddings/embeddings-00001.arrow is missing or damaged: encode "
        "again with the same flags, which renews such shards only"
    )
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
        with pytest.raises(
            UserError,
            match=lines.whole(
                "TMP/embeddings/embeddings-00000.arrow is missing or damaged: encode "
                "again with the same flags, which renews such shards only"
            ),
        ):
            embeddings_module.open_shards(embeddings, manifest._replace(**changed))


@pytest.mark.parametrize(
    ("column", "last"), [("id", 1 << 40), ("title", 1 << 62), ("text", -1), ("text", 5)]
)
def test_a_text_beyond_its_shard_is_damage(embeddings, column, last):
    """Whoever reads such a text reads beyond the file, and crashes: nothing may be read."""
    manifest = embeddings_module.read_manifest(embeddings)
    path = embeddings / "embeddings-00001.arrow"
    texts = pyarrow.ipc.open_file(path.read_bytes()).read_all()[column].to_pylist()
    ends_N = np.cumsum([0, *(len(text.encode()) for text in texts)])
    offsets = ends_N.astype("<i8").tobytes()
    content = path.read_bytes()
    assert content.count(offsets) == 1
    path.write_bytes(content.replace(offsets, offsets[:-8] + struct.pack("<q", last)))
    assert embeddings_module.map_shard(embeddings, manifest, 1) is None


@pytest.mark.parametrize("n_rows", [0, 24, 26])
def test_a_shard_with_another_number_of_rows_is_damage(embeddings, n_rows):
    """A row beyond its shard would be another passage's, or none."""
    manifest = embeddings_module.read_manifest(embeddings)
    path = embeddings / "embeddings-00001.arrow"
    table = pyarrow.ipc.open_file(path.read_bytes()).read_all()
    other = pyarrow.concat_tables([table, table])[:n_rows]
    path.unlink()  # what is mapped must not change
    embeddings_module.write_table(path, other)
    assert embeddings_module.map_shard(embeddings, manifest, 1) is None


def test_an_index_of_more_vectors_than_passages_is_damaged(embeddings, model_folder, tmp_path):
    build_index(embeddings, tmp_path / "index")
    path = tmp_path / "index" / "passages.arrow"
    table = pyarrow.ipc.open_file(path.read_bytes()).read_all()
    assert len(table) == 60
    embeddings_module.write_table(path, table[:59])
    with pytest.raises(
        UserError,
        match=lines.whole("TMP/index/passages.arrow is missing or damaged: build the index again"),
    ):
        open_index(tmp_path / "index", open_model(model_folder))


@pytest.mark.parametrize("column", ["id", "text", "vector"])
def test_a_shard_without_a_value_is_named(embeddings, column):
    manifest = embeddings_module.read_manifest(embeddings)
    path = embeddings / "embeddings-00001.arrow"
    whole = embeddings_module.map_shard(embeddings, manifest, 1)
    place = whole.schema.get_field_index(column)
    values = whole[column].to_pylist()
    values[3] = None
    field = whole.schema.field(place)
    lacking = whole.set_column(place, field, pyarrow.array(values, field.type))
    path.unlink()  # it is mapped
    embeddings_module.write_table(path, lacking)
    with pytest.raises(
        UserError,
        match=lines.whole(
            "…/embeddings-00001.arrow is missing or damaged: encode again with the same"
            " flags, which renews such shards only"
        ),
    ):
        embeddings_module.open_shards(embeddings, manifest)


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
    n_open = len(list(Path("/dev/fd").iterdir()))
    tables = [embeddings_module.map_table(tmp_path / f"{i}", table.schema, 1) for i in range(50)]
    assert len(list(Path("/dev/fd").iterdir())) == n_open
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
    with pytest.raises(
        UserError,
        match=lines.whole(
            "…/manifest.json is not what cocondenser encode writes: encode the corpus again"
        ),
    ):
        embeddings_module.read_manifest(tmp_path)


def test_a_manifest_without_a_field_is_refused(embeddings):
    fields = embeddings_module.read_manifest(embeddings).to_json()
    for name in fields:
        missing = {key: value for key, value in fields.items() if key != name}
        write_json(embeddings / embeddings_module.MANIFEST, missing)
        with pytest.raises(
            UserError,
            match=lines.whole(
                "…/manifest.json is not what cocondenser encode writes: encode the corpus again"
            ),
        ):
            embeddings_module.read_manifest(embeddings)
