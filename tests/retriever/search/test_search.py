"""Search: exact results against NumPy, approximate ones, and folders that do not fit."""

import resource
import shutil
from itertools import chain
from types import SimpleNamespace

import faiss
import numpy as np
import pyarrow.ipc
import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.runs import write_checksums
from cocondenser_jax.files.whole import write_json
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.representation import Given
from cocondenser_jax.retriever.data import trec
from cocondenser_jax.retriever.data.folder import (
    Asked,
    passage_text,
    read_corpus,
    read_queries,
)
from cocondenser_jax.retriever.data.layouts import Passage
from cocondenser_jax.retriever.search import bm25, encode, exact, models, opening, search
from cocondenser_jax.retriever.search import index as index_module
from cocondenser_jax.retriever.search.embeddings import passage_table
from cocondenser_jax.retriever.search.encode import Encoding
from cocondenser_jax.retriever.search.fuse import fuse_runs
from cocondenser_jax.retriever.search.index import build_index
from cocondenser_jax.retriever.search.opening import Faiss
from tests.lines import whole
from tests.processes import start
from tests.retrieval_data import read_vectors


def test_a_flat_index_finds_the_largest_inner_products(model_folder, beir, index, tmp_path):
    model = models.load_retriever(model_folder, passage_length=16)
    passages = list(read_corpus(beir))
    queries = read_queries(beir)
    scores = (
        model.encode_query(list(queries.values()))
        @ np.stack([model.encode_document(passage_text(p)) for p in passages]).T
    )
    searcher = opening.open_index(index, open_model(model_folder))
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


@pytest.mark.parametrize("name", ["index.faiss", "passages.arrow"])
def test_a_full_disk_leaves_no_index(embeddings, index, tmp_path, small_disk, capfd, name):
    sizes = {path.name: path.stat().st_size for path in index.iterdir()}
    assert sizes["index.faiss"] < sizes["passages.arrow"]  # which is written after it
    small_disk(sizes[name] - 1)
    with pytest.raises(UserError, match=f"cannot write {tmp_path}/index: .*File too large"):
        build_index(embeddings, tmp_path / "index")
    small_disk(resource.RLIM_INFINITY)
    assert not any(tmp_path.iterdir())
    assert "close error" not in capfd.readouterr().err  # faiss's own message


def test_embeddings_give_the_run_of_a_flat_index(model_folder, beir, embeddings, index):
    queries = read_queries(beir)
    flat = opening.open_index(index, open_model(model_folder))
    shards = opening.open_index(embeddings, open_model(model_folder))
    for depth in (3, 30, 1000):  # shards hold 25 passages
        expected = search.search_run(flat, queries, depth)
        run = search.search_run(shards, queries, depth)
        assert {q: list(found) for q, found in run.items()} == {
            q: list(found) for q, found in expected.items()
        }
        for query, found in run.items():
            assert found == pytest.approx(expected[query], rel=1e-6)
    for left, right in zip(
        search.search_text(shards, "abcde", k=40),
        search.search_text(flat, "abcde", k=40),
        strict=True,
    ):
        assert left.passage == right.passage
        assert left.score == pytest.approx(right.score, rel=1e-6)


def test_blocks_of_vectors_and_of_queries_do_not_matter(
    model_folder, beir, embeddings, index, tmp_path, monkeypatch
):
    queries = read_queries(beir)
    whole = search.search_run(opening.open_index(index, open_model(model_folder)), queries)
    monkeypatch.setattr(exact, "_BLOCK_ROWS", 10)  # three blocks of each shard
    monkeypatch.setattr(index_module, "_QUERIES_AT_ONCE", 7)
    build_index(embeddings, tmp_path / "index")
    vectors_NxD = faiss.read_index(str(tmp_path / "index" / "index.faiss")).reconstruct_n(0, 60)
    np.testing.assert_array_equal(vectors_NxD, read_vectors(embeddings))
    run = search.search_run(
        opening.open_index(tmp_path / "index", open_model(model_folder)), queries
    )
    assert list(run) == list(whole) == list(queries)
    assert [list(found) for found in run.values()] == [list(found) for found in whole.values()]


def test_queries_are_searched_for_some_at_a_time(model_folder, beir, embeddings, monkeypatch):
    queries = dict(list(read_queries(beir).items())[:7])
    index = opening.open_index(embeddings, open_model(model_folder))
    nearest, sizes = index.nearest, []

    def watched(vectors_QxD, k):
        sizes.append(len(vectors_QxD))
        return nearest(vectors_QxD, k)

    index = index._replace(nearest=watched)
    whole = search.search_run(index, queries)
    monkeypatch.setattr(search, "_SEARCHED_AT_ONCE", 3)
    monkeypatch.setattr(search, "_ENCODED_AT_ONCE", 3)
    # In another order: memory that is not written to may hold the vectors of before.
    run = search.search_run(index, dict(reversed(queries.items())))
    assert sizes == [7, 3, 3, 1]
    for ignores in (False, True):  # results come before the last queries are searched for
        results, _ = search._search(index, queries, 100, ignore_identical_ids=ignores)
        sizes.clear()
        assert next(iter(results))[0] == next(iter(queries))
        assert sizes == [3]
    assert list(run) == list(reversed(queries))
    assert all(list(run[query]) == list(found) for query, found in whole.items())


@pytest.mark.parametrize(
    ("kind", "factory", "sizes"),
    [
        (faiss.IndexPQ, "PQ8x4", [9, 9, 4]),  # every third of 25, 25 and 10: 25 are wanted at most
        (faiss.IndexIVFPQ, "IVF12,PQ8x4", [25, 25, 10]),  # 5 for each list are wanted
        (faiss.IndexIVFPQ, "IVF2,PQ8x4", [9, 9, 4]),
    ],
)
def test_a_compressed_index_is_trained_on_a_sample_of_every_shard(
    embeddings, tmp_path, monkeypatch, kind, factory, sizes
):
    samples = []
    train = kind.train
    monkeypatch.setattr(index_module, "_TRAINING_ROWS", 25)
    monkeypatch.setattr(index_module, "_ROWS_PER_LIST", 5)
    monkeypatch.setattr(kind, "train", lambda i, x: (samples.append(x), train(i, x)))
    build_index(embeddings, tmp_path / "index", factory)
    (sample,) = samples
    rows = read_vectors(embeddings)
    (places,) = zip(*(np.flatnonzero((rows == x).all(1)) for x in sample), strict=True)
    assert len(set(places)) == len(places)
    assert [sum(low <= p < low + 25 for p in places) for low in (0, 25, 50)] == sizes


def test_an_index_is_trained_on_as_many_vectors_as_faiss_uses():
    """On fewer than the least per centroid, faiss warns; an 8-bit code has 256 centroids."""
    of_faiss = faiss.ClusteringParameters()
    assert 256 * of_faiss.max_points_per_centroid <= index_module._TRAINING_ROWS
    limits = of_faiss.min_points_per_centroid, of_faiss.max_points_per_centroid
    assert limits[0] <= index_module._ROWS_PER_LIST <= limits[1]


def test_equal_scores_come_in_the_order_of_the_corpus(model_folder, tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    texts = ["abcde"] * 5 + ["hgfed hgf"] * 4
    lines = [f'{{"_id": "d{i}", "text": "{text}"}}\n' for i, text in enumerate(texts)]
    corpus.write_text("".join(lines))
    # One passage a batch: rows of a batch may differ in the last bit.
    encode.encode_corpus(
        Encoding(open_model(model_folder), batch_size=1), corpus, tmp_path / "e", shard_size=2
    )
    build_index(tmp_path / "e", tmp_path / "index")
    for searcher in (
        opening.open_index(tmp_path / "index", open_model(model_folder)),
        opening.open_index(tmp_path / "e", open_model(model_folder)),
    ):
        run = search.search_run(searcher, {"q": "abcde"}, depth=9)["q"]
        same = [[f"d{i}" for i in range(5)], [f"d{i}" for i in range(5, 9)]]
        assert list(run) in (same[0] + same[1], same[1] + same[0])
        found = search.search_text(searcher, "abcde")
        assert [result.passage.id for result in found] == list(run)
        assert search.search_run(searcher, {}) == {}


def test_times_are_those_of_the_parts(model_folder, hybrid_folder, tmp_path, monkeypatch):
    dense = opening.open_index(hybrid_folder, open_model(model_folder))
    hybrid = opening.open_index(hybrid_folder, open_model(model_folder), hybrid="rrf")
    # Of each step, the beginning and the end; at last, it is asked for one more ranking.
    dense_times = [(10.0, 12.0), (12.0, 17.0), (17.0, 17.0)]
    hybrid_times = [(20.0, 21.0), (21.0, 28.0), (28.0, 30.0), (30.0, 30.0), (30.0, 30.0)]
    clock = chain(*dense_times, *hybrid_times)
    monkeypatch.setattr(search.time, "perf_counter", lambda: next(clock))
    of_run = search.retrieve(dense, Asked({"q": "abcde"}, {}), tmp_path / "run", depth=3)
    hits, of_text = search.search_text_timed(hybrid, "abcde", k=3)
    assert of_run["encoding_seconds"] == 2.0
    assert of_run["search_seconds"] == of_run["search_ms_per_query"] / 1000 == 5.0
    assert of_text == {"encoding": 1.0, "search": 2.0, "bm25": 7.0}
    monkeypatch.undo()
    assert [*trec.read_run(tmp_path / "run")["q"]] == [
        *search.search_run(dense, {"q": "abcde"}, depth=3)["q"]
    ]
    assert hits == search.search_text(hybrid, "abcde", k=3)
    assert search.search_run(dense, {}) == {}


# All lists of an IVF index: one list, faiss's own choice, may hold a single passage.
@pytest.mark.parametrize(
    ("factory", "parameters"),
    [("HNSW8", ""), ("IVF4,Flat", "nprobe=4"), ("PQ8x4", ""), ("IVF2,PQ8x4", "nprobe=2")],
)
def test_every_kind_of_index_is_built_and_searched(
    model_folder, embeddings, tmp_path, factory, parameters
):
    manifest = build_index(embeddings, tmp_path / "index", factory)
    assert manifest.factory == factory
    searcher = opening.open_index(
        tmp_path / "index", open_model(model_folder), vectors=Faiss(parameters)
    )
    scores = list(search.search_run(searcher, {"q": "abcde"}, depth=5)["q"].values())
    assert len(scores) == 5
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize(
    ("factory", "parameters"),
    [
        *(("Pad64,Flat", ""), ("RR64,Flat", ""), ("RR32,Flat", ""), ("HR,Flat", "")),
        *(("RR32,Pad64,IVF2,Flat", "nprobe=2"), ("RR32,PQ4x4fs,RFlat", "k_factor_rf=60")),
    ],
)
def test_what_turns_vectors_changes_no_score(
    model_folder, beir, embeddings, tmp_path, factory, parameters
):
    build_index(embeddings, tmp_path / "index", factory)
    model, queries = open_model(model_folder), read_queries(beir)
    built = opening.open_index(tmp_path / "index", model, vectors=Faiss(parameters))
    run = search.search_run(built, queries, depth=10)
    exactly = search.search_run(opening.open_index(embeddings, model), queries, depth=10)
    for query, scores in exactly.items():
        assert list(run[query].values()) == pytest.approx(list(scores.values()), rel=1e-5)


@pytest.mark.parametrize("factory", ["Flat", "OPQ32,PQ32", "HNSW32", "IVF1024,PQ32"])
@pytest.mark.parametrize("has_unit_length", [True, False])
def test_what_is_advised_is_an_index(factory, has_unit_length):
    index = faiss.index_factory(32, factory, faiss.METRIC_INNER_PRODUCT)
    index_module._require_inner_products(index, factory, has_unit_length=has_unit_length)


@pytest.mark.parametrize(
    ("factory", "why"),
    [
        *(("PCA32,Flat", "PCAMatrix"), ("PCAR16,IVF2,Flat", "PCAMatrix")),
        *(("PCAW16,SQ8", "PCAMatrix"), ("ITQ32,Flat", "ITQTransform")),
        *(("RR32,PCA16,RR16,HNSW8", "PCAMatrix"), ("PCA16,PQ4x4,RFlat", "PCAMatrix")),
        *(("HNSW8,PQ4x4", "IndexHNSWPQ of distances"), ("NSG8,PQ4x4", "IndexNSGPQ of distances")),
        ("PQ4x4,Refine(PCA16,Flat)", "PCAMatrix"),
    ],
)
def test_what_ranks_by_something_else_is_no_index(embeddings, tmp_path, factory, why):
    said = (
        f"an index {factory!r} does not rank by cosines ({why}): expected, for instance, Flat,"
        " OPQ32,PQ32, HNSW32 or IVF1024,PQ32"
    )
    with pytest.raises(UserError, match=whole(said)):
        build_index(embeddings, tmp_path / "index", factory)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("factory", "part"),
    [
        *(("SQ8_direct", "SQ8_direct"), ("IVF2,SQ8_direct_signed", "SQ8_direct_signed")),
        *(("HNSW0", "HNSW0"), ("L2norm,HNSW1,Flat", "HNSW1"), ("IVF4_HNSW01,Flat", "HNSW01")),
        ("NSG4,Flat", "NSG4"),
    ],
)
def test_what_faiss_builds_and_cannot_search_is_no_index(embeddings, tmp_path, factory, part):
    said = f"an index {factory!r} has {part}, which ranks wrongly or not at all: expected, for…"
    with pytest.raises(UserError, match=whole(said)):
        build_index(embeddings, tmp_path / "index", factory)
    assert not any(tmp_path.iterdir())
    build_index(embeddings, tmp_path / "index", "HNSW10,SQ8")


def test_cosines_alone_have_no_lengths_to_lose(model_folder, beir, embeddings, tmp_path):
    build_index(embeddings, tmp_path / "index", "L2norm,Flat")
    model = open_model(model_folder, Given(similarity="dot"))
    encode.encode_corpus(Encoding(model), beir, tmp_path / "dot")
    message = whole(
        "an index 'L2norm,Flat' does not rank by inner products "
        "(NormalizationTransform): expected, for instance, Flat, OPQ32,PQ32, "
        "HNSW32 or IVF1024,PQ32"
    )
    with pytest.raises(UserError, match=message):
        build_index(tmp_path / "dot", tmp_path / "other", "L2norm,Flat")


def test_what_is_cut_from_unit_vectors_has_other_lengths(model_folder, beir, tmp_path):
    """A Normalize module scales whole vectors; "dot" takes the rest of them as it is."""
    model = open_model(model_folder)
    cut = model.representation._replace(normalized=True, similarity="dot", sizes=(8,))
    assert cut.is_cosine
    assert not cut.has_unit_length
    assert cut._replace(sizes=()).has_unit_length
    assert cut._replace(similarity="cosine").has_unit_length
    with pytest.raises(UserError, match="--dtype=binary loses the lengths of vectors"):
        encode.encode_corpus(
            Encoding(model._replace(representation=cut), dtype="binary"), beir, tmp_path / "bits"
        )


@pytest.mark.parametrize("factory", ["IVF2,PQ4x4fs", "RR32,IVF2,PQ4x4fsr", "IVF2,RQ2x4fs"])
def test_codes_that_faiss_cannot_decode_are_searched(model_folder, embeddings, tmp_path, factory):
    build_index(embeddings, tmp_path / "index", factory)
    process = start(_find_five, tmp_path / "index", model_folder)  # which could crash
    process.join()
    assert process.exitcode == 0


def _find_five(index, model):
    searcher = opening.open_index(index, open_model(model))
    assert len(search.search_text(searcher, "abcde", k=5)) == 5


def test_depth_beyond_the_corpus_gives_the_corpus(model_folder, index):
    searcher = opening.open_index(index, open_model(model_folder))
    assert len(search.search_run(searcher, {"q": "abcde"}, depth=1000)["q"]) == 60
    assert len(search.search_text(searcher, "abcde", k=1000)) == 60
    with pytest.raises(UserError, match=whole("0 passages to find: expected at least 1")):
        search.search_run(searcher, {"q": "abcde"}, depth=0)
    with pytest.raises(UserError, match=whole("0 passages to find: expected at least 1")):
        search.search_text(searcher, "abcde", k=0)
    for query in (" \n", "a \ud800"):
        with pytest.raises(
            UserError, match=whole("the query is empty or not UTF-8: expected some words")
        ):
            search.search_text(searcher, query)


def test_missing_neighbors_are_left_out(model_folder, embeddings, tmp_path):
    # One of eight cells is visited, so a depth of 60 cannot be reached.
    build_index(embeddings, tmp_path / "index", factory="IVF8,Flat")
    searcher = opening.open_index(tmp_path / "index", open_model(model_folder))
    run = search.search_run(searcher, {"q": "abcde", "r": "hgfed"}, depth=60)
    for results in run.values():
        assert 0 < len(results) < 60
        assert min(results.values()) > -1e30  # what faiss gives where there is no neighbor
    assert 0 < len(search.search_text(searcher, "abcde", k=60)) < 60


def test_more_cells_find_more(model_folder, embeddings, tmp_path):
    build_index(embeddings, tmp_path / "index", factory="IVF8,Flat")
    queries = {"q": "abcde", "r": "hgfed"}
    exact = search.search_run(
        opening.open_index(embeddings, open_model(model_folder)), queries, depth=60
    )

    def found(parameters):
        searcher = opening.open_index(
            tmp_path / "index", open_model(model_folder), vectors=Faiss(parameters)
        )
        return search.search_run(searcher, queries, depth=60)

    few, all_cells = found("nprobe=2"), found("nprobe=8")
    for query, results in exact.items():
        assert len(few[query]) < 60
        assert list(all_cells[query]) == list(results)
    for wrong in ("efSearch=16", "nprobe=0", "nprobe=-1", "nprobe", "nprobe=2,", "16"):
        with pytest.raises(
            UserError,
            match=whole(
                f"an index IVF8,Flat cannot be searched with {wrong!r}: expected faiss's"
                " notation, such as nprobe=16 (IVF) or efSearch=64 (HNSW)"
            ),
        ):
            found(wrong)


def test_no_index_is_built_from_a_damaged_shard(embeddings, tmp_path):
    shutil.copytree(embeddings, tmp_path / "embeddings")
    path = tmp_path / "embeddings" / "embeddings-00002.arrow"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        UserError,
        match=whole(
            "TMP/embeddings/embeddings-00002.arrow is missing or damaged: encode again with"
            " the same flags, which renews such shards only"
        ),
    ):
        build_index(tmp_path / "embeddings", tmp_path / "index")
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("method", ["rrf", "min_max"])
@pytest.mark.parametrize("place", ["embeddings", "index"])
def test_a_hybrid_search_is_the_fusion_of_both_runs(
    model_folder, beir, place, method, monkeypatch, request
):
    assert search._FUSED_DEPTH == 100
    monkeypatch.setattr(search, "_FUSED_DEPTH", 10)
    folder = request.getfixturevalue(place)
    # One query has no word that BM25 knows, and one has none at all.
    queries = {**read_queries(beir), "unknown": "zzzz yyyy", "none": "?"}
    dense = opening.open_index(folder, open_model(model_folder))
    hybrid = opening.open_index(folder, open_model(model_folder), hybrid=method)
    for depth, of_each in ((3, 10), (25, 25)):
        lexical_run = bm25.bm25_run(read_corpus(beir), queries, of_each)
        assert lexical_run["unknown"] == lexical_run["none"] == {}
        dense_run = search.search_run(dense, queries, of_each)
        expected = fuse_runs([lexical_run, dense_run], method, depth=depth)
        run = search.search_run(hybrid, queries, depth)
        assert [(q, list(found.items())) for q, found in run.items()] == [
            (q, list(expected[q].items())) for q in queries
        ]
        assert list(run["none"]) == list(dense_run["none"])[:depth]
        assert any(list(run[q]) != list(dense_run[q])[:depth] for q in queries)
    assert hybrid.passages is hybrid.dense.passages
    hits = search.search_text(hybrid, "?", k=2)
    assert [hit.passage.id for hit in hits] == list(run["none"])[:2]


def test_a_bm25_index_that_does_not_fit_is_refused(model_folder, hybrid_folder, small_disk):
    def open_hybrid(method="rrf"):
        return opening.open_index(hybrid_folder, open_model(model_folder), hybrid=method)

    with pytest.raises(UserError, match=r"^hybrid='rff': expected min_max or rrf$"):
        open_hybrid("rff")
    small_disk(1_000)
    with pytest.raises(UserError, match=f"cannot write {hybrid_folder}/bm25"):
        open_hybrid()
    small_disk(resource.RLIM_INFINITY)
    assert len(list(hybrid_folder.iterdir())) == 3
    open_hybrid()
    assert sorted(p.name for p in (hybrid_folder / "bm25").iterdir())[0] == "data.csc.index.npy"
    scores = hybrid_folder / "bm25" / "data.csc.index.npy"
    whole = scores.read_bytes()
    scores.unlink()
    scores.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    advice = "remove it, and the next hybrid search makes it again"
    with pytest.raises(UserError, match=rf"bm25 is damaged \(data.* was saved\): {advice}"):
        open_hybrid()
    shutil.rmtree(hybrid_folder / "bm25")
    open_hybrid()
    write_json(hybrid_folder / "bm25" / "language.json", {"language": "german"})
    with pytest.raises(UserError, match=rf"bm25 is damaged \(language.* was saved\): {advice}"):
        open_hybrid()
    shutil.rmtree(hybrid_folder / "bm25")
    table = pyarrow.ipc.open_file((hybrid_folder / "passages.arrow").read_bytes()).read_all()
    bm25.open_bm25_index(hybrid_folder, table[:59], language=None)
    with pytest.raises(UserError, match=f"bm25 was made of other passages: {advice}"):
        open_hybrid()
    shutil.rmtree(hybrid_folder / "bm25")
    settings = bm25.Bm25Settings(language="german")
    passages = [bm25.passage_at(table, row) for row in range(60)]
    index, _ = bm25._build_index(passages, settings)
    index.scores.save(hybrid_folder / "bm25", show_progress=False)  # without its language
    write_checksums(hybrid_folder / "bm25")
    with pytest.raises(UserError, match=f"cannot read .*language.json: .*: {advice}"):
        open_hybrid()


def test_copies_of_relevant_passages_are_counted_in_a_run(tmp_path, caplog, monkeypatch):
    passages = [Passage("a", "T", "one"), Passage("b", "", "t One"), Passage("c", "", "two")]
    index = SimpleNamespace(passages=passage_table(passages))
    run = {"q1": {"c": 3.0, "b": 2.0, "a": 1.0}, "q2": {"c": 1.0}, "other": {"b": 1.0}}
    run["q2"] |= {"b": 0.5} | {f"x{i}": 0.9 for i in range(9)}  # the eleventh
    monkeypatch.setattr(search, "_search", lambda *_, **__: (iter(run.items()), {}))
    queries = dict.fromkeys(run, "a query")
    out = tmp_path / "run"
    judged = Asked(queries, {"q1": {"a": 1}, "q2": {"a": 1, "gone": 1}})
    search.retrieve(index, judged, out, warns=True)
    assert f"1 of 2 queries of {out} have, among their first 10" in caplog.text
    assert [*trec.read_run(out)["q1"]] == ["c", "b", "a"]
    caplog.clear()
    search.retrieve(index, Asked(queries, {"q1": {"a": 1, "b": 0}}), out, warns=True)
    search.retrieve(index, judged, out)
    assert not caplog.messages
