"""Memory of the processes of `finetune`, `mine`, `retrieve` and `bm25` at published sizes.

Runs each command on random data of a hundredth and a tenth of the published size, and extrapolates
linearly. Memory is the peak of the process, without memory-mapped files.

  python -m benchmarks.processes --json_out=benchmarks/results/processes.json
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import transformers
from tokenizers import BertWordPieceTokenizer

from benchmarks.results import report

LETTERS = "abcdefghijklmnopqrstuvwxyz"
N_WORDS = 5_000_000  # drawn as in text: the r-th most frequent word with probability ∝ 1 / r
SHARES = (0.01, 0.1)


class Size(NamedTuple):
    """A published collection."""

    passages: int
    words: int  # of a passage
    queries: int  # of its training split


NQ = Size(passages=21_015_324, words=100, queries=58_880)
MARCO = Size(passages=8_841_823, words=56, queries=502_939)


def main() -> None:
    """Measures the named commands, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CASES)}")
    parser.add_argument("--share", type=float, action="append", help="default: 0.01 and 0.1")
    parser.add_argument("--json_out", type=Path)
    arguments = parser.parse_args()
    names = arguments.names or [*CASES]
    report((measure(name, arguments.share or SHARES) for name in names), arguments.json_out)


def measure(name: str, shares: Sequence[float]) -> dict[str, Any]:
    """Returns a row: the memory at each share, and extrapolated to the full size."""
    size, depth, make = CASES[name]
    row: dict[str, Any] = {"command": name, "passages": size.passages, "queries": size.queries}
    found = []
    for share in shares:
        with tempfile.TemporaryDirectory() as temporary:
            part = Size(int(size.passages * share), size.words, int(size.queries * share))
            words = make(Path(temporary), part, depth)
            gib, seconds = run(words, Path(temporary))
        found.append(gib)
    row["shares"] = ", ".join(f"{share:g}" for share in shares)
    row["GiB at these"] = ", ".join(f"{gib:.3g}" for gib in found)
    if len(found) == 2:
        slope = (found[1] - found[0]) / (shares[1] - shares[0])
        row["GiB at 1, by the line"] = found[0] + slope * (1 - shares[0])
    row["minutes at the last"] = seconds / 60
    return row


def run(words: Sequence[str], folder: Path) -> tuple[float, float]:
    """Runs a command; returns its peak memory in GiB, and its seconds."""
    start = time.perf_counter()
    log = (folder / "log").open("w+")
    command = [sys.executable, "-m", "cocondenser_jax.cli", *words]
    process = subprocess.Popen(command, stdout=log, stderr=log)
    most = 0
    while process.poll() is None:
        most = max(most, anonymous_bytes(process.pid))
        time.sleep(0.05)
    if process.returncode:
        log.seek(0)
        raise SystemExit(f"{' '.join(words)}\n{log.read()[-2000:]}")
    return most / 2**30, time.perf_counter() - start


def anonymous_bytes(pid: int) -> int:
    """Returns the memory of a process without mapped files."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def finetune(folder: Path, size: Size, depth: int) -> list[str]:
    """Trains two steps on negatives from a pool of `depth` passages for each query."""
    data = write_collection(folder / "data", size)
    write_run(folder / "negatives.trec", size, depth, seed=1)
    return [
        "finetune",
        "--config=configs/finetune.py",
        f"--workdir={folder}/run",
        f"--config.model.folder={write_model(folder / 'model', 32)}",
        f"--config.data.folder={data}",
        f"--config.data.negatives_run={folder}/negatives.trec",
        f"--config.data.negatives_depth={depth}",
        "--config.model.passage_length=16",
        "--config.train.max_steps=2",
    ]


def mine(folder: Path, size: Size, depth: int) -> list[str]:
    """Joins two runs of `depth` passages for each query."""
    data = write_collection(folder / "data", size, with_corpus=False)
    for seed in (1, 2):
        write_run(folder / f"{seed}.trec", size, depth, seed)
    runs = [f"--run={folder}/{seed}.trec" for seed in (1, 2)]
    return ["mine", f"--data={data}", *runs, f"--depth={depth}", f"--run_out={folder}/pool.trec"]


def retrieve(folder: Path, size: Size, depth: int) -> list[str]:
    """Finds `depth` passages for each query, among a hundredth of the passages.

    Blocks of vectors are read one after the other, so their number does not affect memory.
    """
    data = write_collection(folder / "data", size._replace(passages=size.passages // 100))
    model = write_model(folder / "model", 768)
    subprocess.run(
        [
            *(sys.executable, "-m", "cocondenser_jax.cli", "encode", f"--model={model}"),
            *(f"--corpus={data}", f"--out={folder}/embeddings", "--max_length=8"),
        ],
        check=True,
        capture_output=True,
    )
    return [
        *("retrieve", f"--embeddings={folder}/embeddings", f"--model={model}", f"--data={data}"),
        *("--split=train", f"--depth={depth}", f"--run_out={folder}/run.trec"),
    ]


def bm25(folder: Path, size: Size, depth: int) -> list[str]:
    """Ranks the passages for the queries of a split."""
    data = write_collection(folder / "data", size)
    return ["bm25", f"--data={data}", "--split=train", f"--run_out={folder}/run.trec"]


# Command and collection: sizes, passages per query, and a function that writes the data.
CASES: dict[str, tuple[Size, int, Callable[[Path, Size, int], list[str]]]] = {
    "finetune, NQ": (NQ, 100, finetune),
    "finetune, MS MARCO's round 2": (MARCO, 400, finetune),
    "mine, MS MARCO": (MARCO, 200, mine),
    "retrieve, MS MARCO": (MARCO, 200, retrieve),
    "bm25, NQ": (NQ._replace(queries=1000), 100, bm25),
}


def write_collection(folder: Path, size: Size, *, with_corpus: bool = True) -> Path:
    """Writes passages of random words, queries, and a relevant passage for each."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    with (folder / "collection.tsv").open("w") as file:
        texts = random_texts(rng, size.passages, size.words) if with_corpus else iter(())
        file.writelines(f"{row}\t{text}\n" for row, text in enumerate(texts))
    with (folder / "queries.train.tsv").open("w") as file:
        texts = random_texts(rng, size.queries, 6)
        file.writelines(f"q{row}\t{text}\n" for row, text in enumerate(texts))
    with (folder / "qrels.train.tsv").open("w") as file:
        relevant_Q = rng.integers(0, size.passages, size.queries)
        file.writelines(f"q{row}\t0\t{passage}\t1\n" for row, passage in enumerate(relevant_Q))
    return folder


def random_texts(rng: np.random.Generator, n: int, n_words: int) -> Iterator[str]:
    """Yields texts of invented words of five letters."""
    places = np.arange(5)
    for start in range(0, n, 10_000):
        shape = min(10_000, n - start), n_words
        words_NxW = np.exp(rng.random(shape) * np.log(N_WORDS)).astype(np.int64)
        letters_NxWxL = words_NxW[..., None] // 26**places % 26 + ord("a")
        spaces_NxWx1 = np.full((*shape, 1), ord(" "))
        lines_NxC = np.concatenate([letters_NxWxL, spaces_NxWx1], 2).astype(np.uint8)
        yield from (line.tobytes().decode().rstrip() for line in lines_NxC.reshape(shape[0], -1))


def write_run(path: Path, size: Size, depth: int, seed: int) -> None:
    """Writes random passages for each query."""
    rng = np.random.default_rng(seed)
    with path.open("w") as file:
        for query in range(size.queries):
            found = dict.fromkeys(rng.integers(0, size.passages, depth).tolist())
            lines = (f"q{query} Q0 {p} {i} {-i} run\n" for i, p in enumerate(found, start=1))
            file.writelines(lines)


def write_model(folder: Path, hidden_size: int) -> Path:
    """Writes a random BERT of one layer."""
    pieces = [*LETTERS, *(f"##{letter}" for letter in LETTERS)]
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = BertWordPieceTokenizer({piece: i for i, piece in enumerate([*names, *pieces])})
    marks = dict(zip(("pad", "unk", "cls", "sep", "mask"), names, strict=True))
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer._tokenizer,
        **{f"{mark}_token": name for mark, name in marks.items()},
    ).save_pretrained(folder)
    shape = transformers.BertConfig(
        vocab_size=len(names) + len(pieces),
        hidden_size=hidden_size,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    transformers.BertModel(shape, add_pooling_layer=False).save_pretrained(folder)
    return folder


os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

if __name__ == "__main__":
    main()
