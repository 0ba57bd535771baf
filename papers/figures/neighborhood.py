r"""Plot how much of the top n of a run lies in the top k of others, by k.

python -m papers.figures.neighborhood --stage1=runs/bm25.trec --stage1=runs/round1.trec \
      --stage2=runs/round2.trec --n=10,50 --out=neighborhood.svg
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import write_json
from cocondenser_jax.retriever.data.trec import first_passages, read_run
from papers.figures.output import add_outputs, print_columns, run_script, whole_numbers
from papers.figures.plot import Axis, numbered, write_plot

_PRINTED_DEPTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)

Rankings = Mapping[str, Sequence[str]]  # query -> passages, best first, none twice


def measure_runs(stage1: Sequence[Path], stage2: Path, sizes: Sequence[int]) -> dict[str, Any]:
    """Measures how much of the top n of a TREC run lies in the top k of others, for every k.

    The neighborhoods are of `stage2`, the sizes the values of n.

    Returns:
      {stage2: file, queries: their number, stage1: {file: {recall: {n: values by k}}}}.
    """
    neighbors = _read_rankings(stage2)
    runs = {}
    for path in stage1:
        rankings = _read_rankings(path)
        recall = {n: neighborhood_recall(rankings, neighbors, n).tolist() for n in sizes}
        runs[str(path)] = {"recall": recall}
    return {"stage2": str(stage2), "queries": len(neighbors), "stage1": runs}


def _read_rankings(path: Path) -> Rankings:
    return {query: first_passages(scores) for query, scores in read_run(path).items()}


def neighborhood_recall(stage1: Rankings, stage2: Rankings, n: int) -> np.ndarray:
    """Returns nb-recall_n@k = |{stage-1 top k} ∩ {stage-2 top n}| / n for k = 1, 2, ..., [K].

    The mean is over the queries of stage 2. A query that stage 1 lacks, or the part of its ranking
    that is missing at depth k, counts as a miss; queries of stage 1 alone do not count. Where
    stage 2 has fewer than n passages for a query, their number takes the place of n: 1.0 means that
    its whole neighborhood was found. K is the length of the longest ranking of stage 1.

    Raises:
      UserError: if no query has n passages in stage 2, or none is in both stages.
    """
    queries = [query for query, passages in stage2.items() if passages]
    longest = max((len(stage2[query]) for query in queries), default=0)
    if longest < n:
        raise UserError(f"no query has {n} passages in stage 2 (at most {longest})")
    depth = max((len(stage1.get(query, ())) for query in queries), default=0)
    if not depth:
        raise UserError(f"stage 1 has none of the {len(queries)} queries of stage 2")
    hits_K = np.zeros(depth)
    for query in queries:
        neighbors = set(stage2[query][:n])
        places = [k for k, passage in enumerate(stage1.get(query, ())) if passage in neighbors]
        hits_K[places] += 1 / len(neighbors)
    return np.cumsum(hits_K) / len(queries)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the script."""
    run_script(make_parser(), _draw, argv)


def make_parser() -> argparse.ArgumentParser:
    """Declares the flags."""
    parser = argparse.ArgumentParser(prog="neighborhood", allow_abbrev=False)
    stage1 = "TREC run to read to depth k; may be repeated"
    parser.add_argument("--stage1", type=Path, required=True, action="append", help=stage1)
    stage2 = "TREC run whose top n are each query's neighborhood"
    parser.add_argument("--stage2", type=Path, required=True, help=stage2)
    n = "sizes of the neighborhood, separated by commas (default: 10)"
    parser.add_argument("--n", type=whole_numbers, default=[10], help=n)
    add_outputs(parser)
    return parser


def _draw(arguments: argparse.Namespace) -> None:
    result = measure_runs(arguments.stage1, arguments.stage2, arguments.n)
    columns = {
        f"{name}, n={n}": values
        for name, run in result["stage1"].items()
        for n, values in run["recall"].items()
    }
    depth = max(map(len, columns.values()))
    print_columns("k", columns, [*(k for k in _PRINTED_DEPTHS if k < depth), depth])
    if arguments.json_out:
        write_json(arguments.json_out, result)
    lines = numbered(columns)
    write_plot(arguments.out, "Neighborhood recall at k", lines, Axis("k", is_log=True))


if __name__ == "__main__":
    main()
