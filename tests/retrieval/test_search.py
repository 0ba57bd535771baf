"""Search: exact results against NumPy, approximate ones, and folders that do not fit."""

import shutil

import numpy as np
import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.evaluation import trec
from cocondenser_jax.retrieval import data, encode, models, search


@pytest.fixture(scope="module")
def embeddings(model_folder, beir, tmp_path_factory):
    out = tmp_path_factory.mktemp("encoded") / "embeddings"
    encode.encode_corpus(model_folder, beir, out, shard_size=25, passage_length=16)
    return out


@pytest.fixture(scope="module")
def index(embeddings, tmp_path_factory):
    out = tmp_path_factory.mktemp("indexed") / "index"
    search.build_index(embeddings, out)
    return out


def test_a_flat_index_finds_the_largest_inner_products(model_folder, beir, index, tmp_path):
    model = models.load_retriever(model_folder, 8, 16)
    passages = list(data.read_corpus(beir))
    queries = data.read_queries(beir)
    scores = (
        model.encode_query(list(queries.values()))
        @ np.stack([model.encode_document(data.passage_text(p)) for p in passages]).T
    )
    searcher = search.open_index(index, model_folder, query_length=8)
    run = search.search_run(searcher, queries, depth=10)
    assert list(run) == list(queries)
    for row, query in zip(scores, queries, strict=True):
        best = np.argsort(-row)[:10]
        assert list(run[query]) == [passages[i].id for i in best]
        np.testing.assert_allclose(list(run[query].values()), row[best], rtol=1e-5)

    trec.write_run(tmp_path / "run.trec", run)
    again = trec.read_run(tmp_path / "run.trec")
    assert {q: list(r) for q, r in again.items()} == {q: list(r) for q, r in run.items()}
    assert all((np.diff(list(results.values())) < 0).all() for results in again.values())

    for result, (name, score) in zip(
        search.search_text(searcher, queries["q3"], k=4), run["q3"].items(), strict=False
    ):
        assert result.passage == next(p for p in passages if p.id == name)
        assert result.score == pytest.approx(score)


def test_depth_beyond_the_corpus_gives_the_corpus(model_folder, index):
    searcher = search.open_index(index, model_folder)
    assert len(search.search_run(searcher, {"q": "abcde"}, depth=1000)["q"]) == 60
    assert len(search.search_text(searcher, "abcde", k=1000)) == 60
    with pytest.raises(UserError, match="depth=0"):
        search.search_run(searcher, {"q": "abcde"}, depth=0)


def test_missing_neighbours_are_left_out(model_folder, embeddings, tmp_path):
    # One of eight cells is visited, so a depth of 60 cannot be reached.
    search.build_index(embeddings, tmp_path / "index", factory="IVF8,Flat")
    searcher = search.open_index(tmp_path / "index", model_folder)
    run = search.search_run(searcher, {"q": "abcde", "r": "hgfed"}, depth=60)
    for results in run.values():
        assert 0 < len(results) < 60
        assert min(results.values()) > -1e30  # what faiss gives where there is no neighbour
    assert 0 < len(search.search_text(searcher, "abcde", k=60)) < 60


def test_the_index_folder_is_enough(model_folder, embeddings, index, tmp_path):
    moved = tmp_path / "elsewhere"
    shutil.copytree(embeddings, tmp_path / "embeddings")
    search.build_index(tmp_path / "embeddings", tmp_path / "index")
    shutil.rmtree(tmp_path / "embeddings")
    (tmp_path / "index").rename(moved)
    shutil.copytree(model_folder, tmp_path / "model")
    found = search.search_text(search.open_index(moved, tmp_path / "model"), "abcde", k=3)
    assert found == search.search_text(search.open_index(index, model_folder), "abcde", k=3)


def test_another_model_is_refused(make_model, index):
    with pytest.raises(UserError, match="was built with another model"):
        search.open_index(index, make_model(seed=1))
    with pytest.raises(UserError, match=r"gives vectors of 16 numbers.*vectors of 32"):
        search.open_index(index, make_model(hidden_size=16))


def test_what_is_missing_is_named(model_folder, embeddings, index, tmp_path):
    with pytest.raises(UserError, match=r"holds no manifest\.json: build the index first"):
        search.open_index(tmp_path, model_folder)
    with pytest.raises(UserError, match=r"holds no manifest\.json: encode the corpus first"):
        search.build_index(tmp_path, tmp_path / "index")
    with pytest.raises(UserError, match="faiss does not know the index string 'Flt'"):
        search.build_index(embeddings, tmp_path / "index", factory="Flt")
    with pytest.raises(UserError, match="60 passages are too few to train"):
        search.build_index(embeddings, tmp_path / "index", factory="IVF100,Flat")
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match="already exists"):
        search.build_index(embeddings, index)
    shutil.copytree(index, tmp_path / "broken")
    (tmp_path / "broken" / "index.faiss").unlink()
    with pytest.raises(UserError, match=r"index\.faiss is missing or damaged"):
        search.open_index(tmp_path / "broken", model_folder)
