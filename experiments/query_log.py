"""Searches with scores that are corrected by a log of queries, without judgments.

  python -m experiments.query_log --model=MODEL --embeddings=EMBEDDINGS --data=DATA --run_out=RUN \
    [--log_split=SPLIT]

EMBEDDINGS are of the passages of DATA, as `encode` and `compare` make them. RUN has the `test`
queries. The log is the queries of SPLIT without their judgments, but for texts that are test
queries too. Without a SPLIT, the test queries are put into two halves, and each half is the log of
the other: no query is searched for with a log that has it.

Some passages are near to whatever is asked, and so are found for too many queries. With q the
vector of a query, p that of a passage and m(p) the mean of the ten largest inner products of p with
the vectors of the log, the score is q.p - m(p) / 2. This ranks as CSLS does (Conneau et al., Word
Translation Without Parallel Data, arXiv 1710.04087): its other term, the same for all passages of a
query, is left out.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.data.folder import read_split
from cocondenser_jax.retriever.data.trec import Run, write_run
from cocondenser_jax.retriever.search.exact import nearest
from experiments.vectors import open_embeddings, read_vectors

N_NEAREST = 10  # queries of the log, as in the paper
DEPTH = 100  # passages per query
_BLOCK_ROWS = 1_024

Queries = Mapping[str, str]  # id → text


def nearness_to_log(log_LxD: np.ndarray, passages_NxD: np.ndarray) -> np.ndarray:
    """Returns the mean inner product of each passage with its ten nearest queries of a log.

    Args:
      log_LxD: vectors of the queries of the log; fewer than ten: the mean is over all.
      passages_NxD: vectors of the passages.
    """
    starts = tqdm(range(0, len(passages_NxD), _BLOCK_ROWS), desc="log", unit="block")
    blocks = (passages_NxD[start : start + _BLOCK_ROWS] @ log_LxD.T for start in starts)
    return np.concatenate([np.sort(block)[:, -N_NEAREST:].mean(axis=1) for block in blocks])


def search_with_log(
    queries_QxD: np.ndarray, passages_NxD: np.ndarray, log_LxD: np.ndarray, depth: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the scores of the head of this file, and the rows of the passages, Q x depth each.

    A score is an inner product: of q and a 1 with p and -m(p) / 2.
    """
    half_N = nearness_to_log(log_LxD, passages_NxD) / 2
    ones_Q = np.ones(len(queries_QxD), np.float32)
    longer_QxE = np.column_stack([queries_QxD, ones_Q])
    longer_NxE = np.column_stack([passages_NxD, -half_N])
    return nearest([longer_NxE], longer_QxE, min(depth, len(longer_NxE)))


def with_logs(tested: Queries, log: Queries | None) -> Iterator[tuple[Queries, Queries]]:
    """Yields queries, and the log that they are searched for with.

    Without a log, these are every second query with the others, and the others with these.

    Raises:
      UserError: if there is no query for a log.
    """
    if log is not None:
        texts = {text.strip().lower() for text in tested.values()}
        kept = {name: text for name, text in log.items() if text.strip().lower() not in texts}
        pairs = [(tested, kept)]
    else:
        halves = [dict([*tested.items()][first::2]) for first in (0, 1)]
        pairs = [(halves[0], halves[1]), (halves[1], halves[0])]
    if not all(queries_of_log for _, queries_of_log in pairs):
        raise UserError("the log has no query that is not tested: expected one or more")
    yield from pairs


def search_split(model: Path, embeddings: Path, data: Path, log_split: str | None) -> Run:
    """Searches for the test queries; see the head of this file."""
    tested, _ = read_split(data, "test")
    log = read_split(data, log_split)[0] if log_split else None
    pairs = [*with_logs(tested, log)]
    opened = open_embeddings(embeddings, model)
    passages_NxD = read_vectors(opened.passages)
    ids = opened.passages["id"].to_pylist()
    run: Run = {}
    for queries, log_queries in pairs:
        queries_QxD, log_LxD = (
            opened.model.encode_query([*texts.values()], show_progress_bar=True)
            for texts in (queries, log_queries)
        )
        scores_QxK, rows_QxK = search_with_log(queries_QxD, passages_NxD, log_LxD, DEPTH)
        for name, scores_K, rows_K in zip(queries, scores_QxK, rows_QxK, strict=True):
            found = zip(rows_K.tolist(), scores_K.tolist(), strict=True)
            run[name] = {ids[row]: score for row, score in found}
    return run


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--embeddings", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--log_split")
    parser.add_argument("--run_out", type=Path, required=True)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    given = make_parser().parse_args(arguments)
    run = search_split(given.model, given.embeddings, given.data, given.log_split)
    write_run(given.run_out, run)


if __name__ == "__main__":
    main()
