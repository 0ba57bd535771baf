"""The entries of a comparison: their names, what they are tested against, their seconds."""

import json

import numpy as np
import pytest

from cocondenser_jax.analysis.report import ResultRow
from cocondenser_jax.cli import main
from cocondenser_jax.collection.trec import read_run
from cocondenser_jax.errors import UserError
from cocondenser_jax.quickstart import adapt as adapting
from cocondenser_jax.quickstart.comparison import (
    Entry,
    compare_entries,
    rank_by_bm25,
    ranking_name,
)
from tests.world import write_beir, write_records

N = 8


def test_a_ranking_is_named_by_what_makes_it():
    assert ranking_name("", is_fused=False) == "BM25"
    assert ranking_name("adapted", is_fused=False) == "adapted"
    assert ranking_name("adapted", is_fused=True) == "adapted + BM25"
    assert ranking_name("adapted", is_fused=False, part="8 of 32") == "adapted, 8 of 32"


@pytest.fixture
def folder(tmp_path):
    """A collection, and two runs: one has the passage of every query at rank 1, one at rank 2."""
    write_beir(tmp_path / "data", ["a text"] * N, ["a query"] * N, {"test": range(N)})
    for name, order in (("first", ("p{}", "x")), ("second", ("x", "p{}"))):
        lines = [
            f"q{query} Q0 {passage.format(query)} {rank} {-rank} t\n"
            for query in range(N)
            for rank, passage in enumerate(order, start=1)
        ]
        (tmp_path / f"{name}.trec").write_text("".join(lines))
    seconds = {"model": 1.0, "first.trec": 2.0, "second.trec": 4.0}
    (tmp_path / "seconds.json").write_text(json.dumps(seconds))
    return tmp_path


@pytest.mark.parametrize(
    ("baselines", "best"),
    [(["BM25", "new + BM25"], "new + BM25"), (["BM25"], "BM25"), (["new + BM25"], "new + BM25")],
)
def test_entries_are_tested_against_the_best_baseline(folder, baselines, best):
    first, second = (folder / f"{name}.trec" for name in ("first", "second"))
    entries = [Entry("", False, [second]), Entry("new", True, [folder / "model", first])]
    bm25, new = compare_entries(folder, folder / "data", entries, baselines, ["MRR@10"])
    assert (bm25.name, bm25.model, bm25.is_fused) == ("BM25", "", False)
    assert (new.name, new.model, new.is_fused) == ("new + BM25", "new", True)
    assert (bm25.metrics, new.metrics) == ({"MRR@10": 0.5}, {"MRR@10": 1.0})
    assert (bm25.seconds, new.seconds) == (4.0, 3.0)
    # All queries differ alike: two of the 2^8 assignments are as extreme.
    p_values = {row.name: row.p_values for row in (bm25, new)}
    assert p_values.pop(best) == {}
    assert [*p_values.values()] == [{"MRR@10": 2 / 2**N}]


@pytest.mark.effect("adapt --language")
def test_an_adaptation_ranks_by_bm25_in_its_language(
    model_folder, words, tmp_path, monkeypatch, capsys
):
    corpus = tmp_path / "texts.jsonl"
    texts = [" ".join(np.random.default_rng(i).choice(words, 14)) for i in range(40)]
    write_records(corpus, [{"id": str(i), "text": text} for i, text in enumerate(texts)])
    data = tmp_path / "data"
    write_beir(data, ["viele Häuser", "die Bäume"], ["Haus", "die Baum"], {"test": [0, 1]})
    expected = {"english": ["q1"], "german": ["q0", "q1"]}
    language = "german"

    def stop(_, ranked_data, ranked_language, ignore_identical_ids):
        assert not ignore_identical_ids
        assert (ranked_data, ranked_language) == (data, language)
        found = read_run(rank_by_bm25(tmp_path / language, ranked_data, ranked_language))
        assert [*found] == expected[language]
        raise UserError("before any training")

    monkeypatch.setattr(adapting, "rank_by_bm25", stop)
    command = ["adapt", f"--corpus={corpus}", f"--model={model_folder}", f"--data={data}"]
    command += ["--config.data.length=64", "--config.data.batch_size=8"]
    for language in expected:
        flags = [] if language == "english" else [f"--language={language}"]
        (tmp_path / language).mkdir()
        assert main([*command, f"--workdir={tmp_path}/{language}", *flags]) == 2
        assert "before any training" in capsys.readouterr().err
    assert main([*command, f"--workdir={tmp_path}/german"]) == 2
    assert "was started with language=german" in capsys.readouterr().err.replace("'", "")
    assert main([*command, f"--workdir={tmp_path}/new", "--language=klingon"]) == 2
    assert "language 'klingon': expected one of arabic" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("winner", "language", "flags"),
    [
        ("fused", "german", ["--hybrid=min_max", "--language=german"]),
        ("fused", "english", ["--hybrid=min_max"]),
        ("dense", "german", []),
    ],
)
def test_the_search_that_is_printed_is_in_the_language(winner, language, flags):
    row = {"model": "m", "metrics": {}, "p_values": {}, "seconds": 0.0}
    rows = [ResultRow(name="dense", is_fused=False, **row)]
    rows.append(ResultRow(name="fused", is_fused=True, **row))
    assert adapting._search_flags(rows, winner, language) == flags
