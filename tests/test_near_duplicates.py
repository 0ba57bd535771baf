"""The example that drops near-duplicates by datatrove, before `corpus`."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cocondenser_jax.cli import main
from tests.world import make_texts, write_records, write_tokenizer

ROOT = Path(__file__).parents[1]
SHINGLE = 5


def shingles(text):
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[k : k + SHINGLE]) for k in range(len(words) - SHINGLE + 1)}


def altered(text, rng):
    """Replaces one word."""
    words = text.split()
    words[rng.integers(len(words))] = "otherword"
    return " ".join(words)


def test_one_of_similar_documents_stays(tmp_path):
    pytest.importorskip("datatrove", reason="needs datatrove: make cluster")
    rng = np.random.default_rng(1)
    texts = make_texts(9, n_sentences=30, seed=3)
    copies = [altered(text, rng) for text in texts[:6]]
    for text, copy in zip(texts, copies, strict=False):
        both = shingles(text), shingles(copy)
        assert len(both[0] & both[1]) > 0.9 * len(both[0] | both[1])
    files = {"a": texts[:5], "b": [*copies[:3], " "], "c": [*texts[5:], *copies[3:]]}
    for name, own in files.items():
        rows = [{"id": f"{name}{k}", "text": text} for k, text in enumerate(own)]
        write_records(tmp_path / "articles" / f"{name}.jsonl", rows)
    command = [sys.executable, ROOT / "examples" / "near_duplicates.py", "--tasks=8", "--workers=2"]
    flags = [f"--corpus={tmp_path}/articles", f"--out={tmp_path}/unique"]
    ended = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    written = sorted((tmp_path / "unique").iterdir())
    assert [path.name for path in written] == ["00000.jsonl", "00001.jsonl", "00002.jsonl"]
    found = [json.loads(line)["text"] for path in written for line in path.open()]
    pairs = [*zip(texts[:6], copies, strict=True), *((text,) for text in texts[6:])]
    assert [sum(text in found for text in pair) for pair in pairs] == [1] * 9
    assert len(found) == 9

    write_tokenizer(tmp_path / "tokenizer", texts)
    store = ["corpus", f"--corpus={tmp_path}/unique", f"--tokenizer={tmp_path}/tokenizer"]
    assert main([*store, f"--out={tmp_path}/store", f"--json_out={tmp_path}/counts"]) == 0
    assert json.loads((tmp_path / "counts").read_text())["documents"] == 9
