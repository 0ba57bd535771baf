"""What a comparison has to know of its passages before it begins, in one reading of them."""

import hashlib
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from cocondenser_jax.corpus.sources import hashed
from cocondenser_jax.retriever.data.folder import read_corpus


class Survey(NamedTuple):
    """The passages of a source."""

    sha256: str  # of ids, titles and texts, in whatever files they are
    n_wanted: int  # how many of those that were asked for there are


def survey_passages(source: str | Path, wanted: Collection[str] = ()) -> Survey:
    """Reads the passages of a source (see `read_corpus`) once; `wanted` are ids."""
    digest = hashlib.sha256()
    n_wanted = 0
    for passage in hashed(read_corpus(source), digest):
        n_wanted += passage.id in wanted
    return Survey(digest.hexdigest(), n_wanted)
