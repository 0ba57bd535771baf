"""How far rankings agree, against sets made by hand."""

from pathlib import Path

import pytest

from cocondenser_jax.errors import UserError, shortened
from cocondenser_jax.retriever.compare.differences import (
    Differing,
    Found,
    common_share,
    find_differences,
    mean_common,
    most_different,
)
from cocondenser_jax.retriever.compare.rankings import Ranking
from cocondenser_jax.retriever.compare.report import write_report
from tests.recording import NONE, assert_recorded, seen_on
from tests.world import write_records

FIRST = {"q0": ["a", "b", "c", "d"], "q1": ["a", "b"], "q2": ["a"]}
SECOND = {"q0": ["b", "x", "a", "y"], "q1": ["a", "b", "c", "d"], "q2": []}
THIRD = {"q0": ["x", "b"], "q1": ["b", "a"]}


def test_a_share_is_of_the_longer_list():
    assert common_share(FIRST["q0"], SECOND["q0"]) == 0.5
    assert common_share(FIRST["q1"], SECOND["q1"]) == 0.5
    assert common_share(FIRST["q1"], THIRD["q1"]) == 1.0
    assert common_share(["a"], ["b"]) == 0.0
    assert common_share(["a"], []) is None


def test_the_mean_is_over_the_pairs_in_which_both_find_something():
    rankings = [FIRST, SECOND, THIRD]
    assert mean_common(rankings, "q0") == pytest.approx((0.5 + 0.25 + 0.5) / 3)
    assert mean_common(rankings, "q1") == pytest.approx((0.5 + 1.0 + 0.5) / 3)
    assert mean_common(rankings, "q2") == 1.0
    assert most_different(rankings, 2) == ["q0", "q1"]
    # The first two alone differ alike on both: they keep their order.
    assert most_different([FIRST, SECOND], 3) == ["q0", "q1", "q2"]
    backwards = [dict(reversed(ranking.items())) for ranking in (FIRST, SECOND)]
    assert most_different(backwards, 3) == ["q1", "q0", "q2"]


def test_rankings_are_described_with_the_passages_of_the_queries_shown(tmp_path):
    corpus = write_records(
        tmp_path / "corpus.jsonl",
        [{"_id": name, "title": "T", "text": f"Text of {name} " + "w " * 200} for name in "abcdxy"],
    )
    rankings = [
        Ranking("one", Path("one.trec"), first=FIRST, seconds=1.4),
        Ranking("two", Path("two.trec"), first=SECOND, vectors=(6, 32), seconds=2000.0),
    ]
    queries = {"q0": "a query", "q1": "another", "q2": "a third"}
    found = find_differences(rankings, queries, ["q1", "q0"], corpus)
    assert found.in_common == [[1.0, 0.5], [0.5, 1.0]]
    assert found.table == [
        ["overlap@10 with", "1", "2", "vectors", "seconds"],
        ["1 one", "", "0.50", "", "1"],
        ["2 two", "0.50", "", "6 x 32", "2,000"],
    ]
    assert found.n_queries == 3
    assert [(each.query, each.words, each.common) for each in found.queries] == [
        ("q1", "another", 0.5),
        ("q0", "a query", 0.5),
    ]
    (_, shown) = found.queries
    assert isinstance(shown, Differing)
    assert [(each.passage, each.ranks) for each in shown.found] == [
        ("a", [1, 3]),
        ("b", [2, 1]),
        ("x", [None, 2]),
        ("c", [3, None]),
        ("d", [4, None]),
        ("y", [None, 4]),
    ]
    assert isinstance(shown.found[0], Found)
    assert shown.found[0].words.startswith("T Text of a w ")
    assert len(shown.found[0].words) < 170


def test_rankings_that_share_no_query_have_no_overlap(tmp_path):
    corpus = write_records(tmp_path / "corpus.jsonl", [{"_id": "a", "text": "t"}])
    rankings = [
        Ranking("one", Path("one.trec"), first={"q0": ["a"]}),
        Ranking("two", Path("two.trec"), first={"q1": ["a"]}),
    ]
    long = "a word of a query " * 20
    found = find_differences(rankings, {"q0": long, "q1": "", "q2": ""}, ["q0", "q2"], corpus)
    assert found.in_common == [[1.0, None], [None, 1.0]]
    assert found.table[1:] == [["1 one", "", "", "", "0"], ["2 two", "", "", "", "0"]]
    (shown, nothing) = found.queries
    assert (shown.words, shown.common) == (shortened(long, 160), 1.0)
    assert nothing == Differing("q2", "", 1.0, [])


def test_the_run_is_named_whose_passages_are_unknown(tmp_path):
    corpus = write_records(tmp_path / "corpus.jsonl", [{"_id": "a", "text": "t"}])
    rankings = [
        Ranking("one", Path("one.trec"), first={"q0": ["a"], "q1": ["b"]}),
        Ranking("two", Path("two.trec"), first={"q0": ["a", "c"]}),
    ]
    with pytest.raises(UserError) as refused:
        find_differences(rankings, {"q0": "", "q1": ""}, ["q0"], corpus)
    said = "two.trec names 1 passages that the data does not have: c"
    assert str(refused.value) == said


def test_a_page_shows_what_rankings_have_in_common(tmp_path):
    records = [{"_id": name, "title": "T", "text": f"of {name}"} for name in "abcdxy"]
    corpus = write_records(tmp_path / "corpus.jsonl", records)
    rankings = [
        Ranking("one", Path("one.trec"), first=FIRST, seconds=1.4),
        Ranking("two", Path("two.trec"), first=SECOND, vectors=(6, 32), seconds=2000.0),
        Ranking("three", Path("three.trec"), first=THIRD, vectors=(6, 64), seconds=3.0),
    ]
    queries = {"q0": "a query", "q1": "another", "q2": "a third"}
    found = find_differences(rankings, queries, ["q0", "q2"], corpus)
    write_report(tmp_path / "page.html", "A title", "Words.", {}, changes=found)
    texts = {"page": seen_on((tmp_path / "page.html").read_text())}
    assert_recorded("differences", texts, masked=NONE)
