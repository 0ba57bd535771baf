"""How flags are read: what is missing, what is in the wrong place, and how they are written."""

import json

import pytest

from cocondenser_jax.cli import main
from cocondenser_jax.collection.trec import read_run
from tests.world import write_records


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("adapt", "Missing options '--corpus', '--model', '--workdir'."),
        ("adapt --corpus=x", "Missing options '--model', '--workdir'."),
        ("adapt --corpus=x --model=y", "Missing option '--workdir'."),
        ("adapt d.jsonl", "unexpected argument 'd.jsonl': did you mean --corpus=d.jsonl?"),
        ("encode docs", "unexpected argument 'docs': did you mean --corpus=docs?"),
        ("retrieve data", "unexpected argument 'data': did you mean --data=data?"),
        ("evaluate a.trec", "unexpected argument 'a.trec': did you mean --run=a.trec?"),
        ("evaluate --run=a b", "unexpected argument 'b': did you mean --qrels=b?"),
        ("verify --store=a b", "unexpected argument 'b' (see cocondenser verify --help)"),
        ("evaluate --run=a --qrels=b --top-k=3", "No such option '--top_k'"),
    ],
)
def test_what_is_missing_or_in_the_wrong_place_is_one_line(words, says, capsys):
    assert main(words.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_help_needs_no_flag_and_takes_any_word(capsys):
    assert main(["adapt", "d.jsonl", "--help"]) == 0
    assert "Adapt an embedding model" in capsys.readouterr().out


def test_hyphens_stand_for_underscores(tmp_path):
    corpus = write_records(tmp_path / "docs.jsonl", [{"text": "aa bb"}, {"text": "bb cc"}])
    queries = write_records(tmp_path / "queries.jsonl", [{"_id": "q", "text": "bb cc"}])
    names = [f"--run-out={tmp_path}/a", f"--json-out={tmp_path}/a.json", "--ignore-identical-ids"]
    assert main(["bm25", f"--data={queries}", f"--corpus={corpus}", "--language=none", *names]) == 0
    assert list(read_run(tmp_path / "a")["q"]) == ["2", "1"]
    assert json.loads((tmp_path / "a.json").read_text())["queries"] == 1
    runs = [f"--run={tmp_path}/a", f"--run={tmp_path}/a", f"--run-out={tmp_path}/b"]
    assert main(["fuse", "--method=min-max", *runs]) == 0
    assert list(read_run(tmp_path / "b")["q"]) == ["2", "1"]
