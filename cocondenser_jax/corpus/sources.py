"""Streams documents from installed packages, files, folders and published datasets."""

import json
import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple

from cocondenser_jax.corpus.pydocs import read_docstrings
from cocondenser_jax.errors import UserError, first_line, first_three, visible
from cocondenser_jax.files import OnBytes, read_lines, without_surrogates
from cocondenser_jax.paths import plain_path
from cocondenser_jax.tables import PASSAGE_FILES, plain_name, read_rows

logger = logging.getLogger(__name__)

MAX_DOCUMENT_BYTES = 50_000_000
ACCEPTED_FILES = "a .txt, .jsonl or .tsv file (also .gz, .xz, .zst), a folder of them"
ACCEPTED = (
    f"pydocs, pydocs:numpy,scipy, {ACCEPTED_FILES}, "
    "hf:NAME_OR_FOLDER[:CONFIG[:SPLIT]] or tfds:NAME_OR_FOLDER[:SPLIT]"
)
_FILE_NAME = re.compile(r".*\.(txt|jsonl|tsv)(\.(gz|xz|zst))?", re.DOTALL)
# What the dataset libraries raise for a wrong name, a dead network or a missing dependency.
_DATASET_ERRORS = (OSError, ValueError, LookupError, RuntimeError, ImportError)


class Document(NamedTuple):
    """A text and its name, and its `spans` where the source has already cut it."""

    id: str
    text: str
    spans: tuple[str, ...] | None = None


def read_documents(source: str, on_bytes: OnBytes = lambda n_bytes: None) -> Iterator[Document]:
    """Streams the documents of a source, always in the same order.

    Args:
      source: `pydocs` or `pydocs:PACKAGE,PACKAGE` (docstrings of installed packages); a path
        that ends in `.txt` (a document per line, or separated by blank lines if it has any),
        `.jsonl` (objects with `text`, or `title` and `text`, or `spans`; the id in `_id` or
        `id`, else the line number) or `.tsv` (see `tables`; URLs are not read), each also
        compressed; a folder (see `choose_files`); `hf:NAME_OR_FOLDER[:CONFIG[:SPLIT]]`;
        `tfds:NAME_OR_FOLDER[:SPLIT]`.
      on_bytes: called with numbers of bytes of local files that add up to `source_bytes`.

    Yields:
      One document at a time; at most one is in memory.

    Raises:
      UserError: if the source is missing, empty or of an unknown form, or a document is broken,
        not UTF-8, without text, or larger than MAX_DOCUMENT_BYTES.
    """
    document = None
    for document in _open_source(source, on_bytes):
        yield document
    if document is None:
        raise UserError(f"{source} holds no documents")


def source_bytes(source: str) -> int | None:
    """Returns the size of a source of local files, as compressed; None for others."""
    if _scheme(source) is not None:
        return None
    return sum(path.stat().st_size for path in _files(source))


def _scheme(source: str) -> str | None:
    name = source.partition(":")[0]
    return name if name in ("pydocs", "hf", "tfds") else None


def _open_source(source: str, on_bytes: OnBytes) -> Iterator[Document]:
    name = source.partition(":")[2]
    match _scheme(source):
        case "pydocs":
            packages = [package for package in name.split(",") if package]
            return (Document(*docstring) for docstring in read_docstrings(packages or None))
        case "hf":
            return _records(source, _huggingface_records(name))
        case "tfds":
            return _records(source, _tensorflow_records(name))
        case _:
            files = _files(source)
            if Path(source).is_dir():
                logger.info("%s: reading %s", source, first_three([p.name for p in files]))
            return chain.from_iterable(
                # Line numbers are unique within a file only.
                read_file(path, f"{visible(path.name)}:" if len(files) > 1 else "", on_bytes)
                for path in files
            )


def _files(source: str) -> list[Path]:
    path = Path(source)
    if path.is_dir():
        files = choose_files([str(p) for p in path.iterdir() if p.is_file()])
        if not files:
            raise UserError(f"folder {path} holds no .txt, .jsonl or .tsv file")
        return [Path(name) for name in files]
    if _FILE_NAME.fullmatch(path.name) is None:
        raise UserError(f"unknown source {source!r}: expected {ACCEPTED}")
    if not path.is_file():
        raise UserError(f"no file {path}")
    return [path]


def choose_files(paths: Iterable[str]) -> list[str]:
    """Returns the files of a folder to read, in their order.

    Of a data set for retrieval, that is its file of passages: its queries are no documents. Of any
    other folder, all ACCEPTED_FILES.
    """
    found = sorted(path for path in paths if _FILE_NAME.fullmatch(path.rpartition("/")[2]))
    # From last to first: a plain file goes before its archive.
    by_name = {plain_name(Path(path)): path for path in reversed(found)}
    return [by_name[name] for name in PASSAGE_FILES if name in by_name][:1] or found


def read_file(
    path: Path, prefix: str, on_bytes: OnBytes = lambda n_bytes: None
) -> Iterator[Document]:
    """Streams the documents of one of ACCEPTED_FILES, as `read_documents`; there may be none.

    The prefix is put before line numbers that serve as ids.
    """
    if plain_name(path).endswith(".tsv"):
        rows = read_rows(path, _lines(path, on_bytes))
        return (_to_document(row, "", where) for where, row in rows)
    read = _json_documents if ".jsonl" in path.suffixes else _text_documents
    return read(path, prefix, on_bytes)


def _text_documents(path: Path, prefix: str, on_bytes: OnBytes) -> Iterator[Document]:
    """Yields a document per line, or per block of lines if blank lines separate any."""
    has_blocks = _has_blank_lines(path)
    first, size, texts = 0, 0, []
    for number, text in chain(_lines(path, on_bytes), [(0, "")]):
        has_text = bool(text.strip())
        if has_text:
            first = first or number
            size += len(text.encode())
            _check_size(size, f"{path}:{first}")
            texts.append(text)
        if texts and not (has_text and has_blocks):
            yield Document(f"{prefix}{first}", "\n".join(texts))
            first, size, texts = 0, 0, []


def _has_blank_lines(path: Path) -> bool:
    """Returns whether a blank line lies between two lines with text."""
    groups = groupby(_lines(path), lambda line: bool(line[1].strip()))
    blocks = (True for is_text, _ in groups if is_text)
    return next(blocks, False) and next(blocks, False)


def _json_documents(path: Path, prefix: str, on_bytes: OnBytes) -> Iterator[Document]:
    for number, text in _lines(path, on_bytes):
        if not text.strip():
            continue
        where = f"{path}:{number}"
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where} is not valid JSON: {error}") from error
        if not isinstance(record, dict):
            raise UserError(f"{where}: expected a JSON object with `text` or `spans`")
        yield _to_document(record, f"{prefix}{number}", where)


def _lines(path: Path, on_bytes: OnBytes = lambda n_bytes: None) -> Iterator[tuple[int, str]]:
    return read_lines(path, max_bytes=MAX_DOCUMENT_BYTES, on_bytes=on_bytes)


def _records(source: str, records: Iterable[dict[str, Any]]) -> Iterator[Document]:
    try:
        for number, record in enumerate(records, start=1):
            yield _to_document(record, str(number), f"{source}, record {number}")
    except _DATASET_ERRORS as error:
        raise UserError(f"{source}: {first_line(error)}") from error


def _to_document(record: dict[str, Any], default_id: str, where: str) -> Document:
    names = (_text(record[key]) for key in ("_id", "id") if record.get(key) is not None)
    name = without_surrogates(str(next(names, default_id)))
    spans = record.get("spans")
    if spans is not None:
        if not isinstance(spans, list) or not all(isinstance(span, str) for span in spans):
            raise UserError(f"{where}: `spans` must be a list of strings")
        cut = tuple(without_surrogates(span) for span in spans)
        document = Document(name, "\n".join(cut), cut)
    else:
        text, title = _text(record.get("text")), _text(record.get("title"))
        if not isinstance(text, str):
            raise UserError(f"{where} has no `text` (a string) and no `spans` (a list of strings)")
        text, title = text.strip(), title.strip() if isinstance(title, str) else ""
        if not text.startswith(title):
            text = f"{title}\n{text}"
        document = Document(name, without_surrogates(text))
    _check_size(len(document.text), where)
    return document


def _text(value: Any) -> Any:
    """Decodes text that tensorflow-datasets gives as bytes."""
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value


def _check_size(n_bytes: int, where: str) -> None:
    if n_bytes > MAX_DOCUMENT_BYTES:
        limit = MAX_DOCUMENT_BYTES // 1_000_000
        raise UserError(f"{where}: a document is larger than {limit} MB; split it first")


def _huggingface_records(name: str) -> Iterator[dict[str, Any]]:
    parts = name.split(":")
    heads = [":".join(parts[:n]) for n in range(len(parts), 0, -1)]  # a folder's may hold colons
    path = next(filter(os.path.isdir, heads), parts[0])
    config, split = (*name[len(path) + 1 :].split(":"), "")[:2]
    if not path:
        raise UserError("hf: expected a dataset's name or folder, as in hf:ag_news::train")
    split = split or "train"
    import datasets  # slow to import, and needed for this source only

    with plain_path(Path(path)) if os.path.isdir(path) else nullcontext(path) as plain:
        found = str(plain)
        if any(Path(found, file).exists() for file in ("state.json", "dataset_dict.json")):
            saved = datasets.load_from_disk(found)
            yield from saved[split] if isinstance(saved, datasets.DatasetDict) else saved
        else:  # where a folder's name has a `[`, datasets (5.2.0) finds nothing in it
            yield from datasets.load_dataset(found, config or None, split=split, streaming=True)


def _tensorflow_records(name: str) -> Iterator[dict[str, Any]]:
    # "wikipedia/20230601.en:1.0.0" names a version, "lm1b:test" a split.
    parts = re.fullmatch(r"(.+?)(?::([^:/\d][^:/]*))?", name, re.DOTALL)
    if parts is None:
        raise UserError("tfds: expected a dataset's name, as in tfds:lm1b:train")
    path, split = (name, None) if os.path.isdir(name) else parts.groups()
    split = split or "train"
    import tensorflow_datasets as tfds  # slow to import, and needed for this source only

    if os.path.isdir(path):
        with plain_path(Path(path)) as plain:
            yield from tfds.builder_from_directory(plain).as_data_source(split=split)
    else:
        yield from tfds.data_source(path, split=split)
