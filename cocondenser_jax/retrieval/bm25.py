"""BM25, the lexical baseline and the source of the first round's negatives."""

import functools
import logging
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import Stemmer
from tqdm import tqdm

from cocondenser_jax.collection.folder import Passage, passage_text, read_corpus, read_queries
from cocondenser_jax.collection.trec import Run, write_run
from cocondenser_jax.errors import UserError

# Compiling the numba scorer takes about 6 s; beyond this many scores it saves more than that.
_WORTH_COMPILING = 50_000_000


def write_bm25_run(
    data_folder: Path, run_out: Path, split: str | None = None, **options: Any
) -> dict[str, float]:
    """Ranks the passages of a data folder for its queries, or a split's, and writes a TREC run.

    Options are those of `bm25_run`.

    Returns:
      How many queries there are, and how long indexing and searching took.
    """
    queries = read_queries(data_folder, split)
    start = time.perf_counter()
    run = bm25_run(read_corpus(data_folder), queries, **options)
    seconds = time.perf_counter() - start
    write_run(run_out, run)
    return {"queries": len(queries), "seconds_with_indexing": seconds}


def bm25_run(
    corpus: Iterable[Passage],
    queries: Mapping[str, str],
    depth: int = 100,
    k1: float = 0.9,
    b: float = 0.4,
) -> Run:
    """Ranks passages by BM25, in Lucene's formula.

    s(q, d) = Σ_t ln(1 + (N − n_t + ½) / (n_t + ½)) · f_td / (f_td + k1 (1 − b + b |d| / avg|d|)),

    over the Porter stems t of title and text, English stop words removed.

    Args:
      corpus: the passages.
      queries: id → text.
      depth: passages per query at most.
      k1: saturation of term frequency. 0.9 and 0.4 are Anserini's defaults; 0.82 and 0.68 are
        tuned on MS MARCO passages.
      b: strength of length normalisation.

    Returns:
      The run, query → passage → score, best first. A passage that shares no term with the query
      is not in it.
    """
    if depth < 1:
        raise UserError(f"depth={depth}: expected at least 1")
    if not (0 <= k1 < float("inf") and 0 <= b <= 1):
        raise UserError(f"k1={k1}, b={b}: expected a k1 of at least 0 and a b of 0 to 1")
    bm25s = _import_bm25s()
    ids: list[str] = []

    def texts() -> Iterable[str]:
        for passage in tqdm(corpus, desc="BM25 index", unit=" passages"):
            ids.append(passage.id)
            yield passage_text(passage)

    tokenize = functools.partial(
        bm25s.tokenize, stopwords="en", stemmer=Stemmer.Stemmer("porter"), show_progress=False
    )
    tokens = tokenize(texts())
    run: Run = {query: {} for query in queries}
    if not tokens.vocab:
        return run
    backend = "numba" if len(ids) * len(queries) > _WORTH_COMPILING else "numpy"
    index = bm25s.BM25(k1=k1, b=b, method="lucene", backend=backend)
    index.index(tokens, show_progress=False)
    words = tokenize(list(queries.values()), return_ids=False)
    terms = zip(queries, map(index.get_tokens_ids, words), strict=True)
    known = {query: found for query, found in terms if found}
    if not known:
        return run
    passages_QxK, scores_QxK = index.retrieve(
        [*known.values()], k=min(depth, len(ids)), show_progress=False, backend_selection=backend
    )
    for query, passages_K, scores_K in zip(known, passages_QxK, scores_QxK, strict=True):
        found = zip(passages_K, scores_K, strict=True)
        run[query] = {ids[passage]: float(score) for passage, score in found if score > 0}
    return run


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
