"""`evaluate` as a user types it: tables, files, and one line for each mistake."""

import json
import re

import pytest
from scipy import stats

from cocondenser_jax.cli import main
from tests.lines import printed, refusal, run_lines, whole, write_lines
from tests.world import write_records

RUN = ["q1 d2 d1 d3", "q2 d2 d1", "q3 d4 d3 d2"]
OTHER = ["q1 d1 d2 d3", "q2 d2 d1", "q3 d4 d2 d3"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two runs and judgments, in the working directory."""
    for name, rankings in (("run.trec", RUN), ("other.trec", OTHER)):
        write_lines(tmp_path / name, run_lines(rankings))
    write_lines(tmp_path / "qrels.tsv", ["q1 0 d1 1", "q2 0 d2 1", "q3 0 d3 1", "q4 0 d1 1"])
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.effect("evaluate --run", "evaluate --qrels", "evaluate --metric")
@pytest.mark.effect("evaluate --json_out")
def test_metrics_by_judgments(folder, capsys):
    command = "evaluate --run=run.trec --qrels=qrels.tsv --json_out=f"
    assert main([*command.split(), "--metric=MRR@10, Recall@1"]) == 0
    assert printed(capsys) == [["MRR@10", "0.5000"], ["Recall@1", "0.2500"]]
    metrics = json.loads((folder / "f").read_text())
    assert metrics == {
        "mean": {"MRR@10": 0.5, "Recall@1": 0.25},
        "per_query": {
            "q1": {"MRR@10": 0.5, "Recall@1": 0.0},
            "q2": {"MRR@10": 1.0, "Recall@1": 1.0},
            "q3": {"MRR@10": 0.5, "Recall@1": 0.0},
            "q4": {"MRR@10": 0.0, "Recall@1": 0.0},
        },
    }


@pytest.mark.effect("evaluate --ignore_identical_ids")
def test_results_with_the_id_of_their_query_are_left_out(folder, capsys):
    write_lines(folder / "self.trec", run_lines(["d1 d1 d2", "d2 d2 d3 d1"]))
    write_lines(folder / "self.tsv", ["d1 0 d2 1", "d2 0 d1 1"])
    command = "evaluate --run=self.trec --compare_with=self.trec --qrels=self.tsv --metric=MRR@10"
    assert main(command.split()) == 0
    assert printed(capsys)[1][1:3] == [f"{(1 / 2 + 1 / 3) / 2:.4f}"] * 2
    assert main([*command.split(), "--ignore_identical_ids"]) == 0
    assert printed(capsys)[1][1:3] == [f"{(1 + 1 / 2) / 2:.4f}"] * 2


@pytest.mark.effect("evaluate --compare_with")
def test_two_runs_are_compared(folder, capsys):
    command = "evaluate --run=run.trec --compare_with=other.trec --qrels=qrels.tsv"
    assert main([*command.split(), "--metric=MRR@10,Recall@1", "--json_out=f"]) == 0
    header, *rows = printed(capsys)
    names = "run other difference 95 % p (t-test) p (randomization) better worse equal"
    assert " ".join(header) == names
    # Differences of MRR@10: -1/2, 0, 1/2 - 1/3, 0.
    assert [row[:4] for row in rows] == [
        ["MRR@10", "0.5000", "0.5833", "-0.0833"],
        ["Recall@1", "0.2500", "0.5000", "-0.2500"],
    ]
    assert rows[0][4:7] == ["-0.3750", "to", "+0.1250"]
    assert [row[9:] for row in rows] == [["1", "1", "2"], ["0", "1", "3"]]
    p = stats.ttest_1samp([-1 / 2, 0, 1 / 2 - 1 / 3, 0], 0).pvalue
    assert rows[0][7] == f"{p:.3g}"
    assert rows[0][8] == rows[1][8] == "1"
    result = json.loads((folder / "f").read_text())
    assert result["mean"]["Recall@1"] == 0.25
    assert result["compared_with"]["per_query"]["q3"]["MRR@10"] == pytest.approx(1 / 3)
    assert result["comparisons"]["MRR@10"]["difference"] == pytest.approx(-1 / 12)


def test_p_of_two_runs_is_a_bound_where_the_draws_end(folder, capsys):
    queries = range(20)
    (folder / "many.tsv").write_text("".join(f"q{i} 0 d 1\n" for i in queries))
    (folder / "first.trec").write_text("".join(f"q{i} Q0 d 1 2 t\n" for i in queries))
    (folder / "last.trec").write_text("".join(f"q{i} Q0 x 1 2 t\n" for i in queries))
    command = "evaluate --run=first.trec --compare_with=last.trec --qrels=many.tsv"
    assert main([*command.split(), "--metric=MRR@10"]) == 0
    row = printed(capsys)[1]
    assert row[8:10] == ["≤", "0.0002"]


def test_a_run_against_itself(folder, capsys):
    command = "evaluate --run=run.trec --compare_with=run.trec --qrels=qrels.tsv --metric=MRR@10"
    assert main(command.split()) == 0
    assert printed(capsys)[1] == "MRR@10 0.5000 0.5000 +0.0000 +0.0000 to +0.0000 1 1 0 0 4".split()


@pytest.mark.effect("evaluate --report", "evaluate --data")
def test_the_queries_that_change_are_shown(folder, capsys):
    texts = {"q1": "<b>first</b>", "q2": "second", "q3": "third " * 200, "q4": "fourth"}
    records = [{"_id": query, "text": text} for query, text in texts.items()]
    write_records(folder / "data" / "queries.jsonl", records)
    passages = [{"_id": f"d{i}", "title": f"Title {i}", "text": f"text {i}"} for i in range(1, 5)]
    write_records(folder / "data" / "corpus.jsonl", passages)
    compared = "evaluate --run=run.trec --compare_with=other.trec --qrels=qrels.tsv"
    command = [*compared.split(), "--metric=MRR@10,Recall@1", "--data=data"]
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "report: report.html"
    assert main([*command, "--report=page.html", "--json_out=page.json"]) == 0
    tests = json.loads((folder / "page.json").read_text())["comparisons"]
    assert tests["MRR@10"]["difference"] != tests["Recall@1"]["difference"]
    said = f"difference {tests['MRR@10']['difference']:+.4f}"
    assert said in (folder / "page.html").read_text()
    assert (folder / "page.html").read_text() == (folder / "report.html").read_text()
    (folder / "report.html").unlink()
    (folder / "report.html").mkdir()  # is in the way of a report only
    assert main(compared.split()) == 0
    capsys.readouterr()
    assert main(command) == 2
    assert "report.html" in capsys.readouterr().err
    (folder / "report.html").rmdir()
    page = (folder / "page.html").read_text()
    gained, lost = page[page.index("Gained most") :].split("Lost most")
    assert re.findall(r'<span class="gain">(.*?)</span> (\w+)', gained) == [("+0.167", "third")]
    assert re.findall(r'<span class="gain">(.*?)</span> (\S+)', lost)[0][0] == "-0.500"
    assert "&lt;b&gt;first&lt;/b&gt;" in lost
    assert page.count("third") < 40
    assert re.findall(r"<b>(\S+ → \S+)</b> (Title \d)", lost) == [("1 → 2", "Title 1")]
    assert re.findall(r"<b>(\S+ → \S+)</b> (Title \d)", gained) == [("3 → 2", "Title 3")]
    write_records(folder / "data" / "corpus.jsonl", passages[:1])
    assert main(command) == 2
    assert "passages that the data does not have" in capsys.readouterr().err
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            "--qrels=qrels.tsv --run=nan.trec",
            "nan.trec:1: the score must be a finite number, not 'nan'",
        ),
        ("--qrels=qrels.tsv --run=none.trec", "cannot read none.trec: No such file or directory"),
        (
            "--qrels=qrels.tsv --run=strange.trec",
            (
                "strange.trec has no result for any of the 4 judged queries: its ids look "
                "like x1, theirs like q1; is this the right split?"
            ),
        ),
        (
            "--qrels=qrels.tsv --compare_with=nan.trec",
            "nan.trec:1: the score must be a finite number, not 'nan'",
        ),
        (
            "--qrels=one.tsv --compare_with=other.trec",
            "a comparison of two runs needs at least two queries",
        ),
        (
            "--qrels=qrels.tsv --metric=MRR@ten",
            "unknown metric 'MRR@ten': expected, for instance, MRR@10, Recall@100, nDCG@10",
        ),
        (
            "--qrels=qrels.tsv --metric=NumRel",
            "unknown metric 'NumRel': expected, for instance, MRR@10, Recall@100, nDCG@10",
        ),
        (
            "--qrels=qrels.tsv --metric=Recall@0",
            "unknown metric 'Recall@0': expected, for instance, MRR@10, Recall@100, nDCG@10",
        ),
        (
            "--qrels=qrels.tsv --metric=",
            "unknown metric '': expected, for instance, MRR@10, Recall@100, nDCG@10",
        ),
        (
            "--qrels=none.tsv --metric=map_at_3",
            "unknown metric 'map_at_3': expected, for instance, MRR@10, Recall@100, nDCG@10",
        ),
        ("--qrels=qrels.tsv --top_k=5", "No such option '--top_k'…"),
        ("", "Missing option '--qrels'…"),
    ],
)
def test_a_mistake_gets_one_line_and_status_2(folder, capsys, flags, says):
    write_lines(folder / "nan.trec", ["q1 Q0 d1 1 nan t"])
    write_lines(folder / "strange.trec", ["x1 Q0 d1 1 1.0 t"])
    write_lines(folder / "one.tsv", ["q1 0 d1 1"])
    run = [] if "--run=" in flags else ["--run=run.trec"]
    command = ["evaluate", *run, *flags.split(), "--json_out=metrics.json"]
    assert main(command) == 2
    error = capsys.readouterr().err.splitlines()
    assert [line for line in error if line.startswith("cocondenser: ")] == error[-1:]
    assert re.match(whole(f"cocondenser: {says}"), error[-1])
    assert not (folder / "metrics.json").exists()


@pytest.mark.parametrize(("run", "other"), [("empty", "run"), ("run", "empty")])
def test_a_run_without_results_is_compared_with_none(folder, capsys, run, other):
    (folder / "empty.trec").write_text("")
    runs = [f"--run={run}.trec", f"--compare_with={other}.trec"]
    assert main(["evaluate", "--qrels=qrels.tsv", *runs]) == 2
    said = "empty.trec has no result for any of the 4 judged queries: nothing to compare"
    assert refusal(capsys) == said


def test_queries_that_find_themselves_are_counted_in_one_line(folder, caplog):
    (folder / "own.tsv").write_text("q1 0 d1 1\nq2 0 d1 1\n")
    for name in ("a.trec", "b.trec"):
        (folder / name).write_text("q1 Q0 q1 1 2.0 t\nq1 Q0 d1 2 1.0 t\nq2 Q0 d1 1 1.0 t\n")
    command = "evaluate --run=a.trec --compare_with=b.trec --qrels=own.tsv".split()
    assert main(command) == 0
    assert [line for line in caplog.messages if "own id" in line] == [
        "1 of 2 queries of a.trec, 1 of 2 queries of b.trec have a result with their own id: if"
        " queries are passages, as in ArguAna and Quora, leave it out with --ignore_identical_ids"
    ]
    caplog.clear()
    assert main([*command, "--ignore_identical_ids"]) == 0
    assert "own id" not in caplog.text


@pytest.mark.effect("evaluate --data")
def test_copies_of_relevant_passages_are_counted(folder, capsys, caplog):
    """By their texts: the metrics stay trec_eval's."""
    texts = {"d1": "one", "d2": "One ", "d3": "three", "d4": "four"}
    write_records(folder / "corpus.jsonl", [{"_id": d, "text": t} for d, t in texts.items()])
    write_records(folder / "queries.jsonl", [{"_id": f"q{i}", "text": "x"} for i in range(1, 5)])
    command = "evaluate --run=run.trec --compare_with=other.trec --qrels=qrels.tsv --metric=MRR@10"
    assert main(command.split()) == 0
    table = capsys.readouterr().out
    assert "unjudged copy" not in caplog.text
    assert main([*command.split(), "--data=."]) == 0
    assert capsys.readouterr().out.startswith(table)
    said = "2 of 4 queries of other.trec, 2 of 4 queries of run.trec have, among their first 10 pa"
    assert caplog.text.count(said) == 1
