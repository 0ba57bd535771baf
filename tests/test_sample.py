"""The example that makes a smaller collection."""

import subprocess
import sys
from pathlib import Path

from cocondenser_jax.collection.folder import read_corpus, read_split
from cocondenser_jax.quickstart.pipeline import write_beir

ROOT = Path(__file__).parents[1]


def test_a_sample_has_its_queries_their_passages_and_others(tmp_path):
    passages = {f"d{i}": f"text {i}" for i in range(30)}
    queries = {f"q{i}": f"words {i}" for i in range(10)}
    judged = {f"q{i}": f"d{2 * i}" for i in range(10)}
    whole = tmp_path / "whole"
    whole.mkdir()
    write_beir(whole, passages, queries, {"test": judged})
    command = [sys.executable, ROOT / "examples" / "sample.py", whole]
    for out in ("one", "other"):
        flags = ["--queries=4", "--passages=9"]
        subprocess.run([*command, tmp_path / out, *flags], check=True, cwd=ROOT)
    found = {passage.id: passage.text for passage in read_corpus(tmp_path / "one")}
    asked, qrels = read_split(tmp_path / "one", "test")
    assert (len(found), len(asked)) == (9, 4)
    assert found.items() <= passages.items()
    assert asked.items() <= queries.items()
    assert qrels == {query: {judged[query]: 1} for query in asked}
    assert {judged[query] for query in asked} <= found.keys()
    again = {passage.id: passage.text for passage in read_corpus(tmp_path / "other")}
    assert list(again) == list(found)
