"""`encode` in PyTorch, compared with sentence-transformers' own `encode`, on the same passages.

Each side loads the model, reads a file of passages drawn from a data folder, and writes vectors.
The sides take turns; passages per second are medians.

  python -m benchmarks.encode --model=MODEL --data=DATA --json_out=benchmarks/results/encode.json
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer

from benchmarks.results import report
from cocondenser_jax.retriever.data.folder import passage_text, read_corpus
from cocondenser_jax.retriever.search.encode import Encoding, encode_corpus


def main() -> None:
    """Times both sides, for each data folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, action="append", required=True, help="repeatable")
    parser.add_argument("--passages", type=int, default=500, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--json_out", type=Path)
    arguments = parser.parse_args()
    report((_row(arguments, data) for data in arguments.data), arguments.json_out)


def _row(arguments: argparse.Namespace, data: Path) -> dict[str, str | float]:
    with tempfile.TemporaryDirectory() as temporary:
        corpus = Path(temporary) / "corpus.jsonl"
        n_words = _draw(data, arguments.passages, corpus)
        sides: dict[str, Callable[[Path], object]] = {
            "passages/s": lambda out: encode_corpus(Encoding(arguments.model), corpus, out),
            "passages/s, sentence-transformers": lambda out: _theirs(arguments.model, corpus, out),
        }
        seconds: Mapping[str, list[float]] = {name: [] for name in sides}
        for turn in range(arguments.rounds):
            for name in [*sides] if turn % 2 else [*sides][::-1]:
                start = time.perf_counter()
                sides[name](Path(temporary) / f"{turn} {name.replace('/', ' ')}")
                seconds[name].append(time.perf_counter() - start)
    rates = {name: arguments.passages / statistics.median(of) for name, of in seconds.items()}
    ours, theirs = rates.values()
    return {"data": data.name, "words": n_words, **rates, "times theirs": ours / theirs}


def _draw(data: Path, n: int, out: Path) -> int:
    """Writes a sample of the passages; returns how many words their median has."""
    passages = list(read_corpus(data))
    drawn = np.random.default_rng(0).choice(len(passages), n, replace=False)
    texts = [passage_text(passages[i]) for i in drawn]
    lines = (json.dumps({"_id": f"{i}", "text": text}) for i, text in enumerate(texts))
    out.write_text("".join(f"{line}\n" for line in lines))
    return int(np.median([len(text.split()) for text in texts]))


def _theirs(model: Path, corpus: Path, out: Path) -> None:
    texts = [passage.text for passage in read_corpus(corpus)]
    vectors_NxD = SentenceTransformer(str(model)).encode_document(texts)
    np.save(f"{out}.npy", vectors_NxD)


if __name__ == "__main__":
    main()
