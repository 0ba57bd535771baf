"""Files of answers: names of fields, DPR's layout, and what is refused."""

import gzip
import json

import pytest

from cocondenser_jax.collection.layouts import read_answers
from cocondenser_jax.errors import UserError


def test_every_name_of_the_fields(tmp_path):
    path = tmp_path / "answers.jsonl"
    records = [
        {"_id": "a", "question": "?", "answers": ["one", "two"]},
        {"id": "b", "answer": ["three"]},
        {"query_id": "c", "answers": []},
    ]
    path.write_text("\n\n".join(map(json.dumps, records)))
    assert read_answers(path) == {"a": ["one", "two"], "b": ["three"], "c": []}


def test_questions_of_dpr_have_their_line_as_id(tmp_path):
    path = tmp_path / "test.csv"
    text = (
        'who wrote it\t[\'Søren "the Dane"\', "O\'Neill"]\n'
        '"he said ""so"" first"\t"[\'a\', ""b\'s""]"\n'
        "\n"
        'in json\t["caf\\u00e9 \\/ bar"]\n'
        "a pattern\t['\\d+ (feet|m)\\b']\n"
    )
    path.write_text(text)
    packed = tmp_path / "nq-test.qa.csv.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    assert read_answers(packed) == read_answers(path)
    assert read_answers(path) == {
        "0": ['Søren "the Dane"', "O'Neill"],
        "1": ["a", "b's"],
        "3": ["café / bar"],
        "4": ["\\d+ (feet|m)\b"],
    }


def test_training_questions_of_dpr_hold_their_answers(tmp_path):
    path = tmp_path / "biencoder-nq-train.json"
    records = [
        {"question": "who?", "answers": ["a\u00e9", "x"]},
        {"question": "?", "answers": []},
    ]
    path.write_text(json.dumps(records))
    assert read_answers(path) == {"0": ["a\u00e9", "x"], "1": []}
    path.write_text(json.dumps([*records, {"question": "when?"}]))
    with pytest.raises(UserError, match=r"question 2: the field 'answers' is missing"):
        read_answers(path)


@pytest.mark.parametrize(
    ("name", "text", "where"),
    [
        ("a.csv", "who?\t['x']\nwhen?\t['y']\n", "a.csv:2"),
        (
            "a.json",
            '[{"question": "who?", "answers": ["x"]}, {"question": "when?", "answers": ["y"]}]',
            "a.json, question 1",
        ),
        (
            "a.jsonl",
            '{"_id": 0, "answers": ["x"]}\n{"_id": 1, "text": "when?", "answers": ["y"]}\n',
            "a.jsonl:2",
        ),
    ],
)
def test_answers_to_other_questions_are_refused(tmp_path, name, text, where):
    path = tmp_path / name
    path.write_text(text)
    found = {"0": ["x"], "1": ["y"]}
    assert read_answers(path, {"0": "who?", "1": "when?", "2": "why?"}) == found
    assert read_answers(path, {"0": "who?"}) == found
    # The same ids: only the texts tell.
    with pytest.raises(
        UserError, match=rf"{where}: expected the question 'where\?', found 'when\?'"
    ):
        read_answers(path, {"0": "who?", "1": "where?"})


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("a.jsonl", b'{"_id": "q2", "answers": ["x"]', ":2 is not valid JSON"),
        ("a.jsonl", b'["q2"]', ":2: expected a JSON object"),
        ("a.jsonl", b'{"_id": 2.5, "answers": ["x"]}', ":2: the id must be a string"),
        ("a.jsonl", b'{"answers": ["x"]}', ":2: the field '_id' is missing"),
        ("a.jsonl", b'{"_id": "q2"}', ":2: the field 'answers' is missing"),
        ("a.jsonl", b'{"_id": "q2", "answers": "x"}', ":2: the answers must be a list"),
        ("a.jsonl", b'{"_id": "q2", "answers": [3]}', ":2: the answers must be a list"),
        ("a.jsonl", b'{"_id": "q1", "answers": ["x"]}', ":2: the id 'q1' occurs twice"),
        ("a.jsonl", b'{"_id": "caf\xe9"}', ":2: not UTF-8"),
        ("a.csv", b"question\tx", ":2: the answers must be a list"),
        ("a.csv", b"question\t[1, 2]", ":2: the answers must be a list"),
        ("a.csv", b"question\t['x'", ":2: the answers must be a list"),
        ("a.csv", b"question\t[print('run')]", ":2: the answers must be a list"),
        ("a.csv", b"question", ":2: expected 2 tab-separated fields"),
        ("a.csv", b"question\t['x']\t3", ":2: expected 2 tab-separated fields"),
        ("a.csv", b"question\t" + b"[" * 100_000, ":2: the answers must be a list"),
        (
            "a.csv",
            b"question\t" + b"x" * 200_000,
            ":2: the answers must be a list of strings",
        ),
    ],
)
def test_bad_files_are_named(tmp_path, capsys, name, line, message):
    path = tmp_path / name
    first = b"question\t['x']" if name == "a.csv" else b'{"_id": "q1", "answers": ["x"]}'
    path.write_bytes(first + b"\n" + line + b"\n")
    with pytest.raises(UserError, match=message):
        read_answers(path)
    assert capsys.readouterr().out == ""


def test_a_file_without_answers(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text('{"_id": "q1", "answers": []}\n')
    with pytest.raises(UserError, match="holds no answers"):
        read_answers(path)
    with pytest.raises(UserError, match="cannot read"):
        read_answers(tmp_path / "none.jsonl")
