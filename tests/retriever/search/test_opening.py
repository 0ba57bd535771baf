"""Opening an index: folders that do not fit, or are not whole."""

import json
import shutil

import numpy as np
import pyarrow.ipc
import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import file_sha256, write_json
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.representation import Given
from cocondenser_jax.retriever.search import opening, search
from cocondenser_jax.retriever.search.encode import Encoding, encode_corpus
from cocondenser_jax.retriever.search.index import build_index
from tests.lines import whole


def test_the_index_folder_is_enough(model_folder, embeddings, index, tmp_path):
    moved = tmp_path / "elsewhere"
    shutil.copytree(embeddings, tmp_path / "embeddings")
    build_index(tmp_path / "embeddings", tmp_path / "index")
    shutil.rmtree(tmp_path / "embeddings")
    (tmp_path / "index").rename(moved)
    shutil.copytree(model_folder, tmp_path / "model")
    found = search.search_text(
        opening.open_index(moved, open_model(tmp_path / "model")), "abcde", k=3
    )
    assert found == search.search_text(
        opening.open_index(index, open_model(model_folder)), "abcde", k=3
    )


def test_another_model_is_refused(make_model, embeddings, index):
    for folder in (embeddings, index):
        for model in (make_model(seed=1), make_model(hidden_size=16)):
            with pytest.raises(UserError, match=whole("… was built with another model (…) than …")):
                opening.open_index(folder, open_model(model))


def test_the_queries_of_a_database_are_read_as_its_passages_were(
    model_folder, make_model, beir, embeddings, tmp_path
):
    given = Given(pooling="cls", similarity="dot", query_prompt="abc ", dimensions=8)
    encode_corpus(Encoding(open_model(model_folder, given)), beir, tmp_path / "other")
    published = open_model(model_folder, None)
    names = set()
    for folder in (embeddings, tmp_path / "other"):
        model, name = opening.open_query_model(folder, published)
        names.add(name)
        expected = opening.open_index(folder, published).model.encode_query("abcde")
        np.testing.assert_array_equal(model.encode_query("abcde"), expected)
    assert expected.shape == (8,)
    facts = json.loads((embeddings / "manifest.json").read_text())
    for change in (
        *({"dtype": "float16"}, {"corpus_sha256": "0"}, {"max_length": 5}, {"passages": 7}),
        {"corpus": "moved", "model": "moved", "batch_size": 1},  # is no other database
    ):
        write_json(tmp_path / "changed" / "manifest.json", facts | change)
        names.add(opening.open_query_model(tmp_path / "changed", published)[1])
    assert len(names) == 6
    with pytest.raises(UserError, match=whole("… was built with another model (…) than …")):
        opening.open_query_model(embeddings, open_model(make_model(seed=1), None))


@pytest.mark.parametrize("dtype", ["int8", "binary"])
def test_a_database_gets_no_codes(dtype, model_folder, embeddings, tmp_path):
    facts = json.loads((embeddings / "manifest.json").read_text())
    write_json(tmp_path / "manifest.json", facts | {"dtype": dtype})
    said = f"TMP holds {dtype} codes: expected --dtype=float32 or float16 for a database"
    with pytest.raises(UserError, match=whole(said)):
        opening.open_query_model(tmp_path, open_model(model_folder))


def test_what_is_missing_is_named(model_folder, embeddings, index, tmp_path):
    with pytest.raises(
        UserError,
        match=whole(
            "… holds no manifest.json: encode the corpus first, until it ends, then build the index"
        ),
    ):
        opening.open_index(tmp_path, open_model(model_folder))
    with pytest.raises(
        UserError,
        match=whole(
            "… holds no manifest.json: encode the corpus first, until it ends, then build the index"
        ),
    ):
        build_index(tmp_path, tmp_path / "index")
    with pytest.raises(
        UserError,
        match=whole("faiss does not know the index string 'Flt' for vectors of 32 dimensions"),
    ):
        build_index(embeddings, tmp_path / "index", factory="Flt")
    with pytest.raises(
        UserError, match=whole("60 passages are too few to train the index 'IVF100,Flat'")
    ):
        build_index(embeddings, tmp_path / "index", factory="IVF100,Flat")
    with pytest.raises(UserError, match=whole("60 passages are too few to train the index 'PQ8'")):
        build_index(embeddings, tmp_path / "index", factory="PQ8")
    with pytest.raises(
        UserError,
        match=whole("faiss does not know the index string 'PQ5' for vectors of 32 dimensions"),
    ):
        build_index(embeddings, tmp_path / "index", factory="PQ5")
    with pytest.raises(
        UserError,
        match=whole(
            "an index 'IDMap,Flat' takes no vectors by themselves: expected, for instance,"
            " Flat, HNSW32 or IVF1024,Flat"
        ),
    ):
        build_index(embeddings, tmp_path / "index", factory="IDMap,Flat")
    assert not list(tmp_path.iterdir())
    with pytest.raises(
        UserError, match=whole("… already exists: choose a new folder, or remove it first")
    ):
        build_index(embeddings, index)
    shutil.copytree(index, tmp_path / "broken")
    (tmp_path / "broken" / "index.faiss").unlink()
    with pytest.raises(
        UserError,
        match=whole("TMP/broken/index.faiss is missing or damaged: build the index again"),
    ):
        opening.open_index(tmp_path / "broken", open_model(model_folder))
    (tmp_path / "broken" / "index.faiss").write_bytes(b"another")
    said = "TMP/broken/index.faiss is damaged, or its manifest is another's: build it again"
    with pytest.raises(UserError, match=whole(said)):
        opening.open_index(tmp_path / "broken", open_model(model_folder))
    shutil.copy(index / "index.faiss", tmp_path / "broken")
    table = pyarrow.ipc.open_file((index / "passages.arrow").read_bytes()).read_all()
    for rows in (table[:59], table.drop_columns("title")):
        with pyarrow.ipc.new_file(tmp_path / "broken" / "passages.arrow", rows.schema) as writer:
            writer.write_table(rows)
        with pytest.raises(
            UserError,
            match=whole("TMP/broken/passages.arrow is missing or damaged: build the index again"),
        ):
            opening.open_index(tmp_path / "broken", open_model(model_folder))


def test_an_index_that_faiss_cannot_read_is_one_line(model_folder, index, tmp_path):
    """Such as that of a later release, with the checksum of its manifest."""
    folder = shutil.copytree(index, tmp_path / "later")
    (folder / "index.faiss").write_bytes(b"of a later release")
    facts = json.loads((folder / "manifest.json").read_text())
    checksum = file_sha256(folder / "index.faiss")
    write_json(folder / "manifest.json", facts | {"index_sha256": checksum})
    said = "TMP/later/index.faiss is missing or damaged: build the index again"
    with pytest.raises(UserError, match=whole(said)):
        opening.open_index(folder, open_model(model_folder))
