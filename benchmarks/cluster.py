"""Times `corpus` and `encode` in tasks: one and two workers, and the overhead for little work.

Each row is the wall time of one whole command, the median of several rounds with alternating sides;
a worker has one thread. The corpus consists of several copies of this machine's docstrings, with a
number in each (duplicates would be dropped), in 16 files; `small corpus` is 200 of them. `encode`
reads some of them, truncated to 64 tokens, with a model of all-MiniLM-L6-v2's size. Run it on two
idle cores:

  python -m benchmarks.cluster --json_out=benchmarks/results/cluster.json
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.corpora import docstrings, write_retriever, write_tokenizer
from benchmarks.results import report

FILES = 16
SIDES = {
    "one process (s)": [],
    "one worker (s)": ["--tasks=16", "--workers=1"],
    "two workers (s)": ["--tasks=16", "--workers=2"],
}


def main() -> None:
    """Times the commands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--copies", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--passages", type=int, default=6000, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--json_out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        rows = _rows(arguments, Path(temporary))
        report(rows, arguments.json_out)


def _rows(arguments: argparse.Namespace, folder: Path) -> Iterator[dict[str, str | float]]:
    texts = docstrings()
    tokenizer = write_tokenizer(texts, folder / "tokenizer")
    large = [f"{number} {text}" for number in range(arguments.copies) for text in texts]
    model = write_retriever(tokenizer, folder / "model")
    passages = folder / "passages.jsonl"
    passages.write_text("".join(_lines(texts[: arguments.passages])))
    encode = ["encode", f"--model={model}", f"--corpus={passages}", "--max_length=64"]
    commands = {
        "corpus": _corpus(large, tokenizer, folder / "large"),
        "small corpus": _corpus(texts[:200], tokenizer, folder / "small"),
        "encode": [*encode, "--shard_size=250"],
    }
    for name, command in commands.items():
        seconds: dict[str, list[float]] = {side: [] for side in SIDES}
        for turn in range(arguments.rounds):
            for side in [*SIDES] if turn % 2 else [*SIDES][::-1]:
                out = folder / f"{name} {turn} {len(SIDES[side])} {side[:3]}"
                seconds[side].append(_time([*command, f"--out={out}", *SIDES[side]]))
        medians = {side: round(statistics.median(of), 2) for side, of in seconds.items()}
        _, one, two = medians.values()
        yield {"command": name, **medians, "one / two workers": round(one / two, 2)}


def _corpus(texts: Sequence[str], tokenizer: Path, source: Path) -> list[str]:
    source.mkdir()
    for number in range(FILES):
        (source / f"{number:02d}.jsonl").write_text("".join(_lines(texts[number::FILES])))
    return ["corpus", f"--corpus={source}", f"--tokenizer={tokenizer}"]


def _lines(texts: Sequence[str]) -> Iterator[str]:
    for number, text in enumerate(texts):
        yield json.dumps({"_id": f"{number}", "text": text}) + "\n"


def _time(command: Sequence[str]) -> float:
    threads = {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "cocondenser_jax.cli", *command],
        env={**os.environ, **threads},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
