"""BM25: the lexical baseline, and the source of negatives in the first round."""

import logging
import math
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow  # type: ignore[import-untyped]
from tqdm import tqdm

from cocondenser_jax.corpus.folders import find_place
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.memory import available_bytes
from cocondenser_jax.files.runs import require_intact, write_checksums
from cocondenser_jax.files.tables import plain_suffix
from cocondenser_jax.files.whole import estimate_lines, new_folder, read_object, write_json
from cocondenser_jax.retriever.data.folder import (
    Passage,
    corpus_source,
    passage_text,
    read_asked,
    read_corpus,
    read_texts,
    relevant_passages,
    require_query,
    searched_passages,
    warn_of_missing,
)
from cocondenser_jax.retriever.data.identical_ids import (
    warn_of_identical_ids,
    watch_identical_ids,
    without_identical_id,
)
from cocondenser_jax.retriever.data.same_text import note_firsts, warn_of_copies
from cocondenser_jax.retriever.data.trec import Results, Run, require_any, write_results
from cocondenser_jax.retriever.search.embeddings import passage_at, passage_table
from cocondenser_jax.retriever.search.import_bm25s import import_bm25s
from cocondenser_jax.retriever.search.terms import LANGUAGE, require_language, term_finder

logger = logging.getLogger(__name__)

# Compiling the numba scorer takes about 6 s; beyond this many scores it saves more than that.
_WORTH_COMPILING = 50_000_000
_LANGUAGE_FILE = "language.json"
_QUERIES_AT_ONCE = 4_096
# For the estimate of memory: file size below which none is needed; passages to sample; bytes per
# passage, per term, per distinct term of a passage, and per distinct word of the corpus.
# `python -m benchmarks.processes "bm25, NQ"` measures the sum.
_SMALL_FILE = 100_000_000
_SAMPLED = 5_000
_BYTES_OF_PASSAGE = 250
_BYTES_OF_TERM = 4
_BYTES_OF_SCORE = 24
_BYTES_OF_WORD = 450


class Bm25Settings(NamedTuple):
    """Settings of BM25; the defaults are Anserini's (for MS MARCO: 0.82 and 0.68)."""

    k1: float = 0.9  # saturation of term frequency
    b: float = 0.4  # strength of length normalization
    language: str = LANGUAGE  # whose stop words and endings are removed; see `terms.languages`


_DEFAULTS = Bm25Settings()


class Bm25Index(NamedTuple):
    """A BM25 index of passages, and the language of its terms."""

    scores: Any  # bm25s.BM25
    language: str
    find_terms: Callable[[str], list[str]]  # for that language; caches words


class LexicalIndex(NamedTuple):
    """A BM25 index with its passages, in memory."""

    bm25: Bm25Index
    passages: pyarrow.Table  # `id`, `title` and `text` of the rows


class Searched(NamedTuple):
    """The queries and passages of `write_bm25_run`."""

    data: Path  # a data folder, or a file of queries
    split: str | None  # whose queries are used; None: all
    corpus: str | Path | None  # see `folder.searched_passages`


def write_bm25_run(
    searched: Searched,
    run_out: Path,
    depth: int,
    settings: Bm25Settings,
    *,
    ignore_identical_ids: bool,
    warns: bool,
) -> dict[str, float]:
    """Ranks passages for the queries of a data folder, or of a split; writes a TREC run.

    See `bm25_run`, and `drop_identical_ids` for `ignore_identical_ids`. With `warns`, it calls
    `warn_of_identical_ids` and, reading the passages again, `warn_of_copies`. Returns the number of
    queries, and the seconds for indexing, searching and writing.

    Raises:
      UserError: also if nothing is found for any query, or if the passages to leave out are judged
        relevant. Nothing is written then.
    """
    require_language(settings.language)
    if not (0 <= settings.k1 < math.inf and 0 <= settings.b <= 1):
        raise UserError(f"k1={settings.k1}, b={settings.b}: expected 0 or more, and 0 to 1")
    data_folder, split, _ = searched
    corpus = searched_passages(data_folder, searched.corpus)
    queries, qrels = read_asked(data_folder, split, ignore_identical_ids=ignore_identical_ids)
    relevant = relevant_passages(qrels)
    source = corpus_source(corpus)
    require_memory(source, settings.language)
    start = time.perf_counter()
    bm25, ids = _build_index(read_corpus(source, judged=split is not None), settings)
    results = require_any(
        _rank_by_ids(bm25, ids, queries, depth + 1 if ignore_identical_ids else depth),
        f"{data_folder}: BM25 finds nothing for any of the {len(queries)} queries, such as"
        f" {next(iter(queries.values()))!r}: they share no term with the passages (in"
        f" --language={settings.language})",
    )
    if ignore_identical_ids:
        results = require_any(
            ((query, without_identical_id(query, scores, depth)) for query, scores in results),
            f"{data_folder}: all that BM25 finds for any of the {len(queries)} queries is the"
            " passage of the same id, which is left out",
        )
    firsts: dict[str, Sequence[str]] = {}
    own: dict[str, bool] = {}
    write_results(run_out, watch_identical_ids(note_firsts(results, qrels, firsts), own))
    seconds = time.perf_counter() - start
    warn_of_missing(len(relevant.intersection(ids)), relevant, split)
    if warns:
        warn_of_identical_ids({str(run_out): own}, qrels)
    if warns and qrels:
        warn_of_copies({str(run_out): firsts}, qrels, lambda _: read_texts(source))
    return {"queries": len(queries), "seconds_with_indexing": seconds}


def bm25_run(
    corpus: Iterable[Passage],
    queries: Mapping[str, str],
    depth: int = 100,
    settings: Bm25Settings = _DEFAULTS,
) -> Run:
    """Ranks passages by BM25, in Lucene's formula.

    s(q, d) = Σ_t ln(1 + (N − n_t + ½) / (n_t + ½)) · f_td / (f_td + k1 (1 − b + b |d| / avg|d|)),

    over the terms t of title and text (see `terms.term_finder`).

    Args:
      corpus: the passages.
      queries: id → text.
      depth: maximum passages per query.
      settings: k1, b and language.

    Returns:
      query → passage → score, best first; only passages that share a term with the query.
    """
    return dict(_rank_by_ids(*_build_index(corpus, settings), queries, depth))


def _rank_by_ids(
    bm25: Bm25Index, ids: Sequence[str], queries: Mapping[str, str], depth: int
) -> Results:
    ranking_Q = rank_by_bm25(bm25, list(queries.values()), depth)
    for query, ranking in zip(queries, ranking_Q, strict=True):
        yield query, {ids[row]: score for row, score in ranking.items()}


def open_bm25_index(folder: Path, passages: pyarrow.Table, language: str | None) -> Bm25Index:
    """Opens the BM25 index `bm25` in a folder; the first call makes it.

    Args:
      folder: the folder of an index or embeddings.
      passages: the folder's passages.
      language: see `Bm25Settings`; None: the index's language or, for a new one, the default.

    Raises:
      UserError: also if the index was made from other passages or for another language.
    """
    place = folder / "bm25"
    if not place.exists():
        settings = Bm25Settings(language=language or LANGUAGE)
        with new_folder(place) as partial:
            bm25 = _build_of_table(passages, settings)
            bm25.scores.save(partial, show_progress=False)
            write_json(partial / _LANGUAGE_FILE, {"language": settings.language})
            write_checksums(partial)
    try:
        require_intact(place)
        index = _read_index(place)
        if index.scores.scores["num_docs"] != len(passages):
            raise UserError(f"{place} was made of other passages")
        if language not in (None, index.language):
            raise UserError(f"{place} was made with --language={index.language}, not {language}")
    except UserError as error:
        raise UserError(f"{error}: remove it, and the next hybrid search makes it again") from None
    return index


def index_corpus(corpus: str | Path, language: str | None) -> LexicalIndex:
    """Reads passages (see `folder.read_corpus`) into memory and indexes them for BM25."""
    source = corpus_source(corpus)
    settings = Bm25Settings(language=language or LANGUAGE)
    require_language(settings.language)
    require_memory(source, settings.language)
    passages = passage_table(read_corpus(source))
    return LexicalIndex(_build_of_table(passages, settings), passages)


def find_passages(index: LexicalIndex, query: str, k: int) -> list[tuple[float, Passage]]:
    """Returns the `k` best passages for one query with their scores, best first.

    Raises:
      UserError: see `require_query`.
    """
    require_query(query)
    (ranking,) = rank_by_bm25(index.bm25, [query], k)
    return [(score, passage_at(index.passages, row)) for row, score in ranking.items()]


def rank_by_bm25(index: Bm25Index, queries: list[str], depth: int) -> Iterator[dict[int, float]]:
    """Ranks by BM25; yields row → score for each query, best first."""
    scores = index.scores
    n_passages = scores.scores["num_docs"]
    scores.backend = "numba" if n_passages * len(queries) > _WORTH_COMPILING else "numpy"
    for start in range(0, len(queries), _QUERIES_AT_ONCE):
        yield from _rank_some(index, queries[start : start + _QUERIES_AT_ONCE], depth)


def _rank_some(index: Bm25Index, queries: list[str], depth: int) -> list[dict[int, float]]:
    scores = index.scores
    terms_Q = [scores.get_tokens_ids(index.find_terms(query)) for query in queries]
    ranking_Q: list[dict[int, float]] = [{} for _ in queries]
    with_terms = [i for i, terms in enumerate(terms_Q) if terms]
    if not with_terms:
        return ranking_Q
    rows_QxK, scores_QxK = scores.retrieve(
        [terms_Q[i] for i in with_terms],
        k=min(depth, scores.scores["num_docs"]),
        show_progress=False,
        backend_selection=scores.backend,
    )
    for i, rows_K, scores_K in zip(with_terms, rows_QxK.tolist(), scores_QxK.tolist(), strict=True):
        ranking = zip(rows_K, scores_K, strict=True)
        ranking_Q[i] = {row: score for row, score in ranking if score > 0}
    return ranking_Q


class _Lists(Sequence[list[int]]):
    """Lists of numbers, stored in one array; as a list, 60 numbers would take 540 bytes."""

    def __init__(self) -> None:
        self._numbers = array("i")
        self._ends = array("q", [0])

    def append(self, numbers: Iterable[int]) -> None:
        """Appends a list."""
        self._numbers.extend(numbers)
        self._ends.append(len(self._numbers))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, place: Any) -> Any:
        if place >= len(self):
            raise IndexError(place)
        return self._numbers[self._ends[place] : self._ends[place + 1]].tolist()


class _Terms(NamedTuple):
    """The terms of passages in the format of bm25s."""

    ids: Sequence[list[int]]
    vocab: dict[str, int]


def _build_of_table(passages: pyarrow.Table, settings: Bm25Settings) -> Bm25Index:
    rows = range(len(passages))
    return _build_index((passage_at(passages, row) for row in rows), settings)[0]


def _build_index(corpus: Iterable[Passage], settings: Bm25Settings) -> tuple[Bm25Index, list[str]]:
    """Builds an index; returns it with the passages' ids by row."""
    find_terms = term_finder(settings.language)
    number_of: dict[str, int] = {}
    terms_N = _Lists()
    ids = []
    for passage in tqdm(corpus, desc="BM25 index", unit=" passages"):
        ids.append(passage.id)
        terms = find_terms(passage_text(passage))
        terms_N.append(number_of.setdefault(term, len(number_of)) for term in terms)
    if not number_of:  # bm25s needs a word; the empty one occurs in no query
        number_of = {"": 0}
        n_passages = len(terms_N)
        terms_N = _Lists()
        for _ in range(n_passages):
            terms_N.append([0])
    # bm25s' own sparse matrix sorts 64-bit numbers, in twice the memory of scipy's.
    scores = import_bm25s().BM25(k1=settings.k1, b=settings.b, method="lucene", csc_backend="scipy")
    scores.index(_Terms(terms_N, number_of), show_progress=False)
    return Bm25Index(scores, settings.language, find_terms), ids


def require_memory(source: str | Path, language: str) -> None:
    """Logs the estimated memory of `bm25_run` for a large file with one passage per line.

    Raises:
      UserError: if it exceeds the available memory.
    """
    file = find_place(source).path
    if not file.is_file() or plain_suffix(file) not in (".jsonl", ".tsv"):
        return
    if file.stat().st_size < _SMALL_FILE:
        return
    needed = estimate_bytes(source, language)
    available = available_bytes()
    logger.info(
        "BM25 of %s will take about %.1f GiB of memory; %.1f GiB are free",
        file,
        needed / 2**30,
        available / 2**30,
    )
    if needed > available:
        raise UserError(
            f"BM25 of {file} takes about {needed / 2**30:.1f} GiB of memory, and"
            f" {available / 2**30:.1f} GiB are free: use a machine with more"
        )


def estimate_bytes(source: str | Path, language: str) -> int:
    """Estimates the memory of `bm25_run` in bytes from a file's first passages."""
    find_terms = term_finder(language)
    n_lines = estimate_lines(find_place(source).path)
    terms_N = [find_terms(passage_text(p)) for p in islice(read_corpus(source), _SAMPLED)]
    per_passage = _BYTES_OF_PASSAGE + sum(
        _BYTES_OF_TERM * len(terms) + _BYTES_OF_SCORE * len({*terms}) for terms in terms_N
    ) / len(terms_N)
    # A collection k times as large has about k^0.6 times as many distinct words (Heaps' law).
    n_words = len({*chain(*terms_N)}) * (n_lines / len(terms_N)) ** 0.6
    return int(n_lines * per_passage + n_words * _BYTES_OF_WORD)


def _read_index(folder: Path) -> Bm25Index:
    scores = import_bm25s().BM25.load(folder, mmap=True)
    language = str(read_object(folder / _LANGUAGE_FILE)["language"])
    return Bm25Index(scores, language, term_finder(language))
