"""The quickstart's retrieval task, made of the docstrings of this machine's Python packages.

A docstring's first paragraph says what a thing does, the rest explains it. Finding the rest, a
passage, from the first paragraph is a retrieval task that every machine holds. Some docstrings are
held out as test queries; their first paragraphs are in no training text.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from cocondenser_jax.corpus.pydocs import read_docstrings

N_TEST_QUERIES = 1000
MIN_QUERY_WORDS = 4  # "Examples:" and "See also" are not queries
MIN_PASSAGE_WORDS = 10


def write_task(folder: Path) -> None:
    """Writes the retrieval task in BEIR layout, and the text to pre-train on, into `folder`.

    Queries are first paragraphs that belong to one docstring only. Pre-training sees all passages,
    as it would see any corpus to be searched, but no first paragraph of a held-out docstring.
    """
    split = [(name, *text.split("\n\n", 1)) for name, text in read_docstrings()]
    docs = [(name, " ".join(first.split()), rest.strip()) for name, first, rest in split]
    docs = list({rest: (name, first, rest) for name, first, rest in reversed(docs)}.values())[::-1]
    docs = [doc for doc in docs if len(doc[2].split()) >= MIN_PASSAGE_WORDS]
    n_owners = Counter(first for _, first, _ in docs)
    asks = [n_owners[first] == 1 and len(first.split()) >= MIN_QUERY_WORDS for _, first, _ in docs]
    queries = np.random.default_rng(0).permutation(np.flatnonzero(asks))
    parts = {"test": queries[:N_TEST_QUERIES], "train": queries[N_TEST_QUERIES:]}
    held_out = set(parts["test"].tolist())

    def lines(name: str, records: Iterator[dict[str, str]]) -> None:
        with (folder / name).open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)

    lines("corpus.jsonl", ({"_id": name, "title": "", "text": rest} for name, _, rest in docs))
    lines("queries.jsonl", ({"_id": docs[i][0], "text": docs[i][1]} for i in queries))
    lines(
        "pretrain.jsonl",
        (
            {"_id": name, "text": rest if i in held_out else f"{first}\n\n{rest}"}
            for i, (name, first, rest) in enumerate(docs)
        ),
    )
    (folder / "qrels").mkdir()
    for part, indices in parts.items():
        judgments = "".join(f"{docs[i][0]}\t{docs[i][0]}\t1\n" for i in indices)
        path = folder / "qrels" / f"{part}.tsv"
        path.write_text("query-id\tcorpus-id\tscore\n" + judgments, encoding="utf-8")
