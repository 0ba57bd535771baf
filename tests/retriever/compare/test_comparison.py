"""The entries of a comparison: their names, what they are tested against, their seconds."""

import json
from pathlib import Path

import numpy as np
import pytest

from cocondenser_jax.cli import main
from cocondenser_jax.errors import UserError
from cocondenser_jax.model_folder.folder import ModelFolder
from cocondenser_jax.pipelines import adapt as adapting
from cocondenser_jax.representation import Representation
from cocondenser_jax.retriever.compare import comparison
from cocondenser_jax.retriever.compare.comparison import (
    changes_between,
    measure_all,
    rank_by_bm25,
    search_flags,
)
from cocondenser_jax.retriever.compare.rankings import Ranking, with_tests
from cocondenser_jax.retriever.compare.trial import Trial, check_trial, survey_trial, with_first
from cocondenser_jax.retriever.data.trec import read_run, write_run
from cocondenser_jax.retriever.search.terms import languages
from tests.world import write_beir, write_qrels, write_records

N = 8

# Nothing of it is read.
OPENED = ModelFolder(
    "folder", Path("folder"), {}, Representation(), dense=(), lowers_case=False, is_plain=True
)


def texts(names):
    return ((name, "a text") for name in names if name != "x")


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
def test_rankings_are_tested_against_the_best_baseline(folder, baselines, best):
    first, second = (folder / f"{name}.trec" for name in ("first", "second"))
    rankings = [Ranking("BM25", second), Ranking("new + BM25", first, "new", is_fused=True)]
    trial = Trial(folder / "data", metrics=("MRR@10",))
    bm25, new = with_tests(measure_all(trial, rankings, texts), baselines)
    assert (bm25.record()["metrics"], new.record()["metrics"]) == ({"MRR@10": 0.5}, {"MRR@10": 1.0})
    # All queries differ alike: two of the 2^8 assignments are as extreme.
    tests = {row.name: row.tests for row in (bm25, new)}
    assert tests.pop(best) == {}
    (test,) = tests.values()
    assert test["MRR@10"]["randomization_p"] == 2 / 2**N
    assert test["MRR@10"]["interval"] == [0.5, 0.5] if best == "BM25" else [-0.5, -0.5]


@pytest.mark.parametrize(("baselines", "expected"), [(["old"], ["", "old"]), ([], [])])
def test_bm25_is_a_baseline_beside_the_models_that_are(tmp_path, monkeypatch, baselines, expected):
    rankings = [Ranking(name, Path(), name) for name in ("", "old", "new")]
    models = dict.fromkeys(("old", "new"), OPENED)
    monkeypatch.setattr(comparison, "rank_by_all", lambda *arguments: rankings)
    monkeypatch.setattr(comparison, "measure_all", lambda trial, rankings, texts: rankings)
    given = []
    monkeypatch.setattr(comparison, "with_tests", lambda _, names: given.append(names) or [])
    for name in ("read_manifest", "open_shards"):  # of embeddings that nothing has made
        monkeypatch.setattr(comparison, name, lambda *arguments: None)
    comparison.compare_models(tmp_path, Trial(tmp_path), models, baselines)
    assert [*given[0]] == expected


def test_what_changes_is_shown_in_the_passages_that_are_searched(folder):
    """Where they lie apart from judgments: those beside the judgments are others."""
    names = [*(f"p{i}" for i in range(N)), "x"]
    records = [{"_id": name, "text": "from elsewhere"} for name in names]
    apart = write_records(folder / "apart.jsonl", records)
    trial = Trial(folder / "data", metrics=("MRR@10",), corpus=apart)
    rankings = [Ranking(name, folder / f"{name}.trec") for name in ("second", "first")]
    changes = changes_between(trial, *measure_all(trial, rankings, texts))
    assert len(changes.gained) > 1
    moves = [move for change in changes.gained for move in change.moves]
    assert {move.words for move in moves} == {"from elsewhere"}


def test_copies_of_relevant_passages_are_counted_for_each_row(folder, caplog):
    """All passages have one text; in the second run, others than the judged one come first."""
    lines = [f"q{query} Q0 p{(query + query % 2) % N} 1 1 t\n" for query in range(N)]
    (folder / "second.trec").write_text("".join(lines))
    runs = (folder / f"{name}.trec" for name in ("first", "second"))
    rankings = [Ranking(name, run) for name, run in zip(("one", "other"), runs, strict=True)]
    trial = Trial(folder / "data", metrics=("MRR@10",))
    measure_all(trial, rankings, texts)
    (line,) = [line for line in caplog.messages if "an unjudged copy" in line]
    assert line.startswith(f"{N // 2} of {N} queries of other have, among their first 10 passages")


@pytest.mark.parametrize("ignores", [False, True])
def test_queries_that_find_themselves_are_counted_in_one_line(folder, caplog, ignores):
    data = folder / "own"
    write_beir(data, ["a text"] * N, ["a query"] * N, {})
    write_qrels(data / "qrels" / "test.tsv", {"p0": {"p1": 1}, "p1": {"p2": 1}, "p2": {"p2": 1}})
    names = ("p0", "p1", "p2")
    write_records(data / "queries.jsonl", [{"_id": name, "text": "a text"} for name in names])
    found = {"one": {"p0": {"p0": 2.0, "p1": 1.0}, "p2": {"p2": 1.0}}, "two": {"p0": {"p1": 1.0}}}
    found["three"] = {name: {name: 1.0} for name in names}
    for name, run in found.items():
        write_run(folder / f"{name}.trec", run)
    rankings = [Ranking(name, folder / f"{name}.trec") for name in found]
    trial = Trial(data, metrics=("MRR@10",), ignore_identical_ids=ignores)
    if ignores:
        write_qrels(data / "qrels" / "test.tsv", {"p0": {"p1": 1}, "p1": {"p2": 1}})
    bm25 = read_run(rank_by_bm25(folder / "ranked", trial).run)
    assert any(name in found for name, found in bm25.items()) is not ignores
    measure_all(trial, rankings, texts)
    lines = [line for line in caplog.messages if "their own id" in line]
    said = "1 of 3 queries of one, 2 of 3 queries of three have a result with their own id"
    assert [line.partition(":")[0] for line in lines] == ([] if ignores else [said])


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

    def stop(_, trial):
        assert (trial.data, trial.language) == (data, language)
        found = read_run(rank_by_bm25(tmp_path / language, trial).run)
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
        ("fused", "german", ["--hybrid=min_max", "--language=german", "--model=folder"]),
        ("fused", "english", ["--hybrid=min_max", "--model=folder"]),
        ("dense", "german", ["--model=folder"]),
    ],
)
def test_the_search_that_is_printed_is_that_of_the_row(winner, language, flags):
    trial = Trial(Path("data"), language=language)
    best = Ranking(winner, Path(), "m", is_fused=winner == "fused")
    place = f"--embeddings={Path('runs/models/m/embeddings')}"
    assert search_flags(Path("runs"), trial, best, "folder") == [place, *flags]


def test_where_bm25_is_best_the_search_is_by_bm25():
    for language, flags in (("english", []), ("german", ["--language=german"])):
        trial = Trial(Path("data"), language=language)
        found = search_flags(Path("runs"), trial, Ranking("BM25", Path()), "folder")
        assert found == ["--corpus=data", *flags]


def test_the_metric_that_decides_comes_first():
    assert with_first(None) == ("nDCG@10", "MRR@10", "Recall@100")
    assert with_first("Recall@100") == ("Recall@100", "nDCG@10", "MRR@10")
    assert with_first("P@5") == ("P@5", "nDCG@10", "MRR@10", "Recall@100")
    assert with_first("RR@10") == ("RR@10", "nDCG@10", "Recall@100")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"split": "dev"}, "{data} has no judgments of split 'dev': it has qrels/test.tsv"),
        (
            {"metrics": ("MRR@ten",)},
            "unknown metric 'MRR@ten': expected, for instance, MRR@10, Recall@100, nDCG@10",
        ),
        ({"language": "klingon"}, "language 'klingon': expected one of {languages}"),
        ({"split": "one"}, "{data} has one judged query of one: a comparison needs two"),
        (
            {"split": "own", "ignore_identical_ids": True},
            "ignore_identical_ids: 1 queries have a relevant passage with their own id (q0), so"
            " their ids say nothing about each other",
        ),
        (
            {"split": "none"},
            "{data} has no judgment of none with a score above 0: all metrics would be 0",
        ),
        (
            {"split": "other"},
            "{data} has none of the 3 passages that its judgments of other find relevant: all"
            " metrics would be 0",
        ),
    ],
)
def test_what_a_comparison_would_fail_at_is_one_line_before_any_work(folder, changes, said):
    data = folder / "data"
    for split, judged in {
        "one": {"q0": {"p0": 1}},
        "own": {"q0": {"q0": 1}, "q1": {"p1": 1}},
        "none": {"q0": {"p0": 0}, "q1": {"p1": 0}},
        "other": {"q0": {"x0": 1, "x1": 2, "p0": 0}, "q1": {"x1": 1, "x2": 1}},
    }.items():
        if split == changes.get("split"):
            write_qrels(data / "qrels" / f"{split}.tsv", judged)
    trial = Trial(data)
    survey_trial(check_trial(trial))
    with pytest.raises(UserError) as refused:
        survey_trial(check_trial(trial._replace(**changes)))
    assert str(refused.value) == said.format(data=data, languages=", ".join(languages()))


def test_relevant_passages_that_are_missing_are_counted(folder, caplog):
    judged = {"q0": {"p0": 1, "x0": 1, "x1": 0}, "q1": {"p1": 1, "x2": 2}}
    write_qrels(folder / "data" / "qrels" / "some.tsv", judged)
    survey_trial(check_trial(Trial(folder / "data", split="some")))
    said = "2 of the 4 relevant passages in the judgments of some are not in the corpus"
    assert caplog.messages == [said]


@pytest.mark.parametrize(
    ("n_judged", "warned"),
    [
        ({"one": 50, "other": 48}, {"other": 96}),
        ({"one": 49, "other": 49}, {}),  # 98 % count as all
        ({"one": 49, "other": 40}, {"other": 80}),
        ({"one": 48, "other": 48}, {}),  # none is judged better than the other
        ({"one": 48, "other": 50, "third": 49, "fourth": 0}, {"one": 96, "fourth": 0}),
        ({"one": 50, "nothing": None}, {}),
    ],
)
def test_a_ranking_that_was_judged_less_than_another_is_named(caplog, n_judged, warned):
    qrels = {f"q{query}": {f"p{i}": i % 2 for i in range(10)} for query in range(5)}
    rankings = []
    for name, n in n_judged.items():
        cells = [f"p{i % 10}" if n is not None and i < n else f"x{i}" for i in range(50)]
        first = {q: [] if n is None else cells[10 * i :][:10] for i, q in enumerate(qrels)}
        rankings.append(Ranking(name, Path(name), first=first))
    comparison._warn_of_unjudged(rankings, qrels)
    full = next((name for name, n in n_judged.items() if n is None or n >= 49), "")
    assert caplog.messages == [
        f"{share} % of the first ten passages of {name} are judged, and all of {full}: those that"
        " are not count as not relevant, so judge them too before you compare the two"
        for name, share in warned.items()
    ]
