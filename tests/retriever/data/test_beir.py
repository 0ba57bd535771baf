"""What is written in BEIR's layout is read as it was."""

import json

from cocondenser_jax.retriever.data.beir import write_beir, write_passages
from cocondenser_jax.retriever.data.folder import read_corpus, read_split
from cocondenser_jax.retriever.data.layouts import Passage

PASSAGES = [Passage("a", "", 'é\n\u2028 "quoted"\t'), Passage("b", "a title", "文")]


def test_a_folder_is_read_as_it_was_written(tmp_path):
    queries = {"q1": "one", "q2": "two", "q3": "three"}
    splits = {"test": {"q1": {"a": 1, "b": 0}}, "dev": {"q2": {"b": 2}, "q3": {"a": -1}}}
    write_beir(tmp_path, PASSAGES, queries, splits)
    assert [*read_corpus(tmp_path)] == PASSAGES
    for split, qrels in splits.items():
        assert read_split(tmp_path, split) == ({q: queries[q] for q in qrels}, qrels)


def test_a_passage_is_a_line_of_json(tmp_path):
    write_passages(tmp_path / "corpus.jsonl", PASSAGES)
    records = [json.loads(x) for x in (tmp_path / "corpus.jsonl").read_text().split("\n") if x]
    assert records == [{"_id": p.id, "title": p.title, "text": p.text} for p in PASSAGES]
