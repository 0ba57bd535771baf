"""Agreement with the fused ranking, against sentence-transformers and sets made by hand."""

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from cocondenser_jax.corpus.batches import held_out_documents
from cocondenser_jax.corpus.build import build_store, build_vocabulary
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.errors import UserError
from cocondenser_jax.pipelines import agreement as module
from cocondenser_jax.pipelines.agreement import (
    Sample,
    agreement,
    as_written,
    choose_alpha,
    dense_run,
    fused_ranking,
    leave_out_unfound,
    lexical_run,
    read_choice,
    sample_found,
    sample_store,
    written_texts,
)
from cocondenser_jax.retriever.data.layouts import Passage
from cocondenser_jax.retriever.search import models
from cocondenser_jax.retriever.search.bm25 import bm25_run
from cocondenser_jax.retriever.search.fuse import fuse_runs
from cocondenser_jax.retriever.search.models import load_retriever
from tests.languages import SENTENCES, sentences_of
from tests.world import write_records


@pytest.fixture(scope="module")
def store(tmp_path_factory, words, model_folder):
    folder = tmp_path_factory.mktemp("agreement")
    rng = np.random.default_rng(0)
    texts = [{"id": str(i), "text": " ".join(rng.choice(words, 14))} for i in range(60)]
    source = write_records(folder / "texts.jsonl", texts)
    build_store(str(source), str(model_folder), folder / "store", max_tokens=64)
    return open_store(folder / "store"), [text["text"] for text in texts]


def test_queries_are_words_in_a_row_of_held_out_documents(store, monkeypatch):
    store, texts = store
    sample = sample_store(store, held_out_documents(store, 5))
    assert len(sample.queries) == 5
    for name, query in sample.queries.items():
        assert len(query.split()) == 6
        assert query in sample.passages[name]
        assert sample.passages[name] in " ".join(texts)
    assert len(sample.passages) == store.n_spans
    monkeypatch.setattr(module, "N_PASSAGES", 10)
    few = sample_store(store, held_out_documents(store, 5))
    assert few.queries == sample.queries
    assert few.queries.keys() < few.passages.keys()
    assert len(few.passages) <= 15


def test_texts_to_judge_are_as_the_corpus_has_them(tmp_path, words, model_folder):
    rng = np.random.default_rng(2)
    texts = []
    for _ in range(6):  # of several spans each
        sentences = [" ".join(rng.choice(words, 12)).capitalize() for _ in range(5)]
        texts.append(" 龘. ".join(sentences) + ".")
    records = [{"id": str(i), "text": text} for i, text in enumerate(texts)]
    records[4]["id"] = "3"  # two documents of one name
    source = str(write_records(tmp_path / "texts.jsonl", records))
    build_store(source, str(model_folder), tmp_path / "store", max_tokens=40)
    store = open_store(tmp_path / "store")
    names = [str(number) for number in range(store.n_spans)]
    written = written_texts(store, source, names)
    assert list(written) == names
    joined = [
        " ".join(written[str(n)] for n in range(*store.first_span_D[document : document + 2]))
        for document in range(6)
    ]
    assert joined == texts
    assert store.n_spans > 12
    assert written_texts(store, source, ["7"]) == {"7": written["7"]}
    # Of another corpus, nothing is taken for what was searched.
    changed = [record | {"text": record["text"].replace("a", "b")} for record in records]
    assert written_texts(store, str(write_records(tmp_path / "b.jsonl", changed)), ["7"]) == {}


@pytest.mark.parametrize(
    ("piece", "text", "expected"),
    [
        ("don ' t panic ( yet )", "Oh. Don't panic (yet)! No", "Don't panic (yet)"),
        ("of c + + code", "Some of C++—code", "of C++—code"),
        ("cafe de la", "Au Café de  la\nGare", "Café de la"),
        ("cafe", "Au Cafe\u0301 fin", "Cafe\u0301"),
        ("weiter 龘 x", "weiter x", "weiter 龘 x"),
        ("", "Some text", ""),
        ("a", "", "a"),
        ("1 . . 2 ] ^ - & & x", "In 1 ... . 2]^-&&X.", "1 ... . 2]^-&&X"),
        # A line that is not found again: the dots of the text are not tried in all ways.
        (". " * 60 + "x", "Contents " + "." * 300 + " 12", ". " * 60 + "x"),
    ],
)
def test_a_query_is_as_its_text_has_it(piece, text, expected):
    assert as_written(piece, text) == expected


def ten_best(folder, sample):
    encoder = SentenceTransformer(str(folder))
    queries = encoder.encode([*sample.queries.values()])
    scores = queries @ encoder.encode([*sample.passages.values()]).T
    names = np.array([*sample.passages])
    best = names[np.argsort(-scores, axis=1, kind="stable")]
    return {query: list(row) for query, row in zip(sample.queries, best, strict=True)}


def test_the_agreement_is_the_fraction_of_the_ten_best_of_bm25_and_the_model(
    store, make_model, tmp_path
):
    sample = sample_store(store[0], np.arange(6))
    folders = []
    for seed in (0, 1):
        folders.append(tmp_path / str(seed))
        load_retriever(make_model(seed=seed)).save_pretrained(str(folders[-1]))
    before, after = (load_retriever(folder) for folder in folders)
    order = ten_best(folders[0], sample)
    dense = {
        query: {name: -float(rank) for rank, name in enumerate(names)}
        for query, names in order.items()
    }
    passages = [Passage(name, "", text) for name, text in sample.passages.items()]
    fused = fuse_runs([bm25_run(passages, sample.queries), dense], "rrf", depth=10)
    expected = fused_ranking(lexical_run(sample), dense_run(before, sample))
    assert expected == {query: set(found) for query, found in fused.items()}
    for model, folder in ((before, folders[0]), (after, folders[1])):
        best = ten_best(folder, sample)
        fractions = {q: len(expected[q] & set(names[:10])) / 10 for q, names in best.items()}
        assert agreement(dense_run(model, sample), expected) == {
            query: {"agreement": fraction} for query, fraction in fractions.items()
        }


def test_passages_are_encoded_in_bfloat16_where_that_is_faster(store, make_model, monkeypatch):
    sample = sample_store(store[0], np.arange(6))
    single = dense_run(load_retriever(make_model()), sample)
    monkeypatch.setattr(models, "_cpu_has_bfloat16", lambda: True)
    half = dense_run(load_retriever(make_model()), sample)
    assert single != half
    for query, found in half.items():
        assert found == pytest.approx(single[query], rel=0.02)


@pytest.mark.parametrize("kind", sorted({*SENTENCES} - {"thai"}))  # too few tokens for a span
def test_pieces_of_scripts_without_spaces_are_found(tmp_path, kind):
    texts = sentences_of(kind)
    records = [{"id": str(i), "text": text} for i, text in enumerate(texts)]
    source = str(write_records(tmp_path / "texts.jsonl", records))
    build_vocabulary([source], tmp_path / "tokenizer", 400)
    build_store(source, str(tmp_path / "tokenizer"), tmp_path / "store", max_tokens=64)
    store = open_store(tmp_path / "store")
    sample = sample_store(store, np.arange(store.n_documents))  # all but the shortest
    best = []
    for name, query in sample.queries.items():
        assert query in " ".join(sample.passages[name].split())
        if len(sample.passages[name].split()) < 6:  # about six words
            assert 9 <= len(query.replace(" ", "")) <= 30
        found = lexical_run(sample, "none")[name]
        best.append(next(iter(found)) == name)
    assert np.mean(best) >= 0.9


@pytest.mark.parametrize("record", ["{}", '{"alpha": 1}', "[]"])
def test_a_damaged_choice_is_named(record, tmp_path):
    path = tmp_path / "agreement.json"
    path.write_text(record)
    with pytest.raises(
        UserError, match=rf"^{path}(: expected| is damaged .*: delete it, and the s)"
    ):
        read_choice(path)


def test_bm25_reads_a_sample_in_its_language():
    sample = Sample({"d1": "viele Häuser", "d2": "die Bäume"}, {"d1": "Haus", "d2": "die"})
    assert [*lexical_run(sample, "german")["d1"]] == ["d1"]
    assert lexical_run(sample, "german")["d2"] == {}
    assert [*lexical_run(sample)["d2"]] == ["d2"]


def test_queries_for_which_bm25_finds_nothing_are_left_out(caplog, monkeypatch, store):
    sample = Sample({"d1": "", "d2": "", "d3": ""}, {"d1": "one", "d2": "?", "d3": "three"})
    lexical = {"d1": {"d1": 1.0}, "d2": {}, "d3": {"d1": 2.0}}
    kept, found = leave_out_unfound(sample, lexical)
    assert kept == Sample(sample.passages, {"d1": "one", "d3": "three"})
    assert found == {"d1": {"d1": 1.0}, "d3": {"d1": 2.0}}
    assert "BM25 finds nothing for 1 of 3 queries" in caplog.text
    seen = []
    monkeypatch.setattr(module, "blend", lambda *_: None)
    monkeypatch.setattr(
        module,
        "dense_run",
        lambda _, asked: seen.append(asked.queries) or {q: {"d1": 1.0} for q in asked.queries},
    )
    decision = choose_alpha(None, None, kept, found)
    assert seen
    assert all(queries == kept.queries for queries in seen)
    assert (decision.sample, decision.lexical) == (kept, found)

    monkeypatch.setattr(module, "sample_store", lambda *_: sample)
    monkeypatch.setattr(module, "lexical_run", lambda _, language: {"none": lexical}[language])
    assert sample_found(store[0], np.arange(3), "none") == (kept, found)
    monkeypatch.setattr(module, "lexical_run", lambda *_: lexical | {"d3": {}})
    with pytest.raises(UserError, match="BM25 finds something for 1 of 3 queries"):
        sample_found(store[0], np.arange(3), "none")
