"""Vectors of 8 bits and of one bit a number, beside sentence-transformers and NumPy."""

import numpy as np
import pytest
from sentence_transformers.util.quantization import quantize_embeddings, semantic_search_faiss

from cocondenser_jax.cli import main
from cocondenser_jax.errors import UserError
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.representation import Given
from cocondenser_jax.retriever.data.trec import read_run
from cocondenser_jax.retriever.search import embeddings as embeddings_module
from cocondenser_jax.retriever.search.embeddings import open_shards, read_manifest, shard_vectors
from cocondenser_jax.retriever.search.encode import Encoding, encode_corpus
from cocondenser_jax.retriever.search.exact import nearest
from cocondenser_jax.retriever.search.index import build_index
from cocondenser_jax.retriever.search.opening import Bits, Exact, Faiss, open_index
from cocondenser_jax.retriever.search.quantized import (
    BitVectors,
    Int8Vectors,
    nearest_by_bits,
    quantize,
)
from cocondenser_jax.retriever.search.search import search_run
from tests import lines
from tests.retrieval_data import read_vectors
from tests.world import read_records


def unit(rng, n, size=64):
    vectors_NxD = rng.standard_normal((n, size)).astype(np.float32)
    return vectors_NxD / np.linalg.norm(vectors_NxD, axis=1, keepdims=True)


@pytest.fixture
def vectors_NxD():
    rng = np.random.default_rng(0)
    vectors_NxD = unit(rng, 400) * rng.uniform(0.5, 3, 64).astype(np.float32)
    vectors_NxD[:, 7] = 0.25  # the same in all
    return vectors_NxD


@pytest.fixture
def queries_QxD():
    return unit(np.random.default_rng(1), 70)


def test_a_number_of_8_bits_is_half_a_step_from_what_it_was(vectors_NxD):
    codes_NxD, ranges_2xD = quantize(vectors_NxD, "int8")
    np.testing.assert_array_equal(codes_NxD, quantize_embeddings(vectors_NxD, "int8"))
    read = Int8Vectors(codes_NxD, ranges_2xD)
    assert len(read) == 400
    step_D = (vectors_NxD.max(axis=0) - vectors_NxD.min(axis=0)) / 255
    errors_NxD = read[:] - vectors_NxD
    assert read[:].dtype == np.float32
    assert (np.abs(errors_NxD) <= step_D / 2 + 1e-6).all()
    # The library reads each number as the least that has its code: off by half a step on average.
    assert np.abs(errors_NxD.mean(axis=0)).max() < 0.1 * step_D.max()
    np.testing.assert_array_equal(read[3:9:2], read[:][3:9:2])


def test_the_shard_of_one_passage_keeps_its_numbers(vectors_NxD):
    one_1xD = vectors_NxD[:1]
    np.testing.assert_array_equal(Int8Vectors(*quantize(one_1xD, "int8"))[:], one_1xD)


def test_int8_ranks_as_sentence_transformers_does(vectors_NxD, queries_QxD):
    """That rescores candidates, here all, by codes whose common offset is another."""
    codes_NxD, ranges_2xD = quantize(vectors_NxD, "int8")
    _, rows_QxK = nearest([Int8Vectors(codes_NxD, ranges_2xD)], queries_QxD, 10)
    hits, _ = semantic_search_faiss(
        queries_QxD,
        quantize_embeddings(vectors_NxD, "uint8", ranges=ranges_2xD),
        corpus_precision="uint8",
        ranges=ranges_2xD,
        rescore_multiplier=40,
    )
    assert rows_QxK.tolist() == [[hit["corpus_id"] for hit in hits_K] for hits_K in hits]


def in_shards(bits_NxB):
    return [BitVectors(part) for part in np.split(bits_NxB, [150, 151, 290])]


@pytest.mark.parametrize("oversampling", [2, 40])
def test_bits_rank_as_sentence_transformers_does(vectors_NxD, queries_QxD, oversampling):
    """That multiplies with 0 and 1 in place of -1/√D and 1/√D."""
    bits_NxB = quantize_embeddings(vectors_NxD, "ubinary")
    np.testing.assert_array_equal(quantize(vectors_NxD, "binary")[0], bits_NxB)
    scores_QxK, rows_QxK = nearest_by_bits(in_shards(bits_NxB), oversampling, queries_QxD, 10)
    hits, _ = semantic_search_faiss(
        queries_QxD, bits_NxB, corpus_precision="ubinary", rescore_multiplier=oversampling
    )
    theirs_QxK = np.array([[hit["score"] for hit in hits_K] for hits_K in hits])
    theirs_QxK = (2 * theirs_QxK - queries_QxD.sum(axis=1, keepdims=True)) / 8
    # Of candidates that differ in as many bits, either may have taken others.
    same_Q = np.isclose(scores_QxK, theirs_QxK, atol=1e-5).all(axis=1)
    assert same_Q.mean() == 1 if oversampling == 40 else same_Q.mean() > 0.8
    signs_NxD = np.where(vectors_NxD > 0, 1, -1) / 8
    all_QxN = queries_QxD @ signs_NxD.T
    np.testing.assert_allclose(scores_QxK, np.take_along_axis(all_QxN, rows_QxK, 1), atol=1e-6)
    np.testing.assert_allclose(BitVectors(bits_NxB)[:], signs_NxD, atol=1e-7)


def test_candidates_are_those_that_differ_in_the_fewest_bits(vectors_NxD, queries_QxD):
    bits_NxB = quantize_embeddings(vectors_NxD, "ubinary")
    _, rows_QxK = nearest_by_bits(in_shards(bits_NxB), 3, queries_QxD, 5)
    signs_NxD, signs_QxD = vectors_NxD > 0, queries_QxD > 0
    differing_QxN = (signs_QxD[:, None] != signs_NxD).sum(axis=2)
    last_Q = np.sort(differing_QxN, axis=1)[:, 14]
    for query, rows_K in enumerate(rows_QxK):
        assert len(set(rows_K)) == 5
        assert (differing_QxN[query, rows_K] <= last_Q[query]).all()
        # Of those that are candidates for certain, the best are found.
        certain_C = np.flatnonzero(differing_QxN[query] < last_Q[query])
        scores_N = queries_QxD[query] @ np.where(signs_NxD, 1, -1).T
        assert set(certain_C[scores_N[certain_C] > scores_N[rows_K[-1]]]) <= set(rows_K.tolist())


def test_of_equal_scores_the_first_row_is_first(vectors_NxD, queries_QxD):
    """In every shard, so that the passages that are found depend on no order of a heap."""
    equal_NxB = np.repeat(quantize_embeddings(vectors_NxD[:1], "ubinary"), 300, axis=0)
    scores_QxK, rows_QxK = nearest_by_bits(in_shards(equal_NxB), 60, queries_QxD[:3], 5)
    assert rows_QxK.tolist() == [[0, 1, 2, 3, 4]] * 3
    assert (scores_QxK == scores_QxK[:, :1]).all()


def test_as_many_as_there_are(vectors_NxD, queries_QxD):
    shards = in_shards(quantize_embeddings(vectors_NxD, "ubinary"))
    _, rows_QxK = nearest_by_bits(shards, 4, queries_QxD[:1], 400)
    assert sorted(rows_QxK[0]) == list(range(400))


@pytest.fixture(scope="module")
def make(model_folder, beir, tmp_path_factory):
    """Gives a function that encodes by the command line, in shards of 25 passages."""

    def encode(dtype, *flags):
        out = tmp_path_factory.mktemp(dtype) / "embeddings"
        command = ["encode", f"--model={model_folder}", f"--corpus={beir}", f"--out={out}"]
        assert main([*command, "--shard_size=25", f"--dtype={dtype}", *flags]) == 0
        return out

    return encode


def rank(folder, model, queries, vectors=None):
    return search_run(open_index(folder, open_model(model), vectors=vectors), queries, 10)


def read_codes(folder):
    table = open_shards(folder, read_manifest(folder))
    assert table.column_names == ["id", "title", "text", "code"]
    return np.concatenate([chunk.flatten().to_numpy() for chunk in table["code"].chunks]).reshape(
        len(table), -1
    )


QUERIES = {"a": "ab cd", "b": "ef gh ij", "c": "kl"}


def test_encode_writes_and_search_reads_8_bits(make, model_folder, tmp_path):
    plain, coded = make("float32"), make("int8")
    vectors_NxD = read_vectors(plain)
    assert read_codes(coded).dtype == np.int8
    assert read_manifest(coded).dtype == "int8"
    blocks = [vectors_NxD[start : start + 25] for start in (0, 25, 50)]
    for block_NxD, own in zip(
        blocks, shard_vectors(open_shards(coded, read_manifest(coded))), strict=True
    ):
        np.testing.assert_array_equal(own[:], Int8Vectors(*quantize(block_NxD, "int8"))[:])
    exact, found = rank(plain, model_folder, QUERIES), rank(coded, model_folder, QUERIES)
    for query, scores in found.items():
        assert len(set(scores) & set(exact[query])) >= 9
        for passage in set(scores) & set(exact[query]):
            assert scores[passage] == pytest.approx(exact[query][passage], abs=0.01)
    # An index of them is one of the numbers that the codes mean.
    build_index(coded, tmp_path / "index")
    assert rank(tmp_path / "index", model_folder, QUERIES) == {
        query: pytest.approx(scores, abs=1e-6) for query, scores in found.items()
    }


@pytest.mark.effect("search --oversampling", "retrieve --oversampling")
def test_encode_writes_and_search_reads_bits(make, model_folder, beir, tmp_path, capsys):
    plain, coded = make("float32"), make("binary")
    vectors_NxD = read_vectors(plain)
    np.testing.assert_array_equal(read_codes(coded), np.packbits(vectors_NxD > 0, axis=1))
    found = rank(coded, model_folder, QUERIES, Bits(6))  # all passages are candidates
    build_index(coded, tmp_path / "index")
    flat = rank(tmp_path / "index", model_folder, QUERIES)
    for query in QUERIES:  # equal scores, of which there are many, have any order
        assert [*found[query].values()] == pytest.approx([*flat[query].values()], abs=1e-6)

    command = [f"--embeddings={coded}", f"--model={model_folder}"]
    few, default, many = tmp_path / "few", tmp_path / "default", tmp_path / "many"
    for file, flags in ((few, ["--oversampling=1"]), (default, []), (many, ["--oversampling=12"])):
        retrieve = ["retrieve", *command, f"--data={beir}", f"--run_out={file}", "--depth=5"]
        assert main([*retrieve, *flags]) == 0
    runs = [read_run(file) for file in (few, default, many)]
    # More candidates give better ones, by the score that ranks them.
    sums = [sum(sum(scores.values()) for scores in run.values()) for run in runs]
    assert sums[0] < sums[1] < sums[2]
    capsys.readouterr()
    for flag, run in (("1", runs[0]), ("12", runs[2])):
        (query,) = [q for q in ("q5",) if q in run]
        text = {x["_id"]: x["text"] for x in read_records(beir / "queries.jsonl")}[query]
        search = ["search", *command, f"--query={text}", "--depth=5", f"--oversampling={flag}"]
        assert main(search) == 0
        printed = capsys.readouterr().out
        assert all(name in printed for name in run[query])


def test_what_bits_cannot_say_is_refused(model_folder, beir, unread_corpus, tmp_path):
    for encoding, said in (
        (
            Encoding(open_model(model_folder, Given(similarity="dot"))),
            "loses the lengths of vectors",
        ),
        (
            Encoding(open_model(model_folder, Given(dimensions=12))),
            "8 dimensions into a byte: .* have 12",
        ),
    ):
        with pytest.raises(UserError, match=f"--dtype=binary .*{said}"):
            encode_corpus(encoding._replace(dtype="binary"), beir, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    # Their lengths are kept by int8.
    assert Encoding(open_model(model_folder), dtype="int8")


def test_how_to_search_goes_with_what_a_folder_holds(make, model_folder, tmp_path, capsys):
    places = {Exact: make("int8"), Bits: make("binary"), Faiss: tmp_path / "index"}
    build_index(places[Exact], places[Faiss])
    said = {
        Exact: "embeddings, searched with device, not ",
        Bits: "binary embeddings, searched with oversampling, not ",
        Faiss: "an index, searched with parameters, not ",
    }
    for held, folder in places.items():
        rank(folder, model_folder, QUERIES, held())
        for given in {*places} - {held}:
            expected = f"{folder} holds {said[held]}{given._fields[0]}"
            with pytest.raises(UserError, match=f"^{expected}$"):
                rank(folder, model_folder, QUERIES, given())
    capsys.readouterr()
    search = ["search", f"--model={model_folder}", "--query=ab", f"--embeddings={places[Bits]}"]
    for flags, error in (
        (["--device=cpu"], f"{places[Bits]} holds {said[Bits]}device"),
        (
            ["--device=cuda", "--oversampling=2"],
            "--device is for float or int8 embeddings, --oversampling for binary ones",
        ),
        (["--parameters=nprobe=2"], "--parameters goes with --index"),
    ):
        assert main([*search, *flags]) == 2
        assert capsys.readouterr().err.startswith(f"cocondenser: {error}")


def test_a_database_gets_numbers_not_codes(model_folder, beir, unread_corpus, tmp_path, capsys):
    command = ["encode", f"--model={model_folder}", f"--corpus={beir}", f"--out={tmp_path}/out"]
    assert main([*command, "--dtype=int8", f"--parquet={tmp_path}/file"]) == 2
    said = "--parquet has no int8: expected --dtype=float32 or float16"
    assert capsys.readouterr().err == f"cocondenser: {said}\n"
    assert list(tmp_path.iterdir()) == []


def test_a_shard_without_its_ranges_is_damaged(make, model_folder):
    coded = make("int8")
    manifest = read_manifest(coded)
    shard = embeddings_module.shard_file(coded, 1)
    whole = embeddings_module.map_shard(coded, manifest, 1)
    content = whole.schema.metadata[b"ranges"]
    for ranges in (None, content[:-4]):
        metadata = None if ranges is None else {b"ranges": ranges}
        shard.unlink()  # what is mapped stays
        embeddings_module.write_table(shard, whole.replace_schema_metadata(metadata))
        with pytest.raises(
            UserError,
            match=lines.whole(
                "…/embeddings-00001.arrow is missing or damaged: encode again with the same"
                " flags, which renews such shards only"
            ),
        ):
            open_shards(coded, manifest)
    shard.unlink()
    embeddings_module.write_table(shard, whole)
    assert len(open_shards(coded, manifest)) == 60
