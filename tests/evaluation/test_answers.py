"""Answers in passages, against tokens told apart one character at a time."""

import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cocondenser_jax.errors import UserError
from cocondenser_jax.evaluation.answers import answer_accuracy, make_matcher, prepare


def tokens(text):
    """DPR's tokens, from the category that Unicode gives each character."""
    found, word = [], ""
    for character in unicodedata.normalize("NFD", text) + " ":
        kind = unicodedata.category(character)[0]
        if kind in "LNM":
            word += character
            continue
        found += [word, character]
        word = ""
        if kind in "ZC":
            found.pop()
    return [token.lower() for token in found if token]


def holds(passage, answer):
    long, short = tokens(passage), tokens(answer)
    starts = range(len(long) - len(short) + 1)
    return bool(short) and any(long[i : i + len(short)] == short for i in starts)


def matcher(answers):
    found = make_matcher(answers)
    return lambda passage: found(prepare(passage))


# Composed and decomposed accents, marks, other scripts, punctuation, and all kinds of spaces.
LETTERS = st.text("aAb1ⅷ½éE\u0301\u0308ΣςÅÅ漢.,'-$_ \t\n\u00a0\u200d\x00İß", max_size=8)


@settings(max_examples=500, deadline=None)
@given(LETTERS, LETTERS, LETTERS)
def test_any_text_against_the_slow_tokens(before, answer, after):
    assert matcher([answer])(before + after) == holds(before + after, answer)
    passage = before + answer + after
    assert matcher([answer])(passage) == holds(passage, answer)
    assert matcher([answer])(f"{before} {answer} {after}") == bool(tokens(answer))


@pytest.mark.parametrize(
    ("passage", "answer", "expected"),
    [
        ("gave up just 308 points", "308", True),
        ("gave up just 1308 points", "308", False),
        ("the cafe\u0301 was closed", "CAFÉ", True),
        ("the cafe was closed", "café", False),
        ("in New\n  York City", "new york", True),
        ("the U.S. Army", "U. S.", True),
        ("the US Army", "U.S.", False),
        ("so-called", "so called", False),
        ("Mary Ann's", "Mary Ann", True),
        ("x² and Ⅷ", "x2", False),
        ("any text", "", False),
        ("any text", " \u200b", False),
        ("", "text", False),
    ],
)
def test_whole_tokens_are_compared(passage, answer, expected):
    assert matcher([answer])(passage) is expected
    assert matcher(["not there", answer])(passage) is expected
    assert matcher([])(passage) is False


@pytest.mark.parametrize("seed", range(5))
def test_accuracy_against_a_search_of_all_passages(seed):
    rng = np.random.default_rng(seed)
    words = [f"w{i}" for i in range(40)]
    passages = {f"d{i}": " ".join(rng.choice(words, 6)) for i in range(80)}
    answers = {f"q{i}": [str(w) for w in rng.choice(words, rng.integers(0, 3))] for i in range(40)}
    run = {
        f"q{i}": {str(p): float(rng.integers(0, 3)) for p in rng.permutation(list(passages))[:30]}
        for i in range(0, 44)
        if i % 6
    }

    metrics = answer_accuracy(run, answers, passages, top_k=(1, 3, 20))

    asked = [question for question in answers if answers[question]]
    assert list(metrics["per_query"]) == asked
    for k in (1, 3, 20):
        hits = []
        for question in asked:
            found = run.get(question, {})
            top = sorted(found, key=lambda p, found=found: -found[p])[:k]
            held = [set(answers[question]) & set(passages[p].split()) for p in top]
            hits.append(float(any(held)))
        values = [metrics["per_query"][question][f"Accuracy@{k}"] for question in asked]
        assert values == hits
        assert metrics["mean"][f"Accuracy@{k}"] == pytest.approx(np.mean(hits))


def test_a_question_without_results_is_a_miss_and_one_without_answers_is_none(caplog):
    answers = {"q1": ["red"], "q2": ["red"], "q3": [], "q4": ["red"]}
    run = {"q1": {"d1": 1.0}, "q3": {"d1": 1.0}, "q4": {}}
    metrics = answer_accuracy(run, answers, {"d1": "a red stone"}, top_k=(1,))
    assert metrics["mean"] == {"Accuracy@1": pytest.approx(1 / 3)}
    assert "2 of 3 answered queries have no result" in caplog.text


def test_no_passage_is_read_behind_the_first_hit_or_twice():
    class Recorded(dict):
        def __init__(self, texts):
            super().__init__(texts)
            self.read = []

        def __getitem__(self, passage):
            self.read.append(passage)
            return super().__getitem__(passage)

    passages = Recorded({"d1": "blue", "d2": "red", "d3": "red", "d4": "green"})
    run = {
        "q1": {"d1": 4.0, "d2": 3.0, "d3": 2.0},
        "q2": {"d2": 4.0, "d1": 3.0, "not in the corpus": 2.0},
    }
    metrics = answer_accuracy(run, {"q1": ["red"], "q2": ["white"]}, passages, top_k=(1, 2))
    assert passages.read == ["d1", "d2"]
    assert metrics["per_query"]["q1"] == {"Accuracy@1": 0.0, "Accuracy@2": 1.0}


def test_what_cannot_be_evaluated():
    with pytest.raises(UserError, match="no answered queries"):
        answer_accuracy({"q": {"d": 1.0}}, {"q": []}, {"d": "text"})
    with pytest.raises(UserError, match="any of the 1 answered queries"):
        answer_accuracy({"q": {"d": 1.0}}, {"r": ["text"]}, {"d": "text"})
