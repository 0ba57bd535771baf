"""The builder on Beam, run as its users do: in an environment of its own."""

import gzip
import json
import subprocess
from pathlib import Path

import pytest

from cocondenser_jax.corpus.sources import Document, read_documents

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / ".venv-beam/bin/python"
pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="needs Apache Beam: make gather")


def build(folder, *flags):
    return subprocess.run(
        [PYTHON, ROOT / "examples" / "gather.py", *flags],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "flags", [[], ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]]
)
def test_every_text_comes_once_from_whatever_worker(tmp_path, flags):
    source = tmp_path / "articles"
    source.mkdir()
    lines = [{"_id": "b", "text": "twice"}, {"title": "Title", "text": "é\nmore"}, {"text": " "}]
    (source / "1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with gzip.open(source / "2.txt.gz", "wt") as file:
        file.write("a line\nof two\n\nTitle\né\nmore\n")
    (source / "3.jsonl").write_text('{"_id": "a", "text": "twice"}\n')
    (source / "notes.md").write_text("not text")

    built = build(tmp_path, "--source=articles", "--out=datasets", *flags)
    assert built.returncode == 0, built.stderr
    assert built.stdout == "datasets/documents/1.0.0\n"
    documents = read_documents(f"tfds:{tmp_path}/datasets/documents/1.0.0")
    assert sorted(documents) == [
        Document("1.jsonl:2", "Title\né\nmore"),
        Document("2.txt.gz:1", "a line\nof two"),
        Document("a", "twice"),
    ]
    again = build(tmp_path, "--source=articles", "--out=datasets")
    assert again.returncode == 2
    assert "datasets/documents/1.0.0 already exists" in again.stderr


def test_mistakes_end_in_one_line_and_leave_no_dataset(tmp_path):
    missing = build(tmp_path, "--source=nowhere", "--out=datasets")
    assert missing.returncode == 2
    assert (
        "cocondenser: nowhere: no file found; expected a .txt, .jsonl, .tsv (also .gz,"
        in missing.stderr
    )
    (tmp_path / "broken.jsonl").write_text('{"text": "a"}\n{"body": "b"}\n')
    broken = build(tmp_path, f"--source={tmp_path}/broken.jsonl", "--out=datasets")
    assert broken.returncode == 2
    last = broken.stderr.splitlines()[-1]
    assert last.startswith(f"cocondenser: {tmp_path}/broken.jsonl:2 has no `text`")
    assert not list(tmp_path.glob("datasets/documents/*"))
