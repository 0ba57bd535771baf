"""BM25, the lexical baseline and the source of the first round's negatives."""

import functools
import logging
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pyarrow  # type: ignore[import-untyped]
import Stemmer
from tqdm import tqdm

from cocondenser_jax.collection.folder import Passage, passage_text, read_corpus, read_queries
from cocondenser_jax.collection.trec import (
    Run,
    drop_identical_ids,
    warn_of_identical_ids,
    write_run,
)
from cocondenser_jax.errors import UserError
from cocondenser_jax.retrieval.embeddings import passage_at
from cocondenser_jax.storage.files import new_folder
from cocondenser_jax.storage.runs import require_intact, write_checksums

# Compiling the numba scorer takes about 6 s; beyond this many scores it saves more than that.
_WORTH_COMPILING = 50_000_000


class Bm25Settings(NamedTuple):
    """How BM25 weighs; the numbers are Anserini's defaults (MS MARCO: 0.82 and 0.68)."""

    k1: float = 0.9  # saturation of term frequency
    b: float = 0.4  # strength of length normalization


_DEFAULTS = Bm25Settings()


def write_bm25_run(
    data_folder: Path,
    run_out: Path,
    split: str | None = None,
    depth: int = 100,
    settings: Bm25Settings = _DEFAULTS,
    *,
    ignore_identical_ids: bool = False,
) -> dict[str, float]:
    """Ranks a data folder's passages for its queries, or those of a split; writes a TREC run.

    See `bm25_run`. Returns the number of queries, and the seconds that indexing and searching took.
    """
    queries = read_queries(data_folder, split)
    start = time.perf_counter()
    run = bm25_run(
        read_corpus(data_folder),
        queries,
        depth,
        settings,
        ignore_identical_ids=ignore_identical_ids,
    )
    seconds = time.perf_counter() - start
    warn_of_identical_ids(run, queries)
    write_run(run_out, run)
    return {"queries": len(queries), "seconds_with_indexing": seconds}


def bm25_run(
    corpus: Iterable[Passage],
    queries: Mapping[str, str],
    depth: int = 100,
    settings: Bm25Settings = _DEFAULTS,
    *,
    ignore_identical_ids: bool = False,
) -> Run:
    """Ranks passages by BM25, in Lucene's formula.

    s(q, d) = Σ_t ln(1 + (N − n_t + ½) / (n_t + ½)) · f_td / (f_td + k1 (1 − b + b |d| / avg|d|)),

    over the Porter stems t of title and text, English stop words removed.

    Args:
      corpus: the passages.
      queries: id → text.
      depth: passages per query at most.
      settings: of the formula.
      ignore_identical_ids: leave out passages with their query's id, see `drop_identical_ids`.

    Returns:
      query → passage → score, best first, without passages that share no term with the query.
    """
    ids: list[str] = []

    def note_ids() -> Iterator[Passage]:
        for passage in corpus:
            ids.append(passage.id)
            yield passage

    index = _build_index(note_ids(), settings)
    n_ranked = depth + 1 if ignore_identical_ids else depth
    ranking_Q = rank_by_bm25(index, list(queries.values()), n_ranked)
    run = {
        query: {ids[row]: score for row, score in ranking.items()}
        for query, ranking in zip(queries, ranking_Q, strict=True)
    }
    return drop_identical_ids(run, depth) if ignore_identical_ids else run


def open_bm25_index(folder: Path, passages: pyarrow.Table) -> Any:
    """Opens `bm25` in a folder, the BM25 index of its passages; the first call writes it."""
    place = folder / "bm25"
    if not place.exists():
        with new_folder(place) as partial:
            index = _build_index(passage_at(passages, row) for row in range(len(passages)))
            index.save(partial, show_progress=False)
            write_checksums(partial)
    try:
        require_intact(place)
        index = _import_bm25s().BM25.load(place, mmap=True)
        if index.scores["num_docs"] != len(passages):
            raise UserError(f"{place} was made of other passages")
    except UserError as error:
        raise UserError(f"{error}: remove it, and the next hybrid search makes it again") from None
    return index


def rank_by_bm25(index: Any, queries: list[str], depth: int) -> list[dict[int, float]]:
    """Ranks by BM25; returns row → score of each query's passages, best first."""
    n_passages = index.scores["num_docs"]
    index.backend = "numba" if n_passages * len(queries) > _WORTH_COMPILING else "numpy"
    terms_Q = [index.get_tokens_ids(terms) for terms in _tokenize(queries, return_ids=False)]
    ranking_Q: list[dict[int, float]] = [{} for _ in queries]
    with_terms = [i for i, terms in enumerate(terms_Q) if terms]
    if not with_terms:
        return ranking_Q
    rows_QxK, scores_QxK = index.retrieve(
        [terms_Q[i] for i in with_terms],
        k=min(depth, n_passages),
        show_progress=False,
        backend_selection=index.backend,
    )
    for i, rows_K, scores_K in zip(with_terms, rows_QxK.tolist(), scores_QxK.tolist(), strict=True):
        ranking = zip(rows_K, scores_K, strict=True)
        ranking_Q[i] = {row: score for row, score in ranking if score > 0}
    return ranking_Q


def _build_index(corpus: Iterable[Passage], settings: Bm25Settings = _DEFAULTS) -> Any:
    bar = tqdm(corpus, desc="BM25 index", unit=" passages")
    tokens = _tokenize(passage_text(passage) for passage in bar)
    index = _import_bm25s().BM25(k1=settings.k1, b=settings.b, method="lucene")
    if not tokens.vocab:  # bm25s needs a word: the empty one, which is in no query
        tokens = ([[0] for _ in tokens.ids], {"": 0})
    index.index(tokens, show_progress=False)
    return index


def _tokenize(texts: Iterable[str], *, return_ids: bool = True) -> Any:
    """Returns the stems of each text: numbers with their vocabulary, or strings."""
    return _import_bm25s().tokenize(
        texts,
        return_ids=return_ids,
        stopwords="en",
        stemmer=Stemmer.Stemmer("porter"),
        show_progress=False,
    )


@functools.cache
def _import_bm25s() -> ModuleType:
    """Imports bm25s without JAX: bm25s 0.3.16 runs a computation on it, which claims the TPU."""
    hidden = [name for name in ("jax", "jax.lax") if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        import bm25s
    finally:
        for name in hidden:
            del sys.modules[name]
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # importing it sets DEBUG
    return bm25s
