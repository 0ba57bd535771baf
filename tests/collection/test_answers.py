"""Files of answers: names of fields, and what is refused."""

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


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"_id": "q2", "answers": ["x"]', ":2 is not valid JSON"),
        (b'["q2"]', ":2: expected a JSON object"),
        (b'{"_id": 2.5, "answers": ["x"]}', ":2: the id must be a string"),
        (b'{"answers": ["x"]}', ":2: the field '_id' is missing"),
        (b'{"_id": "q2"}', ":2: the field 'answers' is missing"),
        (b'{"_id": "q2", "answers": "x"}', ":2: the answers must be a list"),
        (b'{"_id": "q2", "answers": [3]}', ":2: the answers must be a list"),
        (b'{"_id": "q1", "answers": ["x"]}', ":2: the id 'q1' occurs twice"),
        (b'{"_id": "caf\xe9"}', ":2: not UTF-8"),
    ],
)
def test_bad_files_are_named(tmp_path, line, message):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"_id": "q1", "answers": ["x"]}\n' + line + b"\n")
    with pytest.raises(UserError, match=message):
        read_answers(path)


def test_a_file_without_answers(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text('{"_id": "q1", "answers": []}\n')
    with pytest.raises(UserError, match="holds no answers"):
        read_answers(path)
    with pytest.raises(UserError, match="cannot read"):
        read_answers(tmp_path / "none.jsonl")
