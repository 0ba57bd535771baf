"""DPR's files as a data folder: what is read, and what is refused."""

import gzip
import json

import pytest

from cocondenser_jax.retriever.data.folder import read_corpus, read_queries, read_split
from cocondenser_jax.retriever.data.trec import first_passages, read_run
from papers import dpr
from papers.answers import read_answers

PACKED = gzip.compress("".join(f"who is {i}\t['x']\n" for i in range(99)).encode())


def contexts(ids, field="passage_id"):
    return [{"title": "not read", "text": "not read", field: name} for name in ids]


@pytest.fixture
def passages(tmp_path):
    path = tmp_path / "psgs_w100.tsv"
    path.write_text('id\ttext\ttitle\n1\t"a ""b"""\tT\n')
    return path


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_training_questions_become_a_split_and_a_run(tmp_path, passages, suffix):
    records = [
        {
            "question": '"who" asks?',
            "answers": ["caf\u00e9", "x"],
            # DPR trains on the first positive, and on no random negative where there are hard ones.
            "positive_ctxs": contexts(["0", "1"]),
            "negative_ctxs": contexts(["9"]),
            "hard_negative_ctxs": contexts([2, 1], "psg_id"),
        },
        {
            "question": "it's what",
            "answers": ["y"],
            "positive_ctxs": contexts(["2"]),
            "negative_ctxs": contexts(["0"]),
            "hard_negative_ctxs": [],
        },
    ]
    questions = tmp_path / f"biencoder-nq-train.json{suffix}"
    written = json.dumps(records).encode()
    questions.write_bytes(gzip.compress(written) if suffix else written)
    out = tmp_path / "out"
    dpr.main([f"--passages={passages}", f"--questions={questions}", f"--out={out}"])
    assert read_split(out, "train") == (
        {"0": '"who" asks?', "1": "it's what"},
        {"0": {"0": 1}, "1": {"2": 1}},
    )
    assert read_answers(out / "answers.jsonl") == {"0": ["caf\u00e9", "x"], "1": ["y"]}
    run = read_run(out / "negatives.trec")
    assert {q: first_passages(found) for q, found in run.items()} == {"0": ["2", "1"], "1": ["0"]}
    assert [passage.text for passage in read_corpus(out)] == ['a "b"']


def test_questions_of_several_files_are_numbered_on(tmp_path, passages):
    """DPR's hard negatives are in a file of their own, with questions of the first again."""
    record = {"answers": ["x"], "positive_ctxs": contexts(["0"]), "negative_ctxs": []}
    words = []
    for name, texts, negative in (("train", "ab", "1"), ("adv-hn", "b", "2")):
        hard = {"hard_negative_ctxs": contexts([negative])}
        path = tmp_path / f"{name}.json.gz"
        records = [record | hard | {"question": text} for text in texts]
        path.write_bytes(gzip.compress(json.dumps(records).encode()))
        words.append(f"--questions={path}")
    out = tmp_path / "out"
    dpr.main([*words, f"--passages={passages}", f"--out={out}"])
    assert read_queries(out) == {"0": "a", "1": "b", "2": "b"}
    run = read_run(out / "negatives.trec")
    assert {q: first_passages(found) for q, found in run.items()} == {
        "0": ["1"],
        "1": ["1"],
        "2": ["2"],
    }


def test_test_questions_have_answers_alone(tmp_path, passages):
    questions = tmp_path / "nq-test.qa.csv"
    questions.write_text(
        'who wrote it\t[\'S\u00f8ren "the Dane"\', "O\'Neill"]\n'
        '"he said ""so"" first"\t"[\'a\', ""b\'s""]"\n'
        "a pattern\t['\\d+ (feet|m)']\n"
    )
    out = tmp_path / "out"
    dpr.main([f"--passages={passages}", f"--questions={questions}", f"--out={out}"])
    texts = ["who wrote it", 'he said "so" first', "a pattern"]
    assert read_queries(out) == dict(zip("012", texts, strict=True))
    assert read_answers(out / "answers.jsonl") == {
        "0": ['S\u00f8ren "the Dane"', "O'Neill"],
        "1": ["a", "b's"],
        "2": ["\\d+ (feet|m)"],
    }
    assert not (out / "qrels").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", '{"question": "who"}'),
        ("a.json", "[]"),
        ("a.json", '[{"question": "who"'),
        ("a.json", '[{"question": "who", "answers": []}]'),
        ("a.csv", "who\n"),
        ("a.csv", "who\tprint('run')\n"),
        ("a.csv", "who\t['x'\n"),
        ("a.csv", ""),
        ("a.csv", f"who\t['{'x' * 200_000}']\n"),  # longer than the csv module reads
        ("cut.csv.gz", PACKED[:99]),
        ("changed.csv.gz", PACKED[:10] + b"\xff" + PACKED[11:]),  # no such block
    ],
)
def test_other_files_are_refused(tmp_path, passages, name, content, capsys):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    words = [f"--passages={passages}", f"--questions={tmp_path / name}", f"--out={tmp_path}/out"]
    with pytest.raises(SystemExit, match="2"):
        dpr.main(words)
    error = capsys.readouterr().err
    assert error.startswith(f"dpr: {tmp_path / name}")
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()
