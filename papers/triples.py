"""Write MS MARCO's training triples of ids (query, relevant passage, negative) as a TREC run.

python -m papers.triples --triples=qidpidtriples.train.full.2.tsv.gz --out=runs/triples.trec

The published file has 400 million lines, up to 1,000 negatives for a query. 200 of each query are
drawn by a seed, in random order, as the authors of coCondenser shuffle them before they take 30.
"""

import argparse
import zlib
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import numbered_lines
from cocondenser_jax.retriever.data.trec import write_results
from papers.figures.output import at_least, run_script

_HELD = 2  # negatives in memory for each that is kept


def read_triples(path: Path, depth: int, seed: int = 0) -> Iterator[tuple[str, dict[str, float]]]:
    """Yields each query with `depth` of its negatives, drawn by a seed, with decreasing scores.

    A passage counts once for a query, also where the query has several relevant passages.
    """
    number_of: dict[str, int] = {}  # passages are numbered as they come
    held: dict[str, array[int]] = {}
    for query, negative in _read_pairs(path):
        of_query = held.setdefault(query, array("I"))
        of_query.append(number_of.setdefault(negative, len(number_of)))
        if len(of_query) >= _HELD * depth:
            held[query] = array("I", _draw(of_query, depth, query, seed).tolist())
    names = list(number_of)
    for query, of_query in held.items():
        drawn = _draw(of_query, depth, query, seed).tolist()
        yield query, {names[number]: -float(rank) for rank, number in enumerate(drawn)}


def _read_pairs(path: Path) -> Iterator[tuple[str, str]]:
    """Yields query and negative of each line."""
    for number, line in numbered_lines(path):
        ids = line.split("\t")
        if len(ids) != 3 or any(len(name.split()) != 1 for name in ids):
            raise UserError(f"{path}:{number}: expected three ids, separated by tabs")
        yield ids[0], ids[2].rstrip()


def _draw(numbers: "array[int]", depth: int, query: str, seed: int) -> np.ndarray:
    """Returns the `depth` passages of a query with the smallest keys, given by seed and query.

    Drawing from a part, and then from the drawn ones and the rest, equals drawing from all.
    """
    distinct_N = np.unique(np.frombuffer(numbers, np.uint32))
    keys_N = _mix(distinct_N + _mix(np.array([zlib.crc32(query.encode()) + (seed << 32)])))
    return distinct_N[np.argsort(keys_N, kind="stable")[:depth]]


def _mix(values_N: np.ndarray) -> np.ndarray:
    """Returns pseudorandom numbers, uint64 (splitmix64 of Steele, Lea & Flood, OOPSLA 2014)."""
    mixed_N = values_N.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed_N = (mixed_N ^ (mixed_N >> np.uint64(shift))) * np.uint64(factor)
    return mixed_N ^ (mixed_N >> np.uint64(31))


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the script."""
    run_script(make_parser(), _write, argv)


def make_parser() -> argparse.ArgumentParser:
    """Declares the flags."""
    parser = argparse.ArgumentParser(prog="triples", description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--triples", type=Path, required=True, help="plain, .gz, .xz or .zst")
    parser.add_argument("--out", type=Path, required=True, help="TREC run to write")
    depth = "negatives of a query (default: 200)"
    parser.add_argument("--depth", type=at_least(1), default=200, help=depth)
    seed = "of what is drawn (default: 0)"
    parser.add_argument("--seed", type=at_least(0), default=0, help=seed)
    return parser


def _write(given: argparse.Namespace) -> None:
    write_results(given.out, read_triples(given.triples, given.depth, given.seed), tag="triples")


if __name__ == "__main__":
    main()
