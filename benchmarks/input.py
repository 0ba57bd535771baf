"""The input pipeline: spans per second of sampling, masking and batching, on one thread.

Compared with a loop over tokens, as in usual collators: join word pieces into words, shuffle them,
and mask token by token until 15 % are masked.

  python -m benchmarks.input --json_out=benchmarks/results/input.json
  python -m benchmarks.input --store=stores/wiki
"""

import argparse
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.corpora import docstrings, make_store, write_tokenizer
from benchmarks.results import report
from cocondenser_jax.corpus.batches import BatchSpec, make_batch
from cocondenser_jax.corpus.store import TokenStore, open_store

LENGTH, DOCUMENTS = 128, 512


def main() -> None:
    """Measures both sides and prints them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", type=Path, help="default: a temporary one of docstrings")
    parser.add_argument("--json_out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        if arguments.store:
            store = open_store(arguments.store)
        else:
            texts = docstrings()
            tokenizer = write_tokenizer(texts, Path(temporary) / "tokenizer")
            store = make_store(texts, tokenizer, Path(temporary) / "store", LENGTH)
        row = measure(store)
    report([row], arguments.json_out)


def measure(store: TokenStore, n_rounds: int = 5) -> dict[str, Any]:
    """Returns the spans per second of both sides, medians over alternating rounds."""
    spec = BatchSpec(seed=0, batch_size=DOCUMENTS, length=LENGTH)
    make_batch(store, spec, 0)
    ours, theirs, padding = [], [], []
    for step in range(n_rounds):
        start = time.perf_counter()
        batch = make_batch(store, spec, step)
        ours.append(2 * DOCUMENTS / (time.perf_counter() - start))
        padding.append(1 - batch.attention_mask_SxL.mean())
        start = time.perf_counter()
        collate_by_token(store, random.Random(step), n_pairs=64)
        theirs.append(128 / (time.perf_counter() - start))
    fast, slow = float(np.median(ours)), float(np.median(theirs))
    return {
        "spans/s": round(fast),
        "spans/s, per-token loop": round(slow),
        "times the loop": round(fast / slow, 1),
        "padding": round(float(np.mean(padding)), 3),
    }


def collate_by_token(store: TokenStore, rng: random.Random, n_pairs: int) -> list[Any]:
    """Draws pairs of spans and masks them token by token."""
    rows = []
    documents = np.flatnonzero(np.diff(store.first_span_D) > 1).tolist()
    for _ in range(n_pairs):
        document = rng.choice(documents)
        first, end = (int(x) for x in store.first_span_D[document : document + 2])
        for span in rng.sample(range(first, end), 2):
            ids_1xC, starts_1xC, n_tokens = store.read_spans(np.array([span]), LENGTH - 2)
            ids, starts = ids_1xC[0, : n_tokens[0]].tolist(), starts_1xC[0].tolist()
            words: list[list[int]] = []
            for position in range(len(ids)):
                if starts[position] or not words:
                    words.append([position])
                else:
                    words[-1].append(position)
            rng.shuffle(words)
            budget, covered, labels = max(1, round(0.15 * len(ids))), 0, [-100] * len(ids)
            for word in words:
                if covered + len(word) > budget:
                    continue
                covered += len(word)
                for position in word:
                    labels[position] = ids[position]
                    chance = rng.random()
                    if chance < 0.8:
                        ids[position] = store.mask_id
                    elif chance < 0.9:
                        ids[position] = rng.randrange(store.vocab_size)
            padding = LENGTH - 2 - len(ids)
            mask = [1] * (len(ids) + 2) + [0] * padding
            ids = [store.cls_id, *ids, store.sep_id] + [store.pad_id] * padding
            rows.append((np.array(ids), np.array(mask), np.array([-100, *labels, -100])))
    return rows


if __name__ == "__main__":
    main()
