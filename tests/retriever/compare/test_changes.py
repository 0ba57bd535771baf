"""What changes between two rankings, on rankings made by hand."""

import numpy as np
import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.compare.changes import Judged, Move, find_changes
from cocondenser_jax.retriever.compare.rankings import Ranking, measure
from cocondenser_jax.retriever.compare.report import write_changes, write_report
from cocondenser_jax.retriever.data.significance import compare
from cocondenser_jax.retriever.data.trec import write_run
from tests.recording import NONE, assert_recorded, seen_on
from tests.world import read_records, write_records

METRIC = "RR@10"


def run_of(rankings):
    """Makes a run of {query: passages, best first}."""
    return {q: {p: -float(i) for i, p in enumerate(names)} for q, names in rankings.items()}


def ranking(name, rankings, qrels, folder):
    run = run_of(rankings)
    source = folder / f"{name}.trec"
    write_run(source, run)
    return measure(Ranking(name, source), run, qrels, [METRIC])


@pytest.fixture
def corpus(tmp_path):
    texts = [{"_id": f"p{i}", "title": f"T{i}", "text": f"text {i}"} for i in range(40)]
    write_records(tmp_path / "corpus.jsonl", texts)
    return tmp_path


def test_passages_that_come_go_or_are_judged_and_move(corpus):
    qrels = {"q": {"p1": 2, "p2": 0, "p30": 1}, "r": {"p5": 1}}
    others = [f"p{i}" for i in range(10, 19)]
    before = ranking("old", {"q": ["p3", "p2", "p1", *others], "r": ["p5"]}, qrels, corpus)
    after = ranking("new", {"q": ["p1", "p4", "p3", "p2", *others], "r": ["p5"]}, qrels, corpus)
    judged = Judged(METRIC, qrels, {"q": "a query", "r": "another"}, corpus)
    changes = find_changes(before, after, judged)
    assert (changes.before, changes.after, changes.metric) == ("old", "new", METRIC)
    assert changes.lost == []
    (change,) = changes.gained
    assert (change.query, change.words) == ("q", "a query")
    assert (change.before, change.after, change.gain) == pytest.approx((1 / 3, 1, 2 / 3))
    # p3 moved, but is not judged; p16 was the tenth, and is so no more.
    assert change.moves == [
        Move(3, 1, "p1", "T1 text 1", 2),
        Move(None, 2, "p4", "T4 text 4", None),
        Move(2, 4, "p2", "T2 text 2", 0),
        Move(10, None, "p16", "T16 text 16", None),
    ]
    np.testing.assert_allclose(changes.gains_Q, [0, 2 / 3])


def test_a_page_shows_what_changed(corpus):
    """With ranks, grades, and the starts of texts; what did not change is counted."""
    long = {"_id": "p8", "title": "Long", "text": "word " * 80}
    records = [*read_records(corpus / "corpus.jsonl")[:8], long]
    write_records(corpus / "corpus.jsonl", records)
    qrels = {"best": {"p1": 1, "p3": 0}, "worse": {"p2": 2}, "alike": {"p5": 1}}
    qrels["better"] = {"p8": 1}
    old = {"best": ["p0", "p3", "p1"], "worse": ["p2", "p0"], "alike": ["p5", "p6"]}
    new = {"best": ["p1", "p0", "p3"], "worse": ["p4", "p2", "p0"], "alike": ["p5", "p7"]}
    old["better"], new["better"] = ["p0", "p8"], ["p8", "p0"]
    queries = {"best": "a query, " * 30, "worse": "another <query>", "alike": "a third"}
    queries["better"] = "a fourth"
    rankings = [ranking(name, run, qrels, corpus) for name, run in (("old", old), ("new", new))]
    before, after = (each.metrics["per_query"] for each in rankings)
    judged = Judged(METRIC, qrels, queries, corpus)
    write_changes(corpus / "page.html", *rankings, judged, compare(after, before)[METRIC])
    texts = {"page": seen_on((corpus / "page.html").read_text())}
    assert_recorded("changes", texts, masked=NONE)


def test_the_run_is_named_whose_passages_are_unknown(corpus):
    qrels = {"q": {"p1": 1}, "r": {"p1": 1}}
    runs = {"known": {"q": ["p1"], "r": ["p1"]}, "unknown": {"q": ["p2", "p1"], "r": ["x", "p1"]}}
    known, unknown = (ranking(name, run, qrels, corpus) for name, run in runs.items())
    judged = Judged(METRIC, qrels, {"q": "", "r": ""}, corpus)
    for pair in ((known, unknown), (unknown, known)):
        with pytest.raises(UserError) as refused:
            find_changes(*pair, judged)
        said = "unknown.trec names 1 passages that the data does not have: x"
        assert str(refused.value) == f"{corpus}/{said}"


def test_what_has_its_querys_id_is_left_out(corpus):
    """The page and the metrics are of the same passages."""
    qrels = {"p1": {"p2": 1}}
    run = run_of({"p1": ["p1", *(f"p{i}" for i in range(3, 12)), "p2"]})
    found = measure(
        Ranking("old", corpus / "old.trec"), run, qrels, [METRIC], ignore_identical_ids=True
    )
    assert found.first == {"p1": [*(f"p{i}" for i in range(3, 12)), "p2"]}
    assert found.metrics["mean"][METRIC] == pytest.approx(1 / 10)


def test_the_twenty_that_change_most_are_shown_of_many(corpus):
    n = 10_000
    qrels = {f"q{i}": {"p1": 1} for i in range(n)}
    places = np.arange(n) % 10
    fillers = [f"p{i}" for i in range(20, 30)]

    def rank(at):
        return {q: [*fillers[:i], "p1", *fillers[i:]] for q, i in zip(qrels, at, strict=True)}

    before = ranking("old", rank(places), qrels, corpus)
    after = ranking("new", rank(np.roll(places, 1)), qrels, corpus)
    queries = dict.fromkeys(qrels, "<script>alert(1)</script> " * 50)
    judged = Judged(METRIC, qrels, queries, corpus)
    changes = find_changes(before, after, judged)
    gains = [change.gain for change in changes.gained]
    losses = [change.gain for change in changes.lost]
    assert len(gains) == len(losses) == 20
    expected = np.sort(
        [1 / (1 + b) - 1 / (1 + a) for a, b in zip(places, np.roll(places, 1), strict=True)]
    )
    np.testing.assert_allclose(changes.gains_Q, expected)
    np.testing.assert_allclose(gains, expected[::-1][:20])
    np.testing.assert_allclose(losses, expected[:20])
    write_report(corpus / "page.html", "a title", "", {}, changes=changes)
    page = (corpus / "page.html").read_text()
    assert len(page) < 300_000
    assert "<script" not in page
    assert page.count("<details>") == 40
    assert f">gain in {METRIC}</text>" in page
