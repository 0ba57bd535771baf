"""A collection with fewer passages: all that are judged, and a sample of the others.

A comparison of models on it costs less. Their metrics are higher than among all passages.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import new_folder, read_object, write_json
from cocondenser_jax.retriever.data.beir import write_beir
from cocondenser_jax.retriever.data.folder import read_corpus, read_split
from cocondenser_jax.retriever.data.trec import Qrels

_RECORD = "sample.json"
_SEED = 0


class Sampled(NamedTuple):
    """How many passages there are."""

    passages: int  # in the collection
    judged: int
    kept: int


def require_room(qrels: Qrels, n_passages: int) -> None:
    """Raises a UserError if more passages are judged than are to be kept."""
    n_judged = len(_judged(qrels))
    if n_judged > n_passages:
        raise UserError(
            f"--test_passages={n_passages}: expected at least {n_judged:,}, those that are judged"
        )


def write_sample(data: Path, split: str, corpus: str | Path, n_passages: int, out: Path) -> None:
    """Writes a split with `n_passages` of the corpus, the judged ones among them."""
    queries, qrels = read_split(data, split)
    judged = _judged(qrels)
    is_judged_N = np.array([passage.id in judged for passage in read_corpus(corpus)])
    others = np.flatnonzero(~is_judged_N)
    n_judged = int(is_judged_N.sum())
    n_others = min(n_passages - n_judged, len(others))
    is_kept_N = is_judged_N.copy()
    is_kept_N[np.random.default_rng(_SEED).choice(others, n_others, replace=False)] = True
    kept = (passage for passage, keep in zip(read_corpus(corpus), is_kept_N, strict=True) if keep)
    sampled = Sampled(passages=len(is_judged_N), judged=n_judged, kept=n_judged + n_others)
    with new_folder(out) as folder:
        write_beir(folder, kept, queries, {split: qrels})
        write_json(folder / _RECORD, sampled._asdict())


def read_sampled(folder: Path) -> Sampled:
    """Reads how many passages a sample has."""
    return Sampled(**read_object(folder / _RECORD))


def _judged(qrels: Qrels) -> set[str]:
    return {passage for grades in qrels.values() for passage in grades}
