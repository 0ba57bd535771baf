"""Reads queries without judgments, such as those of a search engine's log."""

import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from cocondenser_jax.errors import UserError, log_once
from cocondenser_jax.files.tables import plain_suffix
from cocondenser_jax.files.whole import read_lines
from cocondenser_jax.retriever.data.folder import read_queries
from cocondenser_jax.retriever.data.layouts import numbers_queries

logger = logging.getLogger(__name__)

_SUFFIXES = (".txt", ".tsv", ".jsonl")
_SEED = 0


def read_log(data: Path) -> dict[str, str]:
    """Reads the distinct queries of a log: id → text.

    Omits, and counts in a warning, queries that are empty or that repeat an earlier one except for
    case and white space.

    Args:
      data: a data folder, or a .txt, .tsv or .jsonl file (see `layouts.read_query_file`).

    Raises:
      UserError: also for fewer than two distinct queries.
    """
    if data.is_file() and plain_suffix(data) not in _SUFFIXES:
        raise UserError(
            f"{data}: expected a .txt file with a query on each line, or a .tsv or .jsonl file"
        )
    queries: dict[str, str] = {}
    seen: set[str] = set()
    n_empty = _count_blank_lines(data) if numbers_queries(data) else 0
    n_again = 0
    for name, text in read_queries(data).items():
        words = " ".join(text.split())
        key = words.casefold()
        if not words:
            n_empty += 1
        elif key in seen:
            n_again += 1
        else:
            seen.add(key)
            queries[name] = words
    if n_empty or n_again:
        log_once(
            logger,
            f"{data}: {n_empty:,} empty queries and {n_again:,} that occur again are left out",
        )
    if len(queries) < 2:
        raise UserError(f"{data} has {len(queries)} different queries: a comparison needs two")
    return queries


def draw_queries(queries: Mapping[str, str], n: int) -> dict[str, str]:
    """Draws `n` queries, or all if there are fewer, with a fixed seed; keeps their order."""
    names = list(queries)
    if len(names) <= n:
        return dict(queries)
    drawn = np.random.default_rng(_SEED).choice(len(names), n, replace=False)
    return {names[i]: queries[names[i]] for i in sorted(drawn.tolist())}


def _count_blank_lines(path: Path) -> int:
    return sum(not line.strip() for _, line in read_lines(path))
