"""Answers in passages, against tokens told apart one character at a time."""

import json
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.data.trec import read_run
from papers import answers as script
from papers.answers import answer_accuracy, make_matcher, prepare, read_answers
from tests.mutations import fuzz_content, fuzz_record, jsonl
from tests.world import write_records


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


TEXTS = {"d1": "A red stone.", "d2": "A blue river in 1953.", "d3": "A green tree.", "d4": "Fish."}
ANSWERS = {"q1": ["Stone"], "q2": ["river"], "q3": ["1953", "white"], "q4": ["red"]}
RUN = {"q1": "d2 d1 d3", "q2": "d2 d1", "q3": "d4 d3 d2"}  # q4 has no result


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A run, answers and a corpus in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    # One answer of q3 stands in every title, but titles are not searched.
    passages = ({"_id": p, "title": "white sheet", "text": text} for p, text in TEXTS.items())
    write_records(tmp_path / "data" / "corpus.jsonl", passages)
    answered = ({"_id": q, "answers": found} for q, found in ANSWERS.items())
    write_records(tmp_path / "answers.jsonl", answered)
    lines = [
        f"{query} Q0 {passage} {rank} {-rank} t\n"
        for query, passages in RUN.items()
        for rank, passage in enumerate(passages.split(), start=1)
    ]
    (tmp_path / "run.trec").write_text("".join(lines))
    return tmp_path


def given(command, run="run.trec", answers="answers.jsonl", corpus="data"):
    return [command, f"--run={run}", f"--answers={answers}", f"--corpus={corpus}"]


def test_evaluate_prints_the_accuracy_and_writes_that_of_each_question(folder, capsys):
    script.main([*given("evaluate"), "--top_k=1,2,3", "--json_out=f"])
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert printed == [["Accuracy@1", "0.2500"], ["Accuracy@2", "0.5000"], ["Accuracy@3", "0.7500"]]
    metrics = json.loads((folder / "f").read_text())
    ranks = {"q1": 2, "q2": 1, "q3": 3, "q4": 9}
    assert metrics["per_query"] == {
        question: {f"Accuracy@{k}": float(rank <= k) for k in (1, 2, 3)}
        for question, rank in ranks.items()
    }


def test_drop_keeps_passages_without_an_answer_in_their_order(folder):
    script.main([*given("drop"), "--out=pool.trec"])
    kept = {query: [*found] for query, found in read_run(folder / "pool.trec").items()}
    assert kept == {"q1": ["d2", "d3"], "q2": ["d1"], "q3": ["d4", "d3"]}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*given("evaluate"), "--top_k=5,ten"], "expected a whole number from 1, not 'ten'"),
        ([*given("evaluate"), "--top_k=0"], "expected a whole number from 1, not '0'"),
        (given("evaluate", corpus="none"), "none does not exist"),
        (given("evaluate", run="beyond.trec"), "names 1 passages that the data does not have: d9"),
        (given("evaluate", run="strange.trec"), "no result for any of the 4 answered queries"),
        (given("evaluate", answers="none.jsonl"), "cannot read none.jsonl"),
        (given("drop"), "the following arguments are required: --out"),
        ([*given("drop", run="beyond.trec"), "--out=new"], "names 1 passages that the data"),
    ],
)
def test_a_mistake_gets_one_line_and_status_2(folder, capsys, words, said):
    (folder / "beyond.trec").write_text("q1 Q0 d9 1 1.0 t\n")
    (folder / "strange.trec").write_text("x1 Q0 d1 1 1.0 t\n")
    with pytest.raises(SystemExit, match="2"):
        script.main(words)
    assert said in capsys.readouterr().err.splitlines()[-1]
    assert not (folder / "new").exists()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"_id": "q2", "answers": ["x"]', "answers.jsonl:2 is not valid JSON"),
        ('{"_id": "q2"}', ":2: expected `answers`, a list of strings"),
        ('{"_id": "q2", "answers": [3]}', ":2: expected `answers`, a list of strings"),
        ('{"answers": ["x"]}', ":2: expected `_id`, which no other line has"),
        ('{"_id": "q1", "answers": ["x"]}', ":2: expected `_id`, which no other line has"),
    ],
)
def test_a_broken_line_of_answers_is_named(tmp_path, line, said):
    path = tmp_path / "answers.jsonl"
    path.write_text('{"_id": "q1", "answers": ["x"]}\n' + line + "\n")
    with pytest.raises(UserError, match=said):
        read_answers(path)


def test_a_file_without_answers_is_refused(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text('{"_id": "q1", "answers": []}\n')
    with pytest.raises(UserError, match="holds no answers"):
        read_answers(path)


def test_a_broken_file_of_answers_is_read_or_refused(tmp_path):
    record = {"_id": "1", "answers": ["a", "b"]}
    fuzz_content(tmp_path / "answers.jsonl", jsonl(record), read_answers)
    fuzz_record(tmp_path / "answers.jsonl", record, read_answers)
