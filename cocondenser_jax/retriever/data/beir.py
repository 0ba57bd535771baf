"""Writes a data folder in BEIR's layout."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from cocondenser_jax.files.whole import write_text
from cocondenser_jax.retriever.data.layouts import Passage
from cocondenser_jax.retriever.data.trec import Qrels


def write_beir(
    folder: Path,
    passages: Iterable[Passage],
    queries: Mapping[str, str],
    splits: Mapping[str, Qrels],
) -> None:
    """Writes passages, queries (id → text) and the judgments of each split into a folder."""
    write_passages(folder / "corpus.jsonl", passages)
    write_passages(folder / "queries.jsonl", (Passage(q, "", queries[q]) for q in queries))
    for split, qrels in splits.items():
        rows = [f"{q}\t{p}\t{grade}" for q in qrels for p, grade in qrels[q].items()]
        (folder / "qrels").mkdir(exist_ok=True)
        lines = ["query-id\tcorpus-id\tscore", *rows, ""]
        write_text(folder / "qrels" / f"{split}.tsv", "\n".join(lines))


def write_passages(path: Path, passages: Iterable[Passage]) -> None:
    """Writes passages, or queries, as JSON lines."""
    with path.open("w", encoding="utf-8") as file:
        for passage in passages:
            record = {"_id": passage.id, "title": passage.title, "text": passage.text}
            file.write(f"{json.dumps(record)}\n")
