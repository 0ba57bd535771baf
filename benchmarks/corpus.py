"""Building a store: tokens per second, compared with the tokenizer alone on the same texts.

python -m benchmarks.corpus --json_out=benchmarks/results/corpus.json
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.corpora import docstrings, write_tokenizer
from benchmarks.results import report
from cocondenser_jax.corpus.records import Document
from cocondenser_jax.corpus.spans import cut_documents
from cocondenser_jax.corpus.tokenizer import load_tokenizer

BATCH = 256


def main() -> None:
    """Measures both sides and prints them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json_out", type=Path)
    arguments = parser.parse_args()
    texts = docstrings()
    with tempfile.TemporaryDirectory() as temporary:
        folder = write_tokenizer(texts, Path(temporary) / "tokenizer")
        # One for each round, since a tokenizer caches words.
        tokenizers = [load_tokenizer(str(folder)) for _ in range(arguments.rounds)]
    documents = [Document(str(i), text) for i, text in enumerate(texts)]
    ours, raw = [], []
    for tokenizer in tokenizers:
        start = time.perf_counter()
        for first in range(0, len(texts), BATCH):
            cut_documents(documents[first : first + BATCH], tokenizer, 128)
        ours.append(time.perf_counter() - start)
        start = time.perf_counter()
        tokens = 0
        for first in range(0, len(texts), BATCH):
            encoded = tokenizer.backend.encode_batch_fast(
                texts[first : first + BATCH], add_special_tokens=False
            )
            tokens += sum(map(len, encoded))
        raw.append(time.perf_counter() - start)
    fast, slow = tokens / statistics.median(raw), tokens / statistics.median(ours)
    row = {
        "tokens/s": round(slow),
        "tokens/s, tokenizer alone": round(fast),
        "of the tokenizer's speed": round(slow / fast, 2),
    }
    report([row], arguments.json_out)


if __name__ == "__main__":
    main()
