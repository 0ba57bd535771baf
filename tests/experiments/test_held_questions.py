"""Held questions: every question in one split, and answered among the passages."""

import pytest

from cocondenser_jax.retriever.data.folder import read_corpus, read_split
from experiments.held_questions import main
from tests.world import write_beir


@pytest.fixture
def data(tmp_path):
    passages = [f"passage {i}" for i in range(50)]
    queries = [f"query {i}" for i in range(30)]
    return write_beir(
        tmp_path / "data", passages, queries, {"train": range(20), "test": range(20, 30)}
    )


def held(data, out, *flags):
    main([f"--data={data}", "--questions=5", "--passages=12", f"--out={out}", *flags])
    return out


def test_held_questions_are_in_no_other_split(data, tmp_path):
    out = held(data, tmp_path / "out")
    splits = {split: read_split(out / "all", split) for split in ("train", "dev", "test")}
    assert {split: len(qrels) for split, (_, qrels) in splits.items()} == {
        "train": 15, "dev": 5, "test": 10
    }  # fmt: skip
    together = splits["train"][1] | splits["dev"][1]
    assert together == read_split(data, "train")[1]
    assert splits["test"] == read_split(data, "test")
    assert [*read_corpus(out / "all")] == [*read_corpus(data)]
    again = held(data, tmp_path / "again")
    assert read_split(again / "all", "dev") == splits["dev"]


@pytest.mark.parametrize("n", [5, 12, 30, 50])
def test_their_passages_hold_the_answers(data, tmp_path, n):
    out = held(data, tmp_path / "out", f"--passages={n}")
    queries, qrels = read_split(out / "dev", "dev")
    assert (queries, qrels) == read_split(out / "all", "dev")
    passages = [*read_corpus(out / "dev")]
    assert len(passages) == n
    answers = {p for grades in qrels.values() for p in grades}
    assert len(answers) == 5
    assert answers <= {one.id for one in passages}
    known = {one.id: one for one in read_corpus(data)}
    assert all(known[one.id] == one for one in passages)


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--questions=20", "has 20 training questions: expected over 20"),
        ("--passages=4", "--passages is 4: expected 5, which answer the held questions, to 50"),
        ("--passages=51", "--passages is 51: expected 5"),
    ],
)
def test_too_many_are_refused_in_one_line(data, tmp_path, capsys, flag, said):
    with pytest.raises(SystemExit, match="2"):
        held(data, tmp_path / "out", flag)
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()
