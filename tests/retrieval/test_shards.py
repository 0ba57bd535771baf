"""Shards as they lie on disk: exact search through all of them, damage, and parquet."""

import faiss
import numpy as np
import pyarrow.parquet
import pytest

from cocondenser_jax.collection.folder import read_corpus
from cocondenser_jax.errors import UserError
from cocondenser_jax.retrieval import encode, shards
from cocondenser_jax.storage.files import write_json


@pytest.fixture
def embeddings(model_folder, beir, tmp_path):
    out = tmp_path / "embeddings"
    encode.encode_corpus(model_folder, beir, out, shard_size=25, passage_length=16)
    return out


def integers(rng, *shape):
    """Numbers whose products and sums are exact, so that equal scores are equal in any order."""
    return rng.integers(-8, 9, shape).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("n_queries", [1, 30])  # faiss has one way for few queries, one for many
def test_shards_give_what_a_flat_index_gives(monkeypatch, dtype, n_queries):
    monkeypatch.setattr(shards, "BLOCK_ROWS", 40)
    rng = np.random.default_rng(0)
    vectors_NxD = integers(rng, 230, 6)
    vectors_NxD[200:] = vectors_NxD[:30]  # ties, within a shard and across
    queries_QxD = integers(rng, n_queries, 6)
    parts = [part.astype(dtype) for part in np.split(vectors_NxD, [100, 107, 150])]
    index = faiss.IndexFlatIP(6)
    index.add(vectors_NxD)
    all_QxN = queries_QxD @ vectors_NxD.T
    for k in (1, 5, 60, 120, 230):  # from less than the smallest shard to more than the largest
        scores_QxK, rows_QxK = shards.nearest(parts, queries_QxD, k)
        flat_QxK, flat_rows_QxK = index.search(queries_QxD, k)
        np.testing.assert_array_equal(scores_QxK, flat_QxK)
        np.testing.assert_array_equal(scores_QxK, -np.sort(-all_QxN, 1)[:, :k])
        np.testing.assert_array_equal(scores_QxK, np.take_along_axis(all_QxN, rows_QxK, 1))
        for scores_K, rows_K, flat_rows_K in zip(scores_QxK, rows_QxK, flat_rows_QxK, strict=True):
            assert len(set(rows_K)) == k
            # Of those that tie for the last place any may be there; all others must be.
            sure = scores_K > scores_K[-1] if k < 230 else slice(None)
            assert set(rows_K[sure]) == set(flat_rows_K[sure])


def test_a_last_block_that_does_not_fit_is_an_error(tmp_path, small_disk):
    array = np.arange(300, dtype=np.float16).reshape(100, 3)
    shards.save_array(tmp_path / "a.npy", array)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), array)
    small_disk((tmp_path / "a.npy").stat().st_size - 1)
    with pytest.raises(OSError, match="File too large"):
        shards.save_array(tmp_path / "b.npy", array)


def test_a_shard_may_hold_one_passage(embeddings):
    manifest = shards.read_manifest(embeddings)
    single = manifest | {"shard_size": 1, "shards": manifest["passages"]}
    write_json(embeddings / shards.MANIFEST, single)
    assert shards.read_manifest(embeddings) == single


def test_a_damaged_shard_is_named(embeddings):
    manifest = shards.read_manifest(embeddings)
    for name in ("embeddings-00001.npy", "passages-00002.jsonl"):
        path = embeddings / name
        whole = path.read_bytes()
        for content in (b"", whole[:-1], whole + b"x", whole[: len(whole) // 2]):
            path.write_bytes(content)
            with pytest.raises(UserError, match=f"{name} is missing or damaged: encode again"):
                shards.open_shards(embeddings, manifest)
        path.unlink()
        with pytest.raises(UserError, match=f"{name} is missing or damaged: encode again"):
            shards.open_shards(embeddings, manifest)
        path.write_bytes(whole)
    shards.open_shards(embeddings, manifest)
    np.save(embeddings / "embeddings-00001.npy", np.zeros((25, 16), np.float32))
    with pytest.raises(UserError, match=r"embeddings-00001\.npy is missing or damaged"):
        shards.open_shards(embeddings, manifest)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_parquet_holds_ids_and_vectors_in_order(model_folder, beir, tmp_path, dtype):
    encode.encode_corpus(model_folder, beir, tmp_path / "e", shard_size=25, dtype=dtype)
    shards.write_parquet(tmp_path / "e", tmp_path / "new" / "vectors\udcff")
    (tmp_path / "new" / "vectors\udcff").rename(tmp_path / "new" / "vectors.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "new" / "vectors.parquet")
    assert table.column_names == ["id", "vector"]
    assert table["id"].to_pylist() == [passage.id for passage in read_corpus(beir)]
    vectors = [np.load(path) for path in sorted((tmp_path / "e").glob("*.npy"))]
    np.testing.assert_array_equal(table["vector"].to_pylist(), np.concatenate(vectors))
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["vectors.parquet"]


def test_parquet_needs_whole_embeddings_and_a_place(embeddings, tmp_path):
    with pytest.raises(UserError, match="encode the corpus first"):
        shards.write_parquet(tmp_path, tmp_path / "v.parquet")
    with pytest.raises(UserError, match=r"cannot write .*v\.parquet"):
        shards.write_parquet(embeddings, embeddings / "settings.json" / "v.parquet")


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("pooling_from", "flag", "pooling is neither cls nor mean"),
        ("dtype", "float128x", "dtype is neither float32 nor float16"),
        ("shards", 1, "its numbers contradict each other"),
        ("dimension", 0, "its numbers contradict each other"),
        ("passages", "60", "passages is '60', expected int"),
    ],
)
def test_a_manifest_that_no_encoding_writes_is_refused(embeddings, tmp_path, key, value, says):
    manifest = shards.read_manifest(embeddings) | {"pooling": "max"}
    write_json(tmp_path / shards.MANIFEST, manifest)
    assert shards.replaced_pooling(shards.read_manifest(tmp_path)) is None
    write_json(tmp_path / shards.MANIFEST, manifest | {key: value})
    with pytest.raises(UserError, match=says):
        shards.read_manifest(tmp_path)
