"""The entries of a comparison: their names, what they are tested against, their seconds."""

import json

import pytest

from cocondenser_jax.quickstart.comparison import Entry, compare_entries, ranking_name
from tests.world import write_beir

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
