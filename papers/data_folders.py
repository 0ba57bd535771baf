"""Makes the folders that recipes read from published files; see get_data.py.

Each function takes sources, by the names of files or members, and fills a new folder.
"""

import gzip
import json
import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow.parquet  # type: ignore[import-untyped]

from cocondenser_jax.errors import UserError
from papers.downloads import Source, opened, read_rows

logger = logging.getLogger(__name__)

Files = Mapping[str, list[Source]]

N_PASSAGES = 8_841_823  # of MS MARCO
N_HELD = 2_000  # dev queries to choose the number of epochs by, of which dev.small has none
SEED = 0  # of what is drawn
# Copies of BookCorpus are lists of sentences, without borders of books: so many make a document.
SENTENCES = 500
_LONGEST_SENTENCE = 1_000  # characters, on average: longer texts are books or chapters
_N_LOOKED_AT = 1_000  # texts, to see which they are
_LEVEL = 1  # of gzip: the fastest


# ---- MS MARCO ----


def write_titled(files: Files, folder: Path) -> None:
    """Writes corpus.tsv, RocketQA's titles and texts joined by their ids, and the splits."""
    (texts,), (titles,) = files["para.txt"], files["para.title.txt"]
    title_of = {row[0]: " ".join(row[1:]) for _, row in read_rows(titles)}  # 2 GB
    n_passages = 0
    with (folder / "corpus.tsv").open("w", encoding="utf-8") as file:
        for number, row in read_rows(texts):
            if len(row) < 2:
                raise UserError(f"{texts}: line {number} is not id and text, separated by a tab")
            # As the toolkit's `join` has it: id, title or nothing, text.
            file.write(f"{row[0]}\t{title_of.get(row[0], '')}\t{' '.join(row[1:])}\n")
            n_passages += 1
    _require_all(texts, n_passages)
    _write_splits(files, folder)


def write_untitled(files: Files, folder: Path) -> None:
    """Copies collection.tsv, and writes the splits."""
    (collection,) = files["collection.tsv"]
    with opened(collection) as file, (folder / "collection.tsv").open("wb") as copy:
        n_passages = 0
        for line in file:
            copy.write(line)
            n_passages += 1
    _require_all(collection, n_passages)
    _write_splits(files, folder)


def _require_all(source: Source, n_passages: int) -> None:
    if n_passages != N_PASSAGES:
        raise UserError(f"{source} holds {n_passages:,} passages: expected {N_PASSAGES:,}")


def _write_splits(files: Files, folder: Path) -> None:
    for name in ("queries.train", "qrels.train", "queries.dev.small", "qrels.dev.small"):
        _write_rows(folder / f"{name}.tsv", _rows(files[f"{name}.tsv"]))
    _write_rows(folder / "queries.dl19.tsv", _rows(files["msmarco-test2019-queries.tsv.gz"]))
    _write_rows(folder / "qrels.dl19.tsv", _trec_rows(files["2019qrels-pass.txt"]))
    queries, qrels = _held_out(files)
    _write_rows(folder / "queries.held.tsv", queries)
    _write_rows(folder / "qrels.held.tsv", qrels)


def _held_out(files: Files) -> tuple[list[list[str]], list[list[str]]]:
    """Draws queries of dev that are not in dev.small, with their judgments."""
    small = {row[0] for row in _rows(files["queries.dev.small.tsv"])}
    judged = [row for row in _rows(files["qrels.dev.tsv"]) if row[0] not in small]
    names = sorted({row[0] for row in judged})
    if len(names) < N_HELD:
        (source,) = files["qrels.dev.tsv"]
        raise UserError(
            f"{source} judges {len(names)} queries beside dev.small's: expected {N_HELD}"
        )
    places = np.random.default_rng(SEED).permutation(len(names))[:N_HELD]
    drawn = {names[place] for place in places}
    queries = [row for row in _rows(files["queries.dev.tsv"]) if row[0] in drawn]
    return queries, [row for row in judged if row[0] in drawn]


def write_documents(files: Files, folder: Path) -> None:
    """Links the documents, and writes the splits under MS MARCO's names."""
    _take(files["msmarco-docs.tsv.gz"][0], folder / "msmarco-docs.tsv.gz")
    for split in ("train", "dev"):
        for kind in ("queries", "qrels"):
            name = f"msmarco-doc{split}-{kind}.tsv"
            _write_rows(folder / name, _rows(files[f"{name}.gz"]))
    dl19 = "msmarco-docdl19"
    _write_rows(folder / f"{dl19}-queries.tsv", _rows(files["msmarco-test2019-queries.tsv.gz"]))
    _write_rows(folder / f"{dl19}-qrels.tsv", _trec_rows(files["2019qrels-docs.txt"]))


def _rows(sources: list[Source]) -> Iterator[list[str]]:
    return (row for _, row in read_rows(sources[0]))


def _trec_rows(sources: list[Source]) -> Iterator[list[str]]:
    """TREC separates the fields of judgments by spaces."""
    return (" ".join(row).split() for row in _rows(sources))


def _write_rows(path: Path, rows: Iterable[list[str]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines("\t".join(row) + "\n" for row in rows)


# ---- DPR ----


def write_dpr(files: Files, folder: Path) -> None:
    """Links or copies DPR's files under their published names, test questions unpacked."""
    for name, (source,) in files.items():
        is_questions = name.endswith((".qa.csv", ".qa.csv.gz"))
        _take(source, folder / (name.removesuffix(".gz") if is_questions else name))


# ---- files as they are ----


def write_packed(files: Files, folder: Path) -> None:
    """Links or copies the files under their names."""
    for name, (source,) in files.items():
        _take(source, folder / name)


def copy_all(files: Files, folder: Path) -> None:
    """Copies the files, unpacked."""
    for name, (source,) in files.items():
        with opened(source) as file, (folder / name).open("wb") as copy:
            shutil.copyfileobj(file, copy)


def _take(source: Source, target: Path) -> None:
    """Links a file with the compression in the target's name; copies any other."""
    if not source.member and (source.path.suffix == ".gz") == (target.suffix == ".gz"):
        target.symlink_to(source.path.resolve())
        return
    with opened(source) as file:
        if target.suffix == ".gz":
            with gzip.open(target, "wb", compresslevel=_LEVEL) as packed:
                shutil.copyfileobj(file, packed)
        else:
            with target.open("wb") as copy:
                shutil.copyfileobj(file, copy)


# ---- text for pre-training ----


def link_texts(files: Files, folder: Path) -> None:
    """Links files of articles into one folder; wikiextractor's get a suffix."""
    ((_, sources),) = files.items()
    for path, _ in sources:
        ending = "" if path.suffix in (".parquet", ".jsonl") else ".jsonl"
        (folder / f"{path.parent.name}-{path.name}{ending}").symlink_to(path.resolve())


def write_books(files: Files, folder: Path) -> None:
    """Writes books.jsonl, a document a line: texts as they are, or sentences joined."""
    ((_, sources),) = files.items()
    texts = (text for source in sources for text in _texts(source))
    first = list(islice(texts, _N_LOOKED_AT))
    if not first:
        raise UserError(f"{sources[0]} holds no text")
    n_joined = 1
    if sum(map(len, first)) / len(first) < _LONGEST_SENTENCE:
        n_joined = SENTENCES
        logger.warning(
            "%s holds sentences, without borders of books: %d make a document",
            sources[0].path.parent,
            SENTENCES,
        )
    with (folder / "books.jsonl").open("w", encoding="utf-8") as file:
        for document in _joined([*first], texts, n_joined):
            file.write(json.dumps({"text": document}, ensure_ascii=False) + "\n")


def _joined(first: list[str], others: Iterator[str], n_joined: int) -> Iterator[str]:
    """Yields documents of `n_joined` texts each."""
    for start in range(0, len(first), n_joined):
        texts = first[start : start + n_joined]
        yield " ".join([*texts, *islice(others, n_joined - len(texts))])
    while texts := list(islice(others, n_joined)):
        yield " ".join(texts)


def _texts(source: Source) -> Iterator[str]:
    """Yields the texts of a Parquet file, of lines of JSON, or of lines of text."""
    if source.path.suffix == ".parquet":
        for batch in pyarrow.parquet.ParquetFile(source.path).iter_batches(columns=["text"]):
            yield from batch["text"].to_pylist()
        return
    is_json = source.path.suffix == ".jsonl"
    for number, row in read_rows(source):
        text = "\t".join(row)
        if not is_json:
            yield text
            continue
        try:
            yield json.loads(text)["text"]
        except (ValueError, LookupError, TypeError) as error:
            raise UserError(f"{source}: line {number} is no JSON object with text") from error
