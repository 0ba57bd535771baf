"""The data folder that is made of XQuAD's file."""

import json

import pytest

from cocondenser_jax.retriever.data.folder import read_corpus, read_split
from experiments import xquad


def write(path, data):
    path.write_text(json.dumps(data), encoding="utf-8")
    return [f"--json={path}", f"--out={path.parent / 'out'}"]


def test_paragraphs_are_passages_and_relevant_to_their_questions(tmp_path):
    def asked(name, answer):
        return {"id": name, "question": f"Where is {name}?", "answers": [{"text": answer}]}

    paragraphs = [
        {"context": "Rain in Köln.", "qas": [asked("a", "Köln"), asked("b", "Rain")]},
        {"context": "Sun in Bonn.", "qas": [asked("c", "Bonn")]},
    ]
    articles = [{"title": "Weather", "paragraphs": paragraphs}, {"title": "No", "paragraphs": []}]
    xquad.main(write(tmp_path / "x.json", {"data": articles}))
    folder = tmp_path / "out"
    assert [tuple(passage) for passage in read_corpus(folder)] == [
        ("0-0", "Weather", "Rain in Köln."),
        ("0-1", "Weather", "Sun in Bonn."),
    ]
    queries, qrels = read_split(folder, "test")
    assert queries == {name: f"Where is {name}?" for name in "abc"}
    assert qrels == {"a": {"0-0": 1}, "b": {"0-0": 1}, "c": {"0-1": 1}}
    lines = (folder / "answers.jsonl").read_text("utf-8").splitlines()
    assert {line["_id"]: line["answers"] for line in map(json.loads, lines)} == {
        "a": ["Köln"],
        "b": ["Rain"],
        "c": ["Bonn"],
    }


@pytest.mark.parametrize("data", [{"data": [{"title": "x"}]}, {"rows": []}, {"data": 3}])
def test_another_file_is_refused(tmp_path, capsys, data):
    with pytest.raises(SystemExit) as ended:
        xquad.main(write(tmp_path / "x.json", data))
    assert ended.value.code == 2
    assert "x.json is not laid out as SQuAD's files" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
