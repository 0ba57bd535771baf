"""A search by vectors that a function makes, against a slow ranking."""

import hashlib
import json

import numpy as np
import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.data import probe
from cocondenser_jax.retriever.data.probe import open_search
from tests.lines import whole
from tests.world import WORDS, write_beir, write_qrels, write_records

N_PASSAGES = 12
JUDGED = {"q0": {"p1", "p5"}, "q1": {"p7"}, "q2": {"p9"}}


@pytest.fixture
def data(tmp_path):
    """Three queries with one or two relevant passages each, the split "dev"; q0 is a passage."""
    rng = np.random.default_rng(1)
    passages = [" ".join(rng.choice(WORDS, 30)) for _ in range(N_PASSAGES)]
    queries = [" ".join(rng.choice(WORDS, 5)) for _ in range(4)]
    folder = write_beir(tmp_path / "data", passages, queries, {})
    with (folder / "corpus.jsonl").open("a") as file:
        file.write(json.dumps({"_id": "q0", "text": queries[0]}) + "\n")
    judgments = {"q0": {"p1": 1, "p5": 2}, "q1": {"p7": 1}, "q2": {"p0": 0, "p9": 1}}
    write_qrels(folder / "qrels" / "dev.tsv", judgments)
    return folder


def test_a_query_that_is_a_passage_does_not_find_itself(data, monkeypatch):
    """By weighted counts of words, scaled to length 1, nothing is as near as the text itself."""
    weights = np.random.default_rng(2).random(len(WORDS))  # so that no two scores are equal
    texts = {}

    def vector(text):
        counts = weights * [text.split().count(word) for word in WORDS]
        return counts / np.linalg.norm(counts)

    def encode(queries, passages):
        assert {title for title, _ in passages} == {""}
        texts.update(queries=queries, passages=[text for _, text in passages])
        return tuple(np.array([vector(text) for text in texts[kind]], np.float32) for kind in texts)

    search = open_search(data, "dev", 0)
    found = []
    for depth in range(1, N_PASSAGES + 1):
        monkeypatch.setattr(probe, "_DEPTH", depth)
        found.append(search(encode)["recall_at_100"])
    relevant = {"p1", "p5", "p7", "p9"}
    names = {"q0", *(f"p{i}" for i in range(N_PASSAGES))}
    hashed = sorted(names, key=lambda p: (p not in relevant, hashlib.sha256(p.encode()).digest()))
    passages = dict(zip(hashed[::-1], map(vector, texts["passages"]), strict=True))
    run = {}
    for query, text in zip(JUDGED, texts["queries"], strict=True):
        scores = {name: float(passage @ vector(text)) for name, passage in passages.items()}
        assert (max(scores, key=scores.get) == query) == (query == "q0")
        scores.pop(query, None)
        run[query] = sorted(scores, key=scores.get, reverse=True)
    for depth, recall in enumerate(found, start=1):
        shares = [len(names & {*run[q][:depth]}) / len(names) for q, names in JUDGED.items()]
        assert recall == pytest.approx(sum(shares) / 3)
    assert found[0] < found[-1] == 1


def test_a_sample_has_all_relevant_passages_with_their_titles(tmp_path):
    """The passage with the query's id is found only by the query that it is judged relevant to."""
    records = [{"_id": name, "title": f"T{name}", "text": name} for name in "abcdef"]
    write_records(tmp_path / "corpus.jsonl", records)
    write_records(tmp_path / "queries.jsonl", records[:2])
    write_qrels(tmp_path / "qrels" / "dev.tsv", {"a": {"a": 1, "c": 1}, "b": {"d": 1, "e": 0}})
    scores_QxN = np.array([[9, 5, 4, 3, 2, 1], [6, 9, 4, 3, 2, 1]], np.float32)
    seen = []

    def encode(queries, passages):
        assert queries == ["a", "b"]
        seen[:] = passages
        return scores_QxN, np.eye(6)[["abcdef".index(text) for _, text in passages]]

    of_all = (1 + 1 / 2) / (1 + 1 / np.log2(3))  # a is the first, b the second, c the third
    for n_passages, n_seen, ndcg in ((0, 6, of_all), (2, 3, 1), (5, 5, None)):
        found = open_search(tmp_path, "dev", n_passages)(encode)
        assert {("Ta", "a"), ("Tc", "c"), ("Td", "d")} <= {*seen}
        assert len(seen) == n_seen
        if ndcg is not None:  # d is the third of the other query: a, c, d
            assert found["ndcg_at_10"] == pytest.approx((ndcg + 1 / 2) / 2)


def test_judgments_without_a_relevant_passage_are_refused(data):
    write_qrels(data / "qrels" / "test.tsv", {"q0": {"p1": 0}})
    with pytest.raises(
        UserError, match=whole("TMP/data/qrels/test.tsv judges no passage relevant")
    ):
        open_search(data, "test", 0)


def test_judgments_of_passages_that_are_not_there_are_refused(data):
    write_qrels(data / "qrels" / "old.tsv", {"q0": {"p1": 1, "gone": 1}, "q1": {"unjudged": 0}})
    said = "TMP/data/qrels/old.tsv names 1 passages that the data does not have: gone"
    with pytest.raises(UserError, match=whole(said)):
        open_search(data, "old", 0)
