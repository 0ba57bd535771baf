"""The example that makes BoolQ's collection, on articles and questions made up here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cocondenser_jax.retriever.data.folder import read_corpus, read_split

ROOT = Path(__file__).parents[1]


def words(name, n):
    return [f"{name}{i}" for i in range(n)]


def asked(title, passage, question="is it so"):
    return {"question": question, "title": title, "answer": True, "passage": " ".join(passage)}


def write_lines(path, objects):
    path.write_text("".join(json.dumps(one) + "\n" for one in objects))


def run(folder, *flags):
    return subprocess.run(
        [sys.executable, ROOT / "examples" / "boolq.py", f"--boolq={folder}", *flags],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def folder(tmp_path):
    """Articles with paragraphs a to d of 20 words, one of 19, and questions."""
    paragraph = {name: " ".join(words(name, 20)) for name in "abcde"}
    lines = ["CATS", paragraph["a"], " ".join(words("short", 19)), f" {paragraph['b']} "]
    articles = [
        {"id": 7, "title": "CATS", "text": "\n".join(lines)},
        {"id": 8, "title": "Dogs", "text": f"{paragraph['c']}\n{paragraph['d']}"},
        {"id": 9, "title": "Nobody asks", "text": paragraph["e"]},
    ]
    write_lines(tmp_path / "articles.jsonl", articles)
    dev = [
        asked("Cats", words("B", 14) + words("x", 6), "shares 14 of 20 words"),
        asked("Cats", words("b", 13) + words("x", 7), "shares 13"),
        asked("Dogs", words("a", 20), "is in another article"),
        asked("Birds", words("a", 20), "has no article"),
    ]
    write_lines(tmp_path / "dev.jsonl", dev)
    train = [
        asked("Cats", words("b", 20), "has a tested paragraph"),
        asked("Dogs", words("c", 15) + words("d", 20) + words("c", 15), "is more like d"),
        asked("Cats", [*words("a", 20), "a1,", "(A2)"], "repeats words"),
    ]
    write_lines(tmp_path / "train.jsonl", train)
    return tmp_path


def test_a_question_gets_the_paragraph_that_its_passage_is_most_like(folder):
    done = run(folder, "--articles=articles.jsonl", "--out=made")
    assert (done.returncode, done.stderr) == (0, "")
    corpus = {passage.id: (passage.title, passage.text) for passage in read_corpus(folder / "made")}
    expected = {"7#0": ("Cats", "a"), "7#1": ("Cats", "b"), "8#0": ("Dogs", "c")}
    expected["8#1"] = ("Dogs", "d")
    assert corpus == {
        name: (title, " ".join(words(letter, 20))) for name, (title, letter) in expected.items()
    }
    queries, qrels = read_split(folder / "made", "test")
    assert {queries[q]: dict(judged) for q, judged in qrels.items()} == {
        "shares 14 of 20 words": {"7#1": 1}
    }
    queries, qrels = read_split(folder / "made", "train")
    assert {queries[q]: dict(judged) for q, judged in qrels.items()} == {
        "is more like d": {"8#1": 1},
        "repeats words": {"7#0": 1},
    }


def test_a_small_collection_keeps_the_paragraphs_that_answer(folder):
    done = run(folder, "--articles=articles.jsonl", "--out=made", "--passages=3", "--train=1")
    assert (done.returncode, done.stderr) == (0, "")
    judged = set()
    for split in ("test", "train"):
        _, qrels = read_split(folder / "made", split)
        assert len(qrels) == 1
        judged |= {name for found in qrels.values() for name in found}
    names = {passage.id for passage in read_corpus(folder / "made")}
    assert len(names) == 3
    assert len(judged) == 2
    assert judged <= names


def test_articles_that_answer_nothing_are_one_line(folder):
    write_lines(folder / "other.jsonl", [{"id": 1, "title": "Dogs", "text": "short"}])
    done = run(folder, "--articles=other.jsonl", "--out=made")
    said = "boolq: other.jsonl: too few articles to answer BoolQ's questions\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
    assert not (folder / "made").exists()
