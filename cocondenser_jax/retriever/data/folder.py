"""Reads a data folder: passages, queries, judgments, and candidates for negatives.

Each file is found by its own name, so a folder may mix the layouts of docs/data.md.
"""

import hashlib
import logging
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sized
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from cocondenser_jax.corpus.folders import find_place
from cocondenser_jax.corpus.sources import hashed, require_source
from cocondenser_jax.errors import UserError, first_three, log_once
from cocondenser_jax.files.tables import (
    DATA_FILES,
    matches_data_file,
    name_columns,
    plain_name,
)
from cocondenser_jax.files.whole import without_surrogates
from cocondenser_jax.representation import join_title
from cocondenser_jax.retriever.data import layouts
from cocondenser_jax.retriever.data.identical_ids import require_other_answers
from cocondenser_jax.retriever.data.layouts import Passage
from cocondenser_jax.retriever.data.trec import Qrels, first_passages, read_qrels, read_results

logger = logging.getLogger(__name__)


class Asked(NamedTuple):
    """Queries and their judgments."""

    queries: dict[str, str]  # id → text
    qrels: Qrels  # of the split; {} without a split


def passage_text(passage: Passage, separator: str = " ") -> str:
    """Joins a passage's title and text as encoders and (with a space) BM25 read it."""
    return join_title(passage.title, passage.text, separator)


def require_query(text: str) -> None:
    """Raises a UserError for a query that is blank or not UTF-8."""
    if not text.strip() or without_surrogates(text) != text:
        raise UserError("the query is empty or not UTF-8: expected some words")


def corpus_file(source: Path) -> Path:
    """Returns the file of passages in a data folder, or `source` itself if it is a file."""
    return source if source.is_file() else _find(source, "passages")[0]


def corpus_source(source: str | Path) -> str | Path:
    """Returns what `read_corpus` opens: a data folder's file of passages, or `source`."""
    folder, pattern, columns = find_place(source)
    if not pattern and folder.is_dir() and any(_matches(folder, kind) for kind in DATA_FILES):
        file = corpus_file(folder)
        return name_columns(str(file), ",".join(columns)) if columns else file
    require_source(str(source))
    return source


def judgments_file(folder: Path, split: str) -> Path:
    """Returns the file of a split's judgments."""
    return _find(folder, "judgments", split)[0]


def queries_file(folder: Path, split: str) -> Path:
    """Returns the file of a split's queries."""
    return _find(folder, "queries", split)[0]


def split_files(folder: Path, split: str) -> dict[str, Path]:
    """Returns the files of `read_corpus` and `read_split`: corpus, judgments and queries."""
    return {
        "corpus": corpus_file(folder),
        "judgments": judgments_file(folder, split),
        "queries": queries_file(folder, split),
    }


def is_unjudged(data: Path) -> bool:
    """Returns whether `data` is a file of queries, or a folder with queries but no judgments."""
    return data.is_file() or (bool(_matches(data, "queries")) and not _matches(data, "judgments"))


def searched_passages(data: Path, corpus: str | Path | None) -> str | Path:
    """Returns the source of the passages to search: `corpus`, or by default the data folder.

    Raises:
      UserError: without a corpus, if `data` is a file of queries.
    """
    if corpus is not None:
        return corpus
    if data.is_file():
        raise UserError(f"{data} is a file of queries: name the passages by --corpus")
    return data


class Survey(NamedTuple):
    """Counts and hash of a source's passages."""

    n_passages: int
    sha256: str  # of ids, titles and texts, whatever the file format
    n_wanted: int  # how many of the wanted ids exist


def survey_passages(source: str | Path, wanted: Collection[str] = ()) -> Survey:
    """Reads the passages of a source once, and counts those that judgments want.

    Args:
      source: see `read_corpus`.
      wanted: their ids; without any, passages need no ids.
    """
    digest = hashlib.sha256()
    n_passages = n_wanted = 0
    for passage in hashed(read_corpus(source, judged=bool(wanted)), digest):
        n_passages += 1
        n_wanted += passage.id in wanted
    return Survey(n_passages, digest.hexdigest(), n_wanted)


def read_corpus(source: str | Path, *, judged: bool = False) -> Iterator[Passage]:
    """Yields the passages of a data folder, or of any source (see `layouts.read_passages`).

    Where they are judged, passages must have ids, since judgments refer to them: with judgments
    beside them, or with `judged`, if those are elsewhere.
    """
    found = corpus_source(source)
    path = find_place(found).path
    judged = judged or (path.is_file() and bool(_matches(path.parent, "judgments")))
    return layouts.read_passages(found, numbered=not judged)


def read_queries(data: Path) -> dict[str, str]:
    """Reads the queries (id → text) of a data folder, or of a file.

    Raises:
      UserError: also if two files of the folder have other queries with the same id.
    """
    if data.is_file():
        return layouts.read_query_file(data)
    queries: dict[str, str] = {}
    for path in _find(data, "queries"):  # some of MS MARCO's files repeat others' queries
        for name, text in layouts.read_query_file(path).items():
            if queries.setdefault(name, text) != text:
                raise UserError(
                    f"{path}: the id {name} has another query in another file of {data}: name one"
                    " of the files, or a split"
                )
    return queries


def read_split(folder: Path, split: str) -> tuple[dict[str, str], Qrels]:
    """Reads the queries and judgments of a split."""
    path = judgments_file(folder, split)
    qrels = read_qrels(path)
    queries = layouts.read_query_file(queries_file(folder, split))
    require_known(qrels, queries, "queries", path)
    return {query: queries[query] for query in qrels}, qrels


def _require_other_judgments(data: Path) -> None:
    """Calls `require_other_answers` for each split of a data folder."""
    if data.is_file():
        return
    try:
        files = _find(data, "judgments")
    except UserError:  # there are no judgments
        return
    for file in files:
        require_other_answers(read_qrels(file))


def read_asked(data: Path, split: str | None, *, ignore_identical_ids: bool = False) -> Asked:
    """Reads queries, see `read_queries`, and the judgments of a split.

    Queries without text are kept, since judgments may name them, and counted in a warning.

    Raises:
      UserError: also if `ignore_identical_ids` would drop passages that are judged relevant in the
        split or, without a split, in any split.
    """
    if split is None:
        asked = Asked(read_queries(data), {})
        if ignore_identical_ids:
            _require_other_judgments(data)
    else:
        asked = Asked(*read_split(data, split))
        if ignore_identical_ids:
            require_other_answers(asked.qrels)
    if n_empty := sum(not text.strip() for text in asked.queries.values()):
        log_once(logger, f"{data}: {n_empty:,} queries have no text: their rankings mean nothing")
    return asked


def relevant_passages(qrels: Qrels) -> set[str]:
    """Returns the passages that are judged relevant to any query."""
    return {passage for grades in qrels.values() for passage in grades if grades[passage] > 0}


def warn_of_missing(n_found: int, relevant: Sized, split: str | None) -> None:
    """Warns if relevant passages are missing from the passages that are searched."""
    if n_found < len(relevant):
        logger.warning(
            "%d of the %d relevant passages in the judgments of %s are not in the corpus",
            len(relevant) - n_found,
            len(relevant),
            split,
        )


def with_positives(qrels: Qrels) -> Qrels:
    """Keeps the relevant passages, of the queries that have any.

    Raises:
      UserError: if no query has a relevant passage.
    """
    relevant = {q: {p: grade for p, grade in qrels[q].items() if grade > 0} for q in qrels}
    positives = {query: passages for query, passages in relevant.items() if passages}
    if n_without := len(qrels) - len(positives):
        logger.warning("%d of %d queries have no positive: not trained on", n_without, len(qrels))
    if not positives:
        raise UserError("no judgment has a score above 0: there is no positive to train on")
    return positives


def best_by_query(
    run: Path, queries: Collection[str], depth: int
) -> Iterator[tuple[str, list[str]]]:
    """Yields each query with its first `depth` passages in a TREC run.

    Queries come in the run's order, followed by those without results, with [].

    Raises:
      UserError: if the run has no passage for any of the queries.
    """
    found = set()
    for query, scores in read_results(run):
        if query in queries:
            found.add(query)
            yield query, first_passages(scores, depth)
    missing = [query for query in queries if query not in found]
    if not found:
        raise UserError(f"{run} has no passage for any of the {len(queries)} queries of the split")
    if missing:
        logger.warning("%s has no passage for %d of %d queries", run, len(missing), len(queries))
    for query in missing:
        yield query, []


def candidates_by_query(run: Path, qrels: Qrels, depth: int) -> Iterator[tuple[str, list[str]]]:
    """Yields each query with its first `depth` passages in a run, without the relevant ones."""
    for query, names in best_by_query(run, qrels, depth):
        grades = qrels[query]
        yield query, [p for p in names if grades.get(p, 0) <= 0]


def read_candidates(
    run: Path, qrels: Qrels, passages: Container[str], depth: int
) -> dict[str, list[str]]:
    """Reads `candidates_by_query` into memory.

    Raises:
      UserError: also if `passages`, those of the corpus, lack a candidate.
    """
    found = dict(candidates_by_query(run, qrels, depth))
    require_known(chain.from_iterable(found.values()), passages, "passages", run)
    return {query: found[query] for query in qrels}


def read_texts(corpus: str | Path) -> Iterator[tuple[str, str]]:
    """Yields the id and the text, see `passage_text`, of each passage of `read_corpus`."""
    return ((passage.id, passage_text(passage)) for passage in read_corpus(corpus))


def read_named(
    corpus: str | Path, *named: tuple[Path, Mapping[str, Iterable[str]]], judged: bool = False
) -> dict[str, Passage]:
    """Reads the passages that runs or judgments name, by id; keeps no others in memory.

    Args:
      corpus: see `read_corpus`.
      named: a file, for messages, and its passages by query.
      judged: see `read_corpus`.

    Raises:
      UserError: also if the corpus lacks one of them.
    """
    names: set[str] = set()
    for _, ids in named:
        names.update(*ids.values())
    found = read_corpus(corpus, judged=judged)
    passages = {passage.id: passage for passage in found if passage.id in names}
    for file, ids in named:
        require_known(chain.from_iterable(ids.values()), passages, "passages", file)
    return passages


def require_known(ids: Iterable[str], known: Container[str], what: str, file: Path) -> None:
    """Raises a UserError if a file names unknown ids; `what` is "queries" or "passages"."""
    unknown = list(dict.fromkeys(name for name in ids if name not in known))
    if unknown:
        raise UserError(
            f"{file} names {len(unknown)} {what} that the data does not have: "
            f"{first_three(unknown)}"
        )


def _find(folder: Path, kind: str, split: str | None = None) -> list[Path]:
    """Returns the files that match the first matching name, of one split or of all.

    Raises:
      UserError: if there is none, naming the files that exist or are expected.
    """
    if not folder.is_dir():
        wrong = "is not a folder" if folder.exists() else "does not exist"
        raise UserError(f"{folder} {wrong}: expected a folder of passages, queries and judgments")
    if files := _matches(folder, kind, split):
        return files
    lacks = kind if split is None else f"{kind} of split {split!r}"
    if split is not None and (others := _matches(folder, kind)):
        there = ", ".join(path.relative_to(folder).as_posix() for path in others)
        raise UserError(f"{folder} has no {lacks}: it has {there}")
    names = " or ".join(DATA_FILES[kind]).replace("SPLIT", split or "SPLIT")
    raise UserError(f"{folder} has no {lacks}: expected {names} (plain, .gz, .xz or .zst)")


def _matches(folder: Path, kind: str, split: str | None = None) -> list[Path]:
    """Returns the files of `_find`; [] if there are none."""
    paths = sorted(p for p in (*folder.glob("*"), *folder.glob("qrels/*")) if p.is_file())
    for name in DATA_FILES[kind]:
        files: dict[Path, Path] = {}
        for path in paths:
            if matches_data_file(path.relative_to(folder), name, split):
                # A plain file takes precedence over its compressed copy.
                files.setdefault(path.with_name(plain_name(path)), path)
        if files:
            return list(files.values())
    return []
