"""Search with a log of queries, against CSLS as its paper writes it."""

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.data.trec import read_run
from cocondenser_jax.retriever.search.encode import Encoding, encode_corpus
from experiments import query_log
from experiments.query_log import N_NEAREST, nearness_to_log, search_with_log, with_logs
from tests.world import write_records, write_retriever

N_PASSAGES, N_QUERIES, N_LOG = 23, 6, 14


def draw(n, seed, size=8):
    vectors = np.random.default_rng(seed).normal(size=(n, size))
    return np.float32(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def csls(queries, passages, log):
    """The paper's formula, for vectors of length 1: 2 cos(q, p) - r(q) - r(p).

    r(q) is the mean cosine of q and its nearest passages, r(p) that of p and its nearest queries.
    """

    def r(vector, others):
        return np.mean(sorted((float(vector @ other) for other in others), reverse=True)[:10])

    return [[2 * q @ p - r(q, passages) - r(p, log) for p in passages] for q in queries]


def test_the_order_is_that_of_csls():
    queries, passages, log = draw(N_QUERIES, 0), draw(N_PASSAGES, 1), draw(N_LOG, 2)
    scores, rows = search_with_log(queries, passages, log, N_PASSAGES)
    expected = np.argsort(-np.array(csls(queries, passages, log)), axis=1)
    np.testing.assert_array_equal(rows, expected)
    assert (rows != np.argsort(-(queries @ passages.T), axis=1)).any()
    nearness = [np.mean(sorted(log @ p)[-N_NEAREST:]) for p in passages]
    by_hand = queries @ passages.T - np.array(nearness) / 2
    np.testing.assert_allclose(scores, -np.sort(-by_hand, axis=1), rtol=0, atol=1e-6)


def test_a_short_log_counts_whole(monkeypatch):
    passages, log = draw(N_PASSAGES, 1), draw(3, 2)
    monkeypatch.setattr(query_log, "_BLOCK_ROWS", 4)
    expected = (passages @ log.T).mean(axis=1)
    np.testing.assert_allclose(nearness_to_log(log, passages), expected, rtol=0, atol=1e-6)


def test_a_query_is_not_searched_for_with_a_log_that_has_it():
    tested = {"a": "one", "b": "Two ", "c": "three"}
    [(queries, log)] = with_logs(tested, {"x": " two", "y": "four", "z": "ONE"})
    assert (queries, log) == (tested, {"y": "four"})
    halves = [*with_logs(tested, None)]
    assert halves == [
        ({"a": "one", "c": "three"}, {"b": "Two "}),
        ({"b": "Two "}, {"a": "one", "c": "three"}),
    ]


def test_a_log_has_a_query():
    with pytest.raises(UserError, match="has no query that is not tested"):
        [*with_logs({"a": "one"}, {"x": "One"})]
    with pytest.raises(UserError, match="has no query that is not tested"):
        [*with_logs({"a": "one"}, None)]


@pytest.mark.parametrize("log_split", ["train", None])
def test_the_run_has_all_test_queries(make_model, words, tmp_path, log_split):
    rng = np.random.default_rng(3)
    passages = {f"p{i}": " ".join(rng.choice(words, 12)) for i in range(N_PASSAGES)}
    splits = {
        split: {f"{split}{i}": " ".join(rng.choice(words, 4)) for i in range(n)}
        for split, n in (("test", N_QUERIES), ("train", N_LOG))
    }
    data = tmp_path / "data"
    write_records(data / "corpus.jsonl", ({"_id": k, "text": v} for k, v in passages.items()))
    queries = splits["test"] | splits["train"]
    write_records(data / "queries.jsonl", ({"_id": k, "text": v} for k, v in queries.items()))
    (data / "qrels").mkdir()
    for split, of_split in splits.items():
        lines = ["query-id\tcorpus-id\tscore", *(f"{name}\tp0\t1" for name in of_split)]
        (data / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    model = write_retriever(make_model(), tmp_path / "model", "mean", similarity_fn_name="cosine")
    encode_corpus(Encoding(model), data, tmp_path / "vectors")

    flags = [f"--log_split={log_split}"] if log_split else []
    flags += [f"--model={model}", f"--embeddings={tmp_path / 'vectors'}", f"--data={data}"]
    query_log.main([*flags, f"--run_out={tmp_path / 'run.trec'}"])

    library = SentenceTransformer(str(model))

    def unit(texts):
        return library.encode([*texts], normalize_embeddings=True)

    run = read_run(tmp_path / "run.trec")
    assert run.keys() == splits["test"].keys()
    for number, (name, text) in enumerate(splits["test"].items()):
        others = [each for i, each in enumerate(splits["test"].values()) if i % 2 != number % 2]
        log = unit(splits["train"].values() if log_split else others)
        vectors = unit(passages.values())
        nearness = [np.mean(sorted(log @ p)[-10:]) for p in vectors]
        expected = unit([text])[0] @ vectors.T - np.array(nearness) / 2
        found = [run[name][passage] for passage in passages]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
