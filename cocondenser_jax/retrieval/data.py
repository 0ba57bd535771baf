"""Retrieval data in the BEIR layout, and training rows made of it.

A data folder holds `corpus.jsonl` (`_id`, `title`, `text`), `queries.jsonl` (`_id`, `text`),
either of them plain or compressed (.gz, .xz, .zst), and `qrels/<split>.tsv`.
"""

import gzip
import io
import json
import logging
import lzma
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import datasets
import numpy as np
import zstandard

from cocondenser_jax.errors import UserError
from cocondenser_jax.evaluation import trec

log = logging.getLogger(__name__)

_DAMAGED = (OSError, EOFError, lzma.LZMAError, zlib.error, zstandard.ZstdError)


class Passage(NamedTuple):
    """A unit of retrieval."""

    id: str
    title: str
    text: str


def passage_text(passage: Passage) -> str:
    """Returns what encoders and BM25 read of a passage: the title, a space, the text."""
    return f"{passage.title} {passage.text}" if passage.title else passage.text


def corpus_file(source: Path) -> Path:
    """Returns the file of passages in a BEIR folder; a file is returned as it is."""
    return _find_jsonl(source, "corpus")


def read_corpus(source: Path) -> Iterator[Passage]:
    """Yields the passages of a BEIR folder, or of a jsonl file, in their order.

    Raises:
      UserError: with file and line, for a missing file, broken JSON, bytes that are not UTF-8,
        a missing or wrong field, or an id that occurs twice.
    """
    for record in _read_records(corpus_file(source), required=("_id", "text")):
        yield Passage(record["_id"], record.get("title") or "", record["text"])


def read_queries(source: Path) -> dict[str, str]:
    """Reads the queries of a BEIR folder, or of a jsonl file: id → text.

    Raises:
      UserError: as `read_corpus`.
    """
    path = _find_jsonl(source, "queries")
    return {r["_id"]: r["text"] for r in _read_records(path, required=("_id", "text"))}


def read_split(folder: Path, split: str) -> tuple[dict[str, str], trec.Qrels]:
    """Reads the judgments of a split, and the queries they judge.

    Raises:
      UserError: as `read_queries`, or for judgments of unknown queries.
    """
    path = folder / "qrels" / f"{split}.tsv"
    qrels = trec.read_qrels(path)
    queries = read_queries(folder)
    _require_known(qrels, queries, "queries", path)
    return {query: queries[query] for query in qrels}, qrels


def training_pairs(qrels: trec.Qrels) -> datasets.Dataset:
    """Lists every relevant judgment as one row (`query_id`, `positive_id`).

    Raises:
      UserError: if there is none.
    """
    rows = [
        (query, passage)
        for query, grades in qrels.items()
        for passage, grade in grades.items()
        if grade > 0
    ]
    without = len(qrels) - len({query for query, _ in rows})
    if without:
        log.warning("%d of %d queries have no positive: not trained on", without, len(qrels))
    if not rows:
        raise UserError("no judgment has a score above 0: there is no positive to train on")
    queries, passages = zip(*rows, strict=True)
    return datasets.Dataset.from_dict({"query_id": list(queries), "positive_id": list(passages)})


def read_candidates(
    run_file: Path, qrels: trec.Qrels, passages: Container[str], depth: int
) -> dict[str, list[str]]:
    """Reads the passages from which each query's negatives are drawn.

    Args:
      run_file: a TREC run, of BM25 for instance.
      qrels: the judgments of the queries to train on.
      passages: the ids of the corpus.
      depth: results of the run, per query, to take.

    Returns:
      query → the passages among its best `depth` results that are not judged relevant; an empty
      list where the run has none.

    Raises:
      UserError: for a run that cannot be read, or that names unknown passages.
    """
    run = trec.read_run(run_file)
    candidates = {
        query: [
            passage
            for passage, _ in trec.ranked(run.get(query, {}))[:depth]
            if grades.get(passage, 0) <= 0
        ]
        for query, grades in qrels.items()
    }
    require_known_passages(candidates, passages, run_file)
    return candidates


def fill_rows(
    rows: Mapping[str, Sequence[str]],
    *,
    queries: Mapping[str, str],
    passages: Mapping[str, str],
    candidates: Mapping[str, Sequence[str]],
    n_negatives: int,
    seed: int,
    epoch: int,
) -> dict[str, list[str]]:
    """Turns rows of ids into rows of texts and draws their negatives: a dataset's transform.

    A row's negatives depend on (seed, epoch, row) only, not on batch, order or worker. Queries
    with fewer candidates than asked for have some twice; those with none get random passages.

    Args:
      rows: columns `query_id` and `positive_id`.
      queries: id → text.
      passages: id → text as the encoder reads it.
      candidates: query id → ids of passages to draw from. Not read if `n_negatives` is 0.
      n_negatives: negatives per row.
      seed: of the draw.
      epoch: of the draw.

    Returns:
      Columns `query`, `positive`, `negative_1` … `negative_n`.
    """
    columns: dict[str, list[str]] = {
        "query": [queries[query] for query in rows["query_id"]],
        "positive": [passages[passage] for passage in rows["positive_id"]],
    }
    if n_negatives:
        drawn = [
            _draw(
                candidates[query] or list(passages), n_negatives, f"{query} {passage}", seed, epoch
            )
            for query, passage in zip(rows["query_id"], rows["positive_id"], strict=True)
        ]
        for i, column in enumerate(zip(*drawn, strict=True), start=1):
            columns[f"negative_{i}"] = [passages[passage] for passage in column]
    return columns


def require_known_passages(
    ids: Mapping[str, Iterable[str]], passages: Container[str], source: Path
) -> None:
    """Raises a UserError if candidates or judgments name passages that the corpus does not have."""
    named = {passage: None for results in ids.values() for passage in results}
    _require_known(named, passages, "passages", source)


def _draw(candidates: Sequence[str], n: int, row: str, seed: int, epoch: int) -> list[str]:
    rng = np.random.default_rng((seed, epoch, zlib.crc32(row.encode())))
    chosen = rng.choice(len(candidates), n, replace=len(candidates) < n)
    return [candidates[i] for i in chosen]


def _require_known(ids: Mapping[str, Any], known: Container[str], what: str, source: Path) -> None:
    unknown = [name for name in ids if name not in known]
    if unknown:
        raise UserError(
            f"{source} names {len(unknown)} {what} that the data does not have: "
            f"{', '.join(unknown[:3])}{', ...' if len(unknown) > 3 else ''}"
        )


def _find_jsonl(source: Path, stem: str) -> Path:
    if source.is_file():
        return source
    for suffix in ("", ".gz", ".xz", ".zst"):
        path = source / f"{stem}.jsonl{suffix}"
        if path.is_file():
            return path
    raise UserError(f"{source} holds no {stem}.jsonl (or .jsonl.gz, .jsonl.xz, .jsonl.zst)")


def _read_records(path: Path, required: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields the objects of a jsonl file whose ids are distinct."""
    seen: set[str] = set()
    number = 0
    try:
        with _open_binary(path) as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    record = _parse_record(line, required, f"{path}:{number}")
                    if record["_id"] in seen:
                        raise UserError(f"{path}:{number}: the id {record['_id']!r} occurs twice")
                    seen.add(record["_id"])
                    yield record
    except _DAMAGED as error:
        raise UserError(f"cannot read {path} after line {number}: {error}") from error
    if not seen:
        raise UserError(f"{path} is empty")


def _open_binary(path: Path) -> IO[bytes]:
    match path.suffix:
        case ".gz":
            return cast(IO[bytes], gzip.open(path))
        case ".xz":
            return lzma.open(path)
        case ".zst":
            return io.BufferedReader(cast(io.RawIOBase, zstandard.open(path, "rb")))
        case _:
            return path.open("rb")


def _parse_record(line: bytes, required: Sequence[str], where: str) -> dict[str, Any]:
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        raise UserError(f"{where}: not UTF-8") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not valid JSON: {error.msg}") from None
    if not isinstance(record, dict):
        raise UserError(f"{where}: expected a JSON object")
    for field in required:
        if field not in record:
            raise UserError(f"{where}: the field {field!r} is missing")
    for field in (*required, "title"):
        if not isinstance(record.get(field) or "", str):
            raise UserError(f"{where}: the field {field!r} must be a string")
    return record
