"""What a comparison has to know of its passages before it begins, in one reading of them."""

import hashlib
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from cocondenser_jax.corpus.sources import hashed
from cocondenser_jax.retriever.data.folder import passage_text, read_corpus

_N_TEXTS = 64


class Survey(NamedTuple):
    """The passages of a source."""

    n_passages: int
    sha256: str  # of ids, titles and texts, in whatever files they are
    n_wanted: int  # how many of those that were asked for there are
    texts: list[str]  # of 64 to 127 passages at equal distances; of all, where there are fewer


def survey_passages(source: str | Path, wanted: Collection[str] = ()) -> Survey:
    """Reads the passages of a source (see `read_corpus`) once; `wanted` are ids."""
    digest = hashlib.sha256()
    n_passages = n_wanted = 0
    texts: list[str] = []
    step = 1
    for passage in hashed(read_corpus(source), digest):
        if n_passages % step == 0:
            texts.append(passage_text(passage))
        if len(texts) == 2 * _N_TEXTS:
            texts = texts[::2]
            step *= 2
        n_passages += 1
        n_wanted += passage.id in wanted
    return Survey(n_passages, digest.hexdigest(), n_wanted, texts)
