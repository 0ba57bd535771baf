"""BM25, the lexical baseline and the source of the first round's negatives."""

import logging
import sys
from collections.abc import Iterable, Mapping
from types import ModuleType

import Stemmer
from tqdm import tqdm

from cocondenser_jax.collection.folder import Passage, passage_text
from cocondenser_jax.errors import UserError

# Compiling the numba scorer takes about 6 s; beyond this many scores it saves more than that.
_WORTH_COMPILING = 50_000_000


def bm25_run(
    corpus: Iterable[Passage],
    queries: Mapping[str, str],
    depth: int = 100,
    k1: float = 0.9,
    b: float = 0.4,
) -> dict[str, dict[str, float]]:
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

    Raises:
      UserError: for a depth below 1, a negative k1, or a b outside 0 to 1.
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

    stemmer = Stemmer.Stemmer("porter")
    tokens = bm25s.tokenize(texts(), stopwords="en", stemmer=stemmer, show_progress=False)
    if not tokens.vocab:
        return {query: {} for query in queries}
    compiled = len(ids) * len(queries) > _WORTH_COMPILING
    index = bm25s.BM25(k1=k1, b=b, method="lucene", backend="numba" if compiled else "numpy")
    index.index(tokens, show_progress=False)
    words = bm25s.tokenize(
        list(queries.values()),
        stopwords="en",
        stemmer=stemmer,
        return_ids=False,
        show_progress=False,
    )
    known = {
        query: terms
        for query, terms in zip(queries, map(index.get_tokens_ids, words), strict=True)
        if terms
    }
    run: dict[str, dict[str, float]] = {query: {} for query in queries}
    if not known:
        return run
    passages_QxK, scores_QxK = index.retrieve(
        list(known.values()),
        k=min(depth, len(ids)),
        show_progress=False,
        backend_selection="numba" if compiled else "numpy",
    )
    for query, passages_K, scores_K in zip(known, passages_QxK, scores_QxK, strict=True):
        run[query] = {
            ids[passage]: float(score)
            for passage, score in zip(passages_K, scores_K, strict=True)
            if score > 0
        }
    return run


def _import_bm25s() -> ModuleType:
    """Imports bm25s without JAX, on which it would run a computation and so claim the TPU."""
    hidden = [name for name in ("jax", "jax.lax") if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        import bm25s
    finally:
        for name in hidden:
            del sys.modules[name]
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # importing it sets DEBUG
    return bm25s
