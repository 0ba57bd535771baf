"""Vectors with NaN or infinity, in every place where vectors are made."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer

from cocondenser_jax.cli import main
from cocondenser_jax.errors import UserError
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.retriever.data.folder import Passage, read_corpus
from cocondenser_jax.retriever.search import encode, models, opening, search
from cocondenser_jax.retriever.search.encode import Encoding, encode_corpus
from cocondenser_jax.retriever.search.finite import broken_rows, require_finite
from cocondenser_jax.retriever.search.index import build_index
from tests.lines import whole
from tests.retrieval_data import read_vectors
from tests.world import write_records, write_retriever

BROKEN = "hh"  # a token whose embedding is infinite in `broken_folder`
N = 30
LINEAR = {"out_features": 4, "bias": False, "activation_function": torch.nn.Identity()}


def with_word(folder, copy, word, value):
    """Copies a model; the embedding of one word has a value."""
    shutil.copytree(folder, copy)
    row = AutoTokenizer.from_pretrained(copy).convert_tokens_to_ids(word)
    weights = load_file(copy / "model.safetensors")
    weights["embeddings.word_embeddings.weight"][row] = value
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    return copy


@pytest.fixture(scope="module")
def broken_folder(model_folder, tmp_path_factory):
    return with_word(model_folder, tmp_path_factory.mktemp("broken") / "model", BROKEN, np.inf)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Passages of which number 17 has the token, and a query with it."""
    folder = tmp_path_factory.mktemp("data")
    texts = [f"ab cd {BROKEN if i == 17 else 'ef'} gh" for i in range(N)]
    rows = ({"_id": f"p{i}", "title": "", "text": text} for i, text in enumerate(texts))
    write_records(folder / "corpus.jsonl", rows)
    queries = {"q1": "cd", "q2": f"ab {BROKEN}"}
    write_records(
        folder / "queries.jsonl", ({"_id": name, "text": text} for name, text in queries.items())
    )
    return folder


# What NumPy would say of numbers that are refused anyway.
without_warnings = pytest.mark.filterwarnings("error::RuntimeWarning")


@without_warnings
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_number_is_enough(dtype, value):
    vectors_NxD = np.arange(12, dtype=dtype).reshape(4, 3)
    assert not len(broken_rows(vectors_NxD))
    require_finite(vectors_NxD, "row", "abcd", "unused")
    vectors_NxD[2:, 1] = value
    assert broken_rows(vectors_NxD).tolist() == [2, 3]
    with pytest.raises(
        UserError, match=whole("2 of 4 vectors are not finite, first that of row c: so")
    ):
        require_finite(vectors_NxD, "row", "abcdefghi", "so")


@without_warnings
def test_a_vector_may_be_as_long_as_float32_can_compare():
    vectors_NxD = np.full((9, 4), 9e18, np.float32)
    assert not np.isfinite(np.vdot(vectors_NxD, vectors_NxD))  # that of each alone is
    assert not len(broken_rows(vectors_NxD))
    assert np.isfinite(vectors_NxD @ vectors_NxD.T).all()
    vectors_NxD[1] *= 1.1
    with pytest.raises(
        UserError, match=whole("1 of 9 vectors are not finite, first that of row b: so")
    ):
        require_finite(vectors_NxD, "row", "abcdefghi", "so")
    assert not len(broken_rows(np.empty((0, 3), np.float32)))
    assert not len(broken_rows(np.full((2, 3), 65_504, np.float16)))


def test_no_vector_that_is_not_finite_is_written(broken_folder, data, tmp_path, capsys):
    command = ["encode", f"--model={broken_folder}", f"--corpus={data}", "--shard_size=10"]
    for flags in ([], ["--backend=jax"], ["--precision=bfloat16"], ["--task=1/3"]):
        out = tmp_path / " ".join(flags)
        assert main([*command, f"--out={out}", *flags]) == 2
        said = capsys.readouterr().err
        expected = "1 of 10 vectors are not finite, first that of passage p17: the weights of"
        if "--backend=jax" in flags:
            expected = "1 tensors are not finite: bert.embeddings.word_embeddings.weight"
        assert expected in said
        assert ("--precision=float32 may help" in said) == ("--precision=bfloat16" in flags)
        assert not [*out.rglob("embeddings-00001.arrow")], "the shard before it may stay"


@without_warnings
def test_numbers_too_large_for_float16_are_not_written(model_folder, data, tmp_path):
    folder = write_retriever(
        model_folder, tmp_path / "model", "mean", [LINEAR], similarity_fn_name="dot"
    )
    dense = folder / "2_Dense" / "model.safetensors"
    save_file({name: 1e6 * value for name, value in load_file(dense).items()}, dense)
    encode_corpus(Encoding(open_model(folder)), data, tmp_path / "float32")
    assert np.abs(read_vectors(tmp_path / "float32")).max() > 65_504
    error = whole(
        "30 of 30 vectors are not finite, first that of passage p0: too large "
        "for float16, use --dtype=float32"
    )
    with pytest.raises(UserError, match=error):
        encode_corpus(Encoding(open_model(folder), dtype="float16"), data, tmp_path / "float16")
    save_file({name: 1e-14 * value for name, value in load_file(dense).items()}, dense)
    with pytest.raises(UserError, match=r"^vectors of numbers up to .* are too small for float16"):
        encode_corpus(Encoding(open_model(folder), dtype="float16"), data, tmp_path / "small")
    manifest = SimpleNamespace(model="m", precision="float32", dtype="float16")
    passages = [Passage(str(i), "", "") for i in range(3)]
    rows_NxD = np.array([[1.0, 1e-9], [0, 0], [6e4, 1]], np.float32)
    stored_NxD, _ = encode._to_store(rows_NxD, passages, manifest)
    np.testing.assert_array_equal(stored_NxD, rows_NxD.astype(np.float16))
    rows_NxD[1] = 1e-9  # one small vector among others
    with pytest.raises(UserError, match=r"^vectors of numbers up to 1.0e-09 are too small"):
        encode._to_store(rows_NxD, passages, manifest)


def test_a_query_must_have_a_finite_vector(broken_folder, data, tmp_path, capsys):
    lines = (data / "corpus.jsonl").read_text().splitlines()
    del lines[17]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines))
    shutil.copy(data / "queries.jsonl", tmp_path)
    encode_corpus(Encoding(open_model(broken_folder)), tmp_path, tmp_path / "embeddings")
    build_index(tmp_path / "embeddings", tmp_path / "index")
    for place in ("embeddings", "index"):
        command = ["retrieve", f"--{place}={tmp_path / place}", f"--model={broken_folder}"]
        run = tmp_path / "run.trec"
        assert main([*command, f"--data={tmp_path}", f"--run_out={run}"]) == 2
        assert "1 of 2 vectors are not finite, first that of the query ab hh:" in (
            capsys.readouterr().err
        )
        assert not run.exists()


def test_a_model_that_makes_no_finite_vector_is_not_loaded(model_folder, tmp_path):
    folder = with_word(model_folder, tmp_path / "model", "[SEP]", np.nan)
    with pytest.raises(
        UserError,
        match=whole("TMP/model makes vectors that are not finite: its weights are damaged"),
    ):
        models.load_retriever(folder)


def test_a_vector_of_zeros_is_as_far_from_all_as_for_the_library(model_folder, data, tmp_path):
    folder = write_retriever(model_folder, tmp_path / "model", "mean", [LINEAR])
    dense = folder / "2_Dense" / "model.safetensors"
    save_file({name: 0 * value for name, value in load_file(dense).items()}, dense)
    encode_corpus(Encoding(open_model(folder)), data, tmp_path / "embeddings")
    np.testing.assert_array_equal(read_vectors(tmp_path / "embeddings"), np.zeros((N, 4)))
    found = search.search_run(
        opening.open_index(tmp_path / "embeddings", open_model(folder)), {"q": "ab"}
    )
    library = SentenceTransformer(str(folder))
    vectors_NxD = library.encode_document([passage.text for passage in read_corpus(data)])
    scores_1xN = library.similarity(library.encode_query(["ab"]), vectors_NxD)
    assert torch.equal(scores_1xN, torch.zeros(1, N))
    assert found["q"] == {f"p{i}": 0.0 for i in range(N)}


@pytest.mark.parametrize("task", ["query", "document"])
def test_a_model_of_which_one_tower_is_damaged_is_not_loaded(model_folder, tmp_path, task):
    folder = tmp_path / "two"
    two = models.load_retriever(model_folder, two_towers=True)
    two.save_pretrained(str(folder), create_model_card=False)
    file = folder / f"{task}_0_Transformer" / "model.safetensors"
    weights = load_file(file)
    weights["embeddings.word_embeddings.weight"].fill_(np.nan)
    save_file(weights, file, {"format": "pt"})
    said = "TMP/two makes vectors that are not finite: its weights are damaged"
    with pytest.raises(UserError, match=whole(said)):
        models.load_retriever(folder)
