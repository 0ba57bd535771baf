"""BM25 against its formula."""

import gzip
import json
import math
import re
from collections import Counter

import numpy as np
import pytest

from cocondenser_jax.cli import main
from cocondenser_jax.errors import UserError
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.retriever.data.folder import Passage
from cocondenser_jax.retriever.search import bm25, opening
from cocondenser_jax.retriever.search.bm25 import Bm25Settings
from tests.lines import whole
from tests.world import write_qrels, write_records

# Words that stemming and stop words leave alone.
VOCABULARY = ["apr", "bik", "cron", "dur", "gorm", "hulk", "jank", "kolm"]


def formula(passages, query, k1, b):
    documents = [Counter(f"{p.title} {p.text}".split()) for p in passages]
    lengths = [sum(counts.values()) for counts in documents]
    mean = sum(lengths) / len(lengths)
    scores = {}
    for passage, counts, length in zip(passages, documents, lengths, strict=True):
        score = 0.0
        for term in query.split():
            n = sum(term in other for other in documents)
            idf = math.log(1 + (len(documents) - n + 0.5) / (n + 0.5))
            f = counts[term]
            score += idf * f / (f + k1 * (1 - b + b * length / mean))
        if score > 0:
            scores[passage.id] = score
    return scores


@pytest.fixture(scope="module")
def passages():
    rng = np.random.default_rng(0)
    return [
        Passage(
            f"d{i}", VOCABULARY[i % 8], " ".join(rng.choice(VOCABULARY[:7], rng.integers(2, 30)))
        )
        for i in range(40)
    ]


@pytest.mark.parametrize("compiled", [False, True])
def test_scores_are_lucenes_formula(passages, monkeypatch, compiled):
    monkeypatch.setattr(bm25, "_WORTH_COMPILING", 0 if compiled else math.inf)
    monkeypatch.setattr(bm25, "_QUERIES_AT_ONCE", 3)
    # The first query has no known word, which bm25s' compiled scorer alone would not survive.
    queries = {"none": "zzz of the", "q1": "apr bik apr", "q2": "kolm", "q3": "dur unknownword"}
    for k1, b in ((0.9, 0.4), (0.82, 0.68)):
        run = bm25.bm25_run(passages, queries, 100, Bm25Settings(k1, b))
        assert run["none"] == {}
        for query in ("q1", "q2", "q3"):
            assert run[query] == pytest.approx(formula(passages, queries[query], k1, b), rel=1e-5)
            values = list(run[query].values())
            assert values == sorted(values, reverse=True)
    assert len(run["q2"]) == sum(passage.title == "kolm" for passage in passages)
    top = bm25.bm25_run(passages, {"q1": "apr bik apr"}, 3, Bm25Settings(k1, b))
    assert list(top["q1"]) == list(run["q1"])[:3]


def test_as_many_passages_as_asked_are_found_in_memory(passages, tmp_path):
    records = [{"_id": p.id, "title": p.title, "text": p.text} for p in passages]
    corpus = write_records(tmp_path / "corpus.jsonl", records)
    by_id = {passage.id: passage for passage in passages}
    for language in (None, "german"):
        settings = Bm25Settings(language=language or "english")
        run = bm25.bm25_run(passages, {"q": "apr bik"}, 20, settings)
        index = bm25.index_corpus(corpus, language)
        assert index.bm25.language == settings.language
        for k in (3, 20):
            best = [(score, by_id[name]) for name, score in run["q"].items()][:k]
            assert bm25.find_passages(index, "apr bik", k) == best


def test_stems_and_stop_words():
    passages = [Passage("d1", "", "Running engines"), Passage("d2", "", "the the the")]
    run = bm25.bm25_run(passages, {"q1": "he runs an ENGINE", "q2": "the", "q3": "?"})
    assert {query: list(results) for query, results in run.items()} == {
        "q1": ["d1"],
        "q2": [],
        "q3": [],
    }


def test_a_corpus_without_words_finds_nothing():
    passages = [Passage("d1", "", "?!"), Passage("d2", "", "")]
    assert bm25.bm25_run(passages, {"q": "word", "r": ""}) == {"q": {}, "r": {}}


def test_copies_of_relevant_passages_are_counted(tmp_path, caplog, capsys):
    texts = {"a": "apr bik", "b": "Apr  bik", "c": "cron"}
    write_records(tmp_path / "corpus.jsonl", [{"_id": i, "text": t} for i, t in texts.items()])
    write_records(tmp_path / "queries.jsonl", [{"_id": "q", "text": "apr"}])
    write_qrels(tmp_path / "qrels" / "test.tsv", {"q": {"a": 1}})
    run = tmp_path / "run.trec"
    words = ["bm25", f"--data={tmp_path}", f"--run_out={run}"]
    assert main(words) == 0
    assert not [line for line in caplog.messages if "relevant" in line]
    assert main([*words, "--split=test"]) == 0
    copies = (
        f"1 of 1 queries of {run} have, among their first 10 passages, an unjudged copy of a"
        " relevant passage: it counts as not relevant, as in trec_eval, so the metrics are too low"
        " (judge copies, or remove them from the corpus)"
    )
    assert [line for line in caplog.messages if "relevant" in line] == [copies]
    caplog.clear()
    write_qrels(tmp_path / "qrels" / "dev.tsv", {"q": {"a": 1, "z": 1}})
    assert main([*words, "--split=dev"]) == 0
    missing = "1 of the 2 relevant passages in the judgments of dev are not in the corpus"
    assert [line for line in caplog.messages if "relevant" in line] == [missing, copies]


def test_a_split_ranks_no_numbered_passages(tmp_path, capsys):
    """Judgments of ids would be applied to the numbers of lines."""
    write_records(tmp_path / "queries.jsonl", [{"_id": "q", "text": "apr"}])
    write_qrels(tmp_path / "qrels" / "test.tsv", {"q": {"1": 1}})
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "c.txt").write_text("apr\nbik\n")
    corpus, run = tmp_path / "texts" / "c.txt", tmp_path / "run.trec"
    words = ["bm25", f"--data={tmp_path}", f"--corpus={corpus}", f"--run_out={run}"]
    assert main([*words, "--split=test"]) == 2
    said = f"{corpus}:1 has no `_id`: judgments name passages by their ids"
    assert said in capsys.readouterr().err
    assert not run.exists()
    assert main(words) == 0
    assert run.read_text().startswith("q Q0 1 1 ")


@pytest.mark.parametrize(
    "change", [{"k1": math.nan}, {"k1": math.inf}, {"k1": -0.1}, {"b": math.nan}, {"b": 1.1}]
)
def test_weights_out_of_range_are_refused_before_anything_is_read(tmp_path, change):
    k1, b, _ = Bm25Settings(**change)
    with pytest.raises(UserError, match=whole(f"k1={k1}, b={b}: expected 0 or more, and 0 to 1")):
        run_in(tmp_path, change)


@pytest.mark.parametrize("change", [{"k1": 0.0}, {"b": 0.0}, {"b": 1.0}])
def test_weights_at_the_ends_of_their_ranges_are_taken(tmp_path, change):
    with pytest.raises(UserError, match=whole("TMP has no queries: …")):
        run_in(tmp_path, change)


def run_in(folder, change):
    bm25.write_bm25_run(
        bm25.Searched(folder, split=None, corpus=None),
        folder / "run",
        settings=Bm25Settings(**change),
        depth=100,
        ignore_identical_ids=False,
        warns=False,
    )


def write_corpus(path, n_passages, rng):
    """Writes passages of which each has its own word, and about 30 of 1,000 others."""
    with gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w") as file:
        for i in range(n_passages):
            words = " ".join(f"w{word}" for word in rng.integers(0, 1000, 30))
            file.write(json.dumps({"_id": f"d{i}", "text": f"own{i} {words}"}) + "\n")


@pytest.mark.parametrize("name", ["corpus.jsonl", "corpus.jsonl.gz"])
def test_memory_is_estimated_by_the_first_passages(name, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    write_corpus(tmp_path / name, 20_000, rng)
    whole = bm25.estimate_bytes(tmp_path / name, "english")
    n_words = 21_000
    expected = 20_000 * (250 + 4 * 31 + 24 * 30.6) + 450 * n_words
    assert whole == pytest.approx(expected, rel=0.2)
    monkeypatch.setattr(bm25, "_SAMPLED", 500)
    sampled = bm25.estimate_bytes(tmp_path / name, "english")
    assert sampled == pytest.approx(expected, rel=0.3)


def test_memory_is_estimated_for_a_file_whose_columns_are_named(tmp_path, monkeypatch):
    file = tmp_path / "passages.tsv"
    file.write_text("".join(f"{i}\tTitle\tsome words\n" for i in range(200)))
    monkeypatch.setattr(bm25, "_SMALL_FILE", 1000)
    monkeypatch.setattr(bm25, "available_bytes", lambda: 1000)
    with pytest.raises(UserError, match=re.escape(f"BM25 of {file} takes about 0.0 GiB")):
        bm25.require_memory(f"{file}:id,title,text", "english")


@pytest.mark.parametrize("is_enough", [True, False])
def test_what_does_not_fit_into_memory_is_said_before_it_starts(
    is_enough, tmp_path, monkeypatch, capsys, caplog
):
    caplog.set_level("INFO", "cocondenser_jax")
    write_corpus(tmp_path / "corpus.jsonl", 200, np.random.default_rng(0))
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "own7"}\n')
    monkeypatch.setattr(bm25, "_SMALL_FILE", 1000)
    monkeypatch.setattr(bm25, "available_bytes", lambda: 2**40 if is_enough else 1000)
    status = main(["bm25", f"--data={tmp_path}", f"--run_out={tmp_path}/run"])
    error = capsys.readouterr().err
    free = "1024.0" if is_enough else "0.0"
    said = f"BM25 of {tmp_path}/corpus.jsonl will take about 0.0 GiB of memory; {free} GiB are free"
    assert said in caplog.messages
    assert (tmp_path / "run").exists() == is_enough
    assert status == (0 if is_enough else 2)
    if not is_enough:
        file = tmp_path / "corpus.jsonl"
        said = "takes about 0.0 GiB of memory, and 0.0 GiB are free: use a machine with more"
        assert error.splitlines()[-1] == f"cocondenser: BM25 of {file} {said}"


def test_bm25_indexes_once(model_folder, hybrid_folder, monkeypatch):
    first = opening.open_index(hybrid_folder, open_model(model_folder), hybrid="rrf")
    monkeypatch.setattr(bm25, "_build_index", None)
    again = opening.open_index(hybrid_folder, open_model(model_folder), hybrid="min_max")
    opening.open_index(hybrid_folder, open_model(model_folder))
    for compiled in (False, True):
        monkeypatch.setattr(bm25, "_WORTH_COMPILING", 0 if compiled else 10**9)
        found, again_found = (
            list(bm25.rank_by_bm25(each.bm25, ["title abcde", "?"], 9)) for each in (first, again)
        )
        assert found == again_found
        assert len(found[0]) == 9


def test_a_search_of_what_does_not_fit_into_memory_is_refused(tmp_path, monkeypatch):
    write_corpus(tmp_path / "corpus.jsonl", 200, np.random.default_rng(0))
    monkeypatch.setattr(bm25, "_SMALL_FILE", 1000)
    monkeypatch.setattr(bm25, "available_bytes", lambda: 1000)
    monkeypatch.setattr(bm25, "passage_table", pytest.fail)
    with pytest.raises(UserError, match=r"and 0\.0 GiB are free: use a machine with more$"):
        bm25.index_corpus(tmp_path / "corpus.jsonl", None)


def test_a_term_that_a_passage_repeats_has_one_score(tmp_path):
    records = [{"_id": f"d{i}", "text": "apr " * 30} for i in range(20)]
    corpus = write_records(tmp_path / "corpus.jsonl", records)
    assert bm25.estimate_bytes(corpus, "english") == 20 * (250 + 4 * 30 + 24) + 450
