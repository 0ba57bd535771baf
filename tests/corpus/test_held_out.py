"""Which documents a run is measured on, against a slow transcription."""

import json
from pathlib import Path

import numpy as np
import pytest

from cocondenser_jax.corpus import order
from cocondenser_jax.corpus.build import build_store
from cocondenser_jax.corpus.order import held_out_documents
from cocondenser_jax.corpus.store import open_store
from tests.world import cut_file, write_in_tasks


def build(source, tokenizer, out):
    build_store(str(source), str(tokenizer), out, max_length=12)
    return open_store(out)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """64 documents of one, two or three spans; of one span, every fourth."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("held_out") / "text.jsonl"
    with path.open("w") as file:
        for i in range(64):
            spans = [" ".join(rng.choice(list("abcdefgh"), 9)) for _ in range((i % 4 + 3) // 2)]
            file.write(json.dumps({"_id": str(i), "spans": spans}) + "\n")
    return path


@pytest.fixture(scope="module")
def store(source, wordpiece_folder):
    return build(source, wordpiece_folder, source.parent / "store")


def names(store, n):
    return [store.document_id(int(document)) for document in held_out_documents(store, n, False)]


def test_the_documents_of_the_lowest_hashes(store, monkeypatch):
    factors = [int(x) for x in np.random.Philox(key=0).random_raw(20)]
    hashes = {}
    for document in range(store.n_documents):
        first, end = store.first_span_D[document], store.first_span_D[document + 1]
        if end - first >= 2:
            first_ids, last_ids = store.read_spans(np.array([first, end - 1]), 10)[0].tolist()
            terms = zip(first_ids + last_ids, factors, strict=True)
            hashes[document] = sum(token * factor for token, factor in terms) % 2**64
    in_order = sorted(hashes, key=lambda document: hashes[document])
    assert len(in_order) == 48
    assert held_out_documents(store, 0, False).tolist() == []
    assert held_out_documents(store, 3, False).tolist() == in_order[:3]
    assert held_out_documents(store, 1000, False).tolist() == in_order[:4]  # a tenth at most
    held_out_documents.cache_clear()
    monkeypatch.setattr(order, "_DOCUMENTS_AT_ONCE", 20)  # three blocks
    assert held_out_documents(store, 1000, False).tolist() == in_order[:4]


def test_the_same_documents_whatever_tasks_built_a_store(store, source, wordpiece_folder):
    folder = source.parent / "in tasks"
    pieces = cut_file(source, source.parent / "pieces", 3)
    write_in_tasks(str(pieces), str(wordpiece_folder), folder, 3, max_length=12)
    in_tasks = open_store(folder)
    assert names(in_tasks, 4) == names(store, 4)


def test_identical_texts_go_together(store):
    both = open_store(Path(f"{store.path},{store.path}"))
    assert names(both, 1) == names(store, 1) * 2


def test_where_no_document_has_two_spans_they_have_one(tmp_path, wordpiece_folder):
    spans = (" ".join("abcdefgh"[i // n % 8] for n in (1, 8) * 4) for i in range(40))
    lines = [json.dumps({"spans": [span]}) + "\n" for span in spans]
    (tmp_path / "text.jsonl").write_text("".join(lines))
    single = build(tmp_path / "text.jsonl", wordpiece_folder, tmp_path / "store")
    assert len(set(held_out_documents(single, 3, False))) == 3
