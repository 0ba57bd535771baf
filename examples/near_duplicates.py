r"""Drops near-duplicates of documents with datatrove's MinHash.

pip install datatrove
python examples/near_duplicates.py --corpus=articles --out=unique --tasks=64 --workers=8
cocondenser corpus --corpus=unique --tokenizer=bert-base-uncased --out=stores/wiki

Texts are compared by their sequences of five words. One document of each group of similar ones
stays. Two are similar if they agree in one of 14 bands of 8 hashes: this detects 92 % of the pairs
that share 80 % of their sequences, 99.96 % at 90 %, and 5 % at 50 %.
"""

import argparse
import json
import re
import shutil
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import (
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.utils.hashing import HashConfig
from datatrove.utils.word_tokenizers import WordTokenizer

from cocondenser_jax.corpus.sources import open_source
from cocondenser_jax.corpus.tasks import read_task
from cocondenser_jax.files.whole import new_folder


class Words(WordTokenizer):
    """Splits at characters other than letters and digits, without spaCy or NLTK."""

    def word_tokenize(self, text: str) -> list[str]:
        """Returns the words of a text."""
        return re.findall(r"\w+", text)

    def sent_tokenize(self, text: str) -> list[str]:
        """Is not used."""
        raise NotImplementedError

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        """Is not used."""
        raise NotImplementedError


def read(source: str, _: Any, rank: int, world_size: int) -> Iterator[Document]:
    """Streams a task's documents; datatrove refuses those without text."""
    for document in read_task(source, (rank, world_size)):
        if document.text.strip():
            yield Document(text=document.text, id=document.id)


def write(folder: Path, documents: Iterable[Document], rank: int, world_size: int) -> None:
    """Writes a task's documents as JSON lines, for `corpus`."""
    with (folder / f"{rank:05d}.jsonl").open("w", encoding="utf-8") as file:
        for document in documents:
            file.write(json.dumps({"id": document.id, "text": document.text}) + "\n")


def drop_near_duplicates(source: str, out: Path, tasks: int, workers: int) -> None:
    """Writes a source's documents without near-duplicates, as a folder of JSON lines."""
    # Its default needs xxhash before version 4.
    config = MinhashConfig(hash_config=HashConfig(hash_fc="sha1"))
    tasks = min(tasks, len(open_source(source)))
    with new_folder(out) as folder:
        work = folder / "work"
        signatures, buckets, removed = (
            str(work / name) for name in ("signed", "buckets", "removed")
        )

        def run(name: str, steps: list[Any], n_tasks: int) -> None:
            logs = str(work / "logs" / name)
            LocalPipelineExecutor(steps, n_tasks, workers, logging_dir=logs).run()

        sign = MinhashDedupSignature(signatures, config, language=Words())
        run("sign", [partial(read, source), sign], tasks)
        run(
            "compare", [MinhashDedupBuckets(signatures, buckets, config=config)], config.num_buckets
        )
        run("group", [MinhashDedupCluster(buckets, removed, config)], 1)
        keep = [partial(read, source), MinhashDedupFilter(removed), partial(write, folder)]
        run("write", keep, tasks)
        shutil.rmtree(work)


def main() -> None:
    """Drops near-duplicates of documents that `corpus` reads."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", required=True, help="as of `cocondenser corpus`")
    parser.add_argument("--out", type=Path, required=True, help="a new folder of .jsonl files")
    parser.add_argument("--tasks", type=int, default=1, help="at most the files of the corpus")
    parser.add_argument("--workers", type=int, default=1, help="tasks at a time")
    arguments = parser.parse_args()
    drop_near_duplicates(arguments.corpus, arguments.out, arguments.tasks, arguments.workers)


if __name__ == "__main__":
    main()
