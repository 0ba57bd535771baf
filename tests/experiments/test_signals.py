"""Verdicts with and without judgments of a model that is a bag of words with some noise."""

import json
import re
import zlib

import numpy as np
import pytest

from cocondenser_jax.corpus.batches import held_out_documents
from cocondenser_jax.corpus.build import build_store
from cocondenser_jax.corpus.store import open_store
from experiments import signals
from tests.world import WORDS, write_beir, write_tokenizer

N = 150


class Bag:
    """A vector of a text: the sum of its words' random vectors, and noise of the text's own."""

    def __init__(self, noise):
        self.noise = noise

    def encode_document(self, texts, **_):
        def vector(text, size):
            return np.random.default_rng(zlib.crc32(text.encode())).normal(size=size)

        rows = [
            sum(vector(word, 32) for word in re.findall(r"\w+", text.lower()))
            + self.noise * vector(text, 32)
            for text in texts
        ]
        rows = np.array(rows, np.float32).reshape(-1, 32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    encode_query = encode_document

    def get_embedding_dimension(self):
        return 32


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    """A data folder whose queries are words of their passages, and a folder of `adapt`."""
    folder = tmp_path_factory.mktemp("signals")
    rng = np.random.default_rng(1)
    words = [first + second for first in WORDS for second in WORDS]
    passages, queries = [], []
    for _ in range(N):
        own = rng.choice(words, 8, replace=False)
        sentences = [" ".join(rng.choice(own, 6)).capitalize() for _ in range(5)]
        passages.append(". ".join(sentences) + ".")
        queries.append(" ".join(own[:3]))
    write_beir(folder / "data", passages, queries, {"test": range(N)})
    write_tokenizer(folder / "tokenizer", passages)
    build_store(
        str(folder / "data"), str(folder / "tokenizer"), folder / "adapted/store", max_tokens=64
    )
    return folder


def compare_to(monkeypatch, collection, before, after):
    """Returns the rows for a model whose noise the change moves from `before` to `after`."""
    models = {"published": Bag(before), "adapted": Bag(after)}
    monkeypatch.setattr(signals, "load_retriever", lambda folder: models[folder.parent.name])
    monkeypatch.setattr(
        signals, "blend", lambda old, new, alpha: Bag(old.noise + alpha * (new.noise - old.noise))
    )
    return signals.compare_alphas(collection / "adapted", collection / "data")


KINDS = ["judged", "crops", "title", "sentence", "words", "keywords"]


@pytest.mark.parametrize(("before", "after", "word"), [(40, 0, "helped"), (0, 40, "harmed")])
def test_every_kind_of_test_sees_a_large_change(monkeypatch, collection, before, after, word):
    rows = compare_to(monkeypatch, collection, before, after)
    assert [(row["alpha"], row["ranking"]) for row in rows] == [
        (alpha, ranking) for alpha in (1, 0.5) for ranking in ("alone", "fused")
    ]
    whole = rows[0]
    assert {kind: whole[kind][0] for kind in KINDS} == dict.fromkeys(KINDS, word)
    assert all((whole[kind][1] > 0) == (word == "helped") for kind in KINDS)
    assert (whole["agreement"][0] == "harmed") == (word == "harmed")
    assert rows[1]["agreement"] is None
    # Less of the change is less of a difference.
    assert abs(rows[2]["judged"][1]) < abs(whole["judged"][1])


def test_an_unchanged_model_is_no_different(monkeypatch, collection):
    for row in compare_to(monkeypatch, collection, 3, 3):
        assert {row[kind][0] for kind in KINDS} == {"no difference"}
        assert {row[kind][1] for kind in KINDS} == {0}


def test_only_the_rest_of_a_held_out_document_is_to_be_found(monkeypatch, collection):
    searched = []

    def spy(passages, queries, depth):
        searched.append({passage.id: passage.text for passage in passages})
        return {query: {} for query in queries}

    monkeypatch.setattr(signals, "bm25_run", spy)
    compare_to(monkeypatch, collection, 1, 1)
    store = open_store(collection / "adapted" / "store")
    held_out = {store.document_id(n) for n in held_out_documents(store, 300, True).tolist()}
    assert len(held_out) == N // 10
    judged, *of_kinds = searched
    assert held_out < {*judged}
    assert len(judged) == N
    for passages in of_kinds:
        own = {name for name in passages if name.startswith("held-out-")}
        assert len(own) == len(held_out)
        assert {*passages} - own == {*judged} - held_out


def test_a_query_and_its_passage_are_parts_of_a_span(collection):
    store = open_store(collection / "adapted" / "store")
    tests = signals.held_out_tests(store, ["one other text"])
    for kind in ("crops", "title", "sentence"):
        for query, text in tests[kind].queries.items():
            # A tenth of sentences stay in their span.
            assert kind == "sentence" or text not in tests[kind].own[query]
    for kind in ("words", "keywords"):
        assert all(len(text.split()) <= 6 for text in tests[kind].queries.values())
    assert all(text in tests["words"].own[q] for q, text in tests["words"].queries.items())


def test_verdicts_are_counted_against_the_judgments(tmp_path, capsys):
    said = [
        ("helped", "helped"),
        ("harmed", "helped"),
        ("harmed", "harmed"),
        ("no difference",) * 2,
    ]
    rows = [
        {"data": "a", "alpha": 1, "ranking": "alone", "judged": [true, 0], "title": [word, 0]}
        for true, word in said
    ]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    signals.main(["--summary", str(tmp_path / "rows.json")])
    header, row = capsys.readouterr().out.splitlines()
    assert header.split("  ")[0] == "kind"
    assert " ".join(row.split()) == "title alone 3 of 4 1 of 2 1 of 2 1 of 1"
