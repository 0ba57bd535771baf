"""Write the splits of the study of adaptive batches, drawn from MS MARCO's dev.small and a run.

python -m papers.abs_data --data=DATA --run=runs/bm25.dev.small.trec --out=runs/abs

OUT is a data folder with links to the passages and training queries of DATA, and with the split
dev: 1,500 queries with one relevant passage each, and `dev.trec` with 99 passages for each query,
drawn from its top 1,000 in the run. OUT/test is another data folder, for the full ranking: the
split test, 4,980 other queries, and the passages that are relevant or in the run for them.

The study does not identify these queries, nor the 3,128,597 passages that it ranks; it states that
each dev query has a top 1,000, without ranks. Those of 4,980 queries are at most 4,980,000.
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import new_folder, write_text
from cocondenser_jax.retriever.data.folder import (
    read_corpus,
    read_split,
    split_files,
    with_positives,
)
from cocondenser_jax.retriever.data.trec import Qrels, first_passages, read_run, write_run
from papers.figures.output import run_script

DEPTH = 1000  # of the run
N_OTHERS = 99  # passages that a dev query's relevant one is ranked among
SEED = 0


def write_splits(data: Path, run_file: Path, out: Path, n_dev: int, n_test: int) -> None:
    """Writes both data folders, described at the top of this file."""
    queries, qrels = read_split(data, "dev.small")
    relevant = with_positives(qrels)
    if n_dev + n_test > len(relevant):
        raise UserError(f"dev.small has {len(relevant)} queries: expected {n_dev + n_test}")
    rng = np.random.default_rng(SEED)
    names = [list(relevant)[i] for i in rng.permutation(len(relevant))]
    dev = names[:n_dev]
    test = names[n_dev : n_dev + n_test]
    run = {query: first_passages(scores)[:DEPTH] for query, scores in read_run(run_file).items()}
    with new_folder(out) as folder:
        for file in split_files(data, "train").values():
            (folder / file.name).symlink_to(file.resolve())
        drawn = {}
        for query in dev:
            others = [p for p in run.get(query, ()) if p not in relevant[query]]
            places = rng.permutation(len(others))[:N_OTHERS]
            drawn[query] = {others[i]: float(DEPTH - i) for i in places}
        write_run(folder / "dev.trec", drawn)
        one_relevant = {query: {next(iter(relevant[query])): 1} for query in dev}
        _write_split(folder, "dev", queries, one_relevant)

        (folder / "test").mkdir()
        judged = {query: dict.fromkeys(relevant[query], 1) for query in test}
        _write_split(folder / "test", "test", queries, judged)
        ranked = {*chain(*judged.values()), *chain(*(run.get(query, ()) for query in test))}
        _write_passages(folder / "test" / "corpus.tsv", data, ranked)
    print(f"{out}/test: {len(ranked):,} passages")


def _write_split(folder: Path, split: str, queries: Mapping[str, str], qrels: Qrels) -> None:
    write_text(folder / f"queries.{split}.tsv", "".join(f"{q}\t{queries[q]}\n" for q in qrels))
    judged = (f"{q}\t0\t{p}\t{grade}\n" for q in qrels for p, grade in qrels[q].items())
    write_text(folder / f"qrels.{split}.tsv", "".join(judged))


def _write_passages(path: Path, data: Path, wanted: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for passage in read_corpus(data):
            if passage.id in wanted:
                file.write(f"{passage.id}\t{passage.title}\t{passage.text}\n")


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the script."""
    run_script(make_parser(), _write, argv)


def make_parser() -> argparse.ArgumentParser:
    """Declares the flags."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="abs_data", description=__doc__, formatter_class=plain, allow_abbrev=False
    )
    parser.add_argument("--data", type=Path, required=True, help="MS MARCO passages")
    parser.add_argument("--run", type=Path, required=True, help="TREC run of dev.small")
    parser.add_argument("--out", type=Path, required=True, help="the folder to make")
    parser.add_argument("--dev", type=int, default=1500, help="queries (default: 1500)")
    parser.add_argument("--test", type=int, default=4980, help="queries (default: 4980)")
    return parser


def _write(arguments: argparse.Namespace) -> None:
    write_splits(arguments.data, arguments.run, arguments.out, arguments.dev, arguments.test)


if __name__ == "__main__":
    main()
