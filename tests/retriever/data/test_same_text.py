"""Copies of relevant passages: added to what is relevant, and counted where they are ranked."""

import ir_measures

from cocondenser_jax.retriever.data.ranking import evaluate_run
from cocondenser_jax.retriever.data.same_text import (
    count_added,
    count_copies,
    note_firsts,
    text_key,
    warn_of_copies,
    with_copies,
)

TEXTS = {"a": "One text.", "b": "one  TEXT. ", "c": "another", "d": "another", "e": "third"}
QRELS = {"q1": {"a": 1}, "q2": {"c": 2, "d": 0}, "q3": {"e": 1, "a": 0}, "q4": {"gone": 1}}
SAID = (
    "have, among their first 10 passages, an unjudged copy of a relevant passage: it counts as not"
    " relevant, as in trec_eval, so the metrics are too low (judge copies, or remove them from the"
    " corpus)"
)
FIRST = {"q1": ["c", "b", "a"], "q2": ["d", "c"], "q3": ["b", "e"], "q4": ["a", "b"]}


def texts(named):
    return TEXTS.items()


def test_copies_are_relevant_but_for_their_own_grade():
    relevant = {"q1": {"a": 3}, "q2": {"c": 2}, "q4": {"gone": 1}}
    expanded = with_copies(relevant, TEXTS.items(), TEXTS.items())
    assert expanded == {"q1": {"a": 3, "b": 3}, "q2": {"c": 2, "d": 2}, "q4": {"gone": 1}}
    assert count_added(relevant, expanded) == 2
    both = {"q": {"a": 3, "b": 1}}
    assert with_copies(both, TEXTS.items(), TEXTS.items()) == both


def test_unicodes_forms_of_a_text_are_copies():
    assert text_key("Café ﬁne") == text_key("cafe\N{COMBINING ACUTE ACCENT}  FINE")
    assert text_key("10 m² ①") == text_key("10 m2 1")  # as XLM-R's tokenizer reads them
    assert text_key("café") != text_key("cafe")


def test_queries_are_counted_that_find_a_copy_which_is_not_judged():
    """Not a copy that has a grade, nor one of what is not relevant, or is not there."""
    others = {"q1": ["a"], "q2": []}
    rankings = {"first": FIRST, "others": others, "twice": {"q1": ["b", "b"], "q2": ["e"]}}
    assert count_copies(rankings, QRELS, texts) == {"first": 1, "others": 0, "twice": 1}


def test_the_first_ten_passages_of_judged_queries_are_noted():
    scores = {f"p{i}": -float(i) for i in range(12)}
    results = [("q1", scores), ("unjudged", scores)]
    noted = {}
    assert [*note_firsts(iter(results), QRELS, noted)] == results
    assert noted == {"q1": [f"p{i}" for i in range(10)]}


def test_the_warning_is_one_line_and_the_metric_is_trec_evals(caplog):
    warn_of_copies({"bm25": FIRST, "dense": {"q1": ["a"]}}, QRELS, texts)
    assert caplog.messages == [f"1 of 4 queries of bm25 {SAID}"]
    caplog.clear()
    warn_of_copies({"bm25": FIRST, "dense": {"q1": ["b"]}}, QRELS, texts)
    assert caplog.messages == [f"1 of 4 queries of bm25, 1 of 4 queries of dense {SAID}"]
    caplog.clear()
    warn_of_copies({"dense": {"q1": ["a"]}}, QRELS, texts)
    assert not caplog.messages
    run = {q: {p: -float(i) for i, p in enumerate(found)} for q, found in FIRST.items()}
    expected = ir_measures.calc_aggregate([ir_measures.RR @ 10], QRELS, run)
    assert [*evaluate_run(QRELS, run, ["MRR@10"])["mean"].values()] == [*expected.values()]
