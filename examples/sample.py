"""A smaller collection: some test queries, their passages, and as many others as are asked for.

  python examples/sample.py runs/quickstart/data runs/sample --queries=500 --passages=6000

The folder is in BEIR's layout (`corpus.jsonl`, `queries.jsonl`, `qrels/test.tsv`), and so is the
sample. The same numbers give the same sample.
"""

import argparse
import random
from pathlib import Path

from cocondenser_jax.collection.folder import read_corpus, read_split
from cocondenser_jax.quickstart.pipeline import write_beir
from cocondenser_jax.storage.files import new_folder


def sample(folder: Path, out: Path, n_queries: int, n_passages: int) -> None:
    """Writes the sample; a query must have one relevant passage, as the quickstart's have."""
    queries, qrels = read_split(folder, "test")
    passages = {passage.id: passage.text for passage in read_corpus(folder)}
    draw = random.Random(7)
    judged = [(query, next(iter(grades))) for query, grades in qrels.items()]
    draw.shuffle(judged)
    asked = dict(judged[:n_queries])
    relevant = set(asked.values())
    others = [name for name in passages if name not in relevant]
    draw.shuffle(others)
    kept = {*relevant, *others[: n_passages - len(relevant)]}
    with new_folder(out) as new:
        chosen = {name: text for name, text in passages.items() if name in kept}
        write_beir(new, chosen, {query: queries[query] for query in asked}, {"test": asked})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--passages", type=int, default=6000)
    given = parser.parse_args()
    sample(given.folder, given.out, given.queries, given.passages)
