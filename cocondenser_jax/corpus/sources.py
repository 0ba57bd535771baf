"""Streams documents from installed packages, files, folders and published datasets."""

import functools
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate, chain, groupby
from pathlib import Path
from typing import Any, NamedTuple

from cocondenser_jax.corpus.pydocs import read_docstrings
from cocondenser_jax.errors import UserError, escape_control, first_line, first_three, name_extra
from cocondenser_jax.storage.files import OnBytes, parse_object, read_lines, without_surrogates
from cocondenser_jax.storage.paths import plain_path
from cocondenser_jax.storage.tables import PASSAGE_FILES, plain_name, read_rows

logger = logging.getLogger(__name__)

Columns = Mapping[str, str]  # field of a record -> the name that a source has for it
# What is put before their numbers, the first number, what reads them.
Records = tuple[str, int, Callable[[], Iterable[dict[str, Any]]]]

MAX_DOCUMENT_BYTES = 50_000_000
FIELDS = ("id", "title", "text", "spans")
ACCEPTED_FILES = "a .txt, .jsonl, .tsv (also .gz, .xz, .zst) or .parquet file, a folder of them"
ACCEPTED = (
    f"pydocs, pydocs:numpy,scipy, {ACCEPTED_FILES}, "
    "hf:NAME_OR_FOLDER[:CONFIG[:SPLIT]] or tfds:NAME_OR_FOLDER[:SPLIT]"
)
_FILE_NAME = re.compile(r".*\.((txt|jsonl|tsv)(\.(gz|xz|zst))?|parquet)", re.DOTALL)
# What the dataset libraries raise for a wrong name, a dead network or a missing dependency.
_DATASET_ERRORS = (OSError, ValueError, LookupError, RuntimeError, ImportError)
_RECORDS_PER_PART = 10_000  # of a dataset whose records are read by number
_ROWS_AT_ONCE = 100


class Document(NamedTuple):
    """A text and its name, and its `spans` where the source has already cut it."""

    id: str
    text: str
    spans: tuple[str, ...] | None = None


class Part(NamedTuple):
    """What can be read of a source without the rest."""

    read: Callable[[OnBytes], Iterator[Document]]
    n_bytes: int | None = None  # which `read` reports: of local files, as compressed


def read_documents(source: str, on_bytes: OnBytes = lambda n_bytes: None) -> Iterator[Document]:
    """Streams the documents of a source: see `open_source` and `read_parts`."""
    with open_source(source) as parts:
        yield from read_parts(source, parts, on_bytes)


def read_parts(
    source: str, parts: Iterable[Part], on_bytes: OnBytes = lambda n_bytes: None
) -> Iterator[Document]:
    """Yields the documents of parts of a source, a few at a time in memory.

    Args:
      source: its name, for the error where there are no documents.
      parts: of `open_source`.
      on_bytes: called with numbers of bytes that add up to the parts' `n_bytes`.
    """
    document = None
    for document in chain.from_iterable(part.read(on_bytes) for part in parts):
        yield document
    if document is None:
        raise UserError(f"{source} holds no documents")


@contextmanager
def open_source(source: str, columns: Columns | None = None) -> Iterator[Sequence[Part]]:
    """Yields the parts of a source, always the same in the same order.

    A part is a file, a row group of Parquet, a file of a dataset that is streamed, or as many
    records of any other dataset.

    Args:
      source: `pydocs` or `pydocs:PACKAGE,PACKAGE` (docstrings of installed packages); a path
        that ends in `.txt` (a document per line, or separated by blank lines if it has any),
        `.jsonl` or `.parquet` (records with `text`, or `title` and `text`, or `spans`; the id in
        `_id` or `id`, else the number of line or row) or `.tsv` (see `tables`; URLs are not read),
        each but Parquet also compressed; a folder (see `choose_files`);
        `hf:NAME_OR_FOLDER[:CONFIG[:SPLIT]]`, which is streamed; `tfds:NAME_OR_FOLDER[:SPLIT]`.
      columns: what records call the FIELDS; others than these are then not read.

    Raises:
      UserError: here or while a part is read, if the source is missing, empty or of an unknown
        form, or a document is broken, not UTF-8, without text, or larger than MAX_DOCUMENT_BYTES.
    """
    scheme, _, name = source.partition(":")
    with ExitStack() as stack:
        if scheme == "pydocs":
            _require_records(source, columns)
            packages = [package for package in name.split(",") if package]
            parts = [Part(lambda _: (Document(*d) for d in read_docstrings(packages or None)))]
        elif scheme in ("hf", "tfds"):
            datasets = _huggingface_parts if scheme == "hf" else _tensorflow_parts
            with _named(source):
                parts = [
                    _record_part(source, prefix, first, records, columns)
                    for prefix, first, records in datasets(name, stack)
                ]
        else:
            files = _files(source)
            if Path(source).is_dir():
                logger.info("%s: reading %s", source, first_three([p.name for p in files]))
            # Line numbers are unique within a file only.
            prefixes = [f"{escape_control(path.name)}:" if len(files) > 1 else "" for path in files]
            named = zip(files, prefixes, strict=True)
            parts = [part for file, prefix in named for part in _file_parts(file, prefix, columns)]
        yield parts


def _files(source: str) -> list[Path]:
    path = Path(source)
    if path.is_dir():
        files = choose_files([str(p) for p in path.iterdir() if p.is_file()])
        if not files:
            raise UserError(f"folder {path} holds no .txt, .jsonl, .tsv or .parquet file")
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


def read_file(path: Path, prefix: str) -> Iterator[Document]:
    """Streams the documents of one of ACCEPTED_FILES, or none; prefixes numbers used as ids."""
    for part in _file_parts(path, prefix, None):
        yield from part.read(lambda n_bytes: None)


def _file_parts(path: Path, prefix: str, columns: Columns | None) -> list[Part]:
    kind = Path(plain_name(path)).suffix
    if kind == ".parquet":
        return _parquet_parts(path, prefix, columns)
    if kind != ".jsonl":
        _require_records(str(path), columns)

    def read(on_bytes: OnBytes) -> Iterator[Document]:
        lines = _lines(path, on_bytes)
        if kind == ".txt":
            yield from _text_documents(path, prefix, lines)
        elif kind == ".tsv":
            for where, row in read_rows(path, lines):
                yield _to_document(row, "", where)
        else:
            for number, line in lines:
                if line.strip():
                    where = f"{path}:{number}"
                    record = parse_object(line, where)
                    yield _to_document(record, f"{prefix}{number}", where, columns)

    return [Part(read, path.stat().st_size)]


def _text_documents(
    path: Path, prefix: str, lines: Iterable[tuple[int, str]]
) -> Iterator[Document]:
    """Yields a document per line, or per block of lines if blank lines separate any."""
    has_blocks = _has_blank_lines(path)
    first, size, texts = 0, 0, []
    for number, text in chain(lines, [(0, "")]):
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


def _lines(path: Path, on_bytes: OnBytes = lambda n_bytes: None) -> Iterator[tuple[int, str]]:
    return read_lines(path, max_bytes=MAX_DOCUMENT_BYTES, on_bytes=on_bytes)


def _parquet_parts(path: Path, prefix: str, columns: Columns | None) -> list[Part]:
    import pyarrow.parquet  # type: ignore[import-untyped]  # for this source only

    with _named(str(path)), path.open("rb") as file:
        parquet = pyarrow.parquet.ParquetFile(file)
        groups = [parquet.metadata.row_group(k) for k in range(parquet.num_row_groups)]
        wanted = {"_id", *FIELDS} if columns is None else {*columns.values()}
        found = parquet.schema_arrow.names
        names = [name for name in found if name in wanted]
        if columns is not None and len(names) < len(wanted):
            names = found  # for the error to list
        n_bytes = path.stat().st_size // max(len(groups), 1)

    def rows(group: int) -> Iterator[dict[str, Any]]:
        with path.open("rb") as file:
            parquet = pyarrow.parquet.ParquetFile(file)
            for batch in parquet.iter_batches(_ROWS_AT_ONCE, row_groups=[group], columns=names):
                yield from batch.to_pylist()

    firsts = accumulate((group.num_rows for group in groups), initial=1)
    return [
        _record_part(str(path), prefix, first, functools.partial(rows, k), columns, n_bytes)
        for k, first in zip(range(len(groups)), firsts, strict=False)
    ]


def _record_part(
    source: str,
    prefix: str,
    first: int,
    records: Callable[[], Iterable[dict[str, Any]]],
    columns: Columns | None,
    n_bytes: int | None = None,
) -> Part:
    """Returns a part of records numbered from `first`; the prefix is put before the numbers."""

    def read(on_bytes: OnBytes) -> Iterator[Document]:
        with _named(source):
            for number, record in enumerate(records(), start=first):
                where = f"{source}, record {prefix}{number}"
                yield _to_document(record, f"{prefix}{number}", where, columns)
        on_bytes(n_bytes or 0)

    return Part(read, n_bytes)


@contextmanager
def _named(source: str) -> Iterator[None]:
    """Names the source in what a library raises."""
    try:
        yield
    except _DATASET_ERRORS as error:
        missing = name_extra(error) if isinstance(error, ImportError) else None
        raise missing or UserError(f"{source}: {first_line(error)}") from error


def _to_document(
    record: dict[str, Any], default_id: str, where: str, columns: Columns | None = None
) -> Document:
    if columns is not None:
        if missing := [name for name in columns.values() if name not in record]:
            raise UserError(f"{where} has no {missing[0]!r}: it has {', '.join(record)}")
        record = {field: record[name] for field, name in columns.items()}
    names = (_text(record[key]) for key in ("_id", "id") if record.get(key) is not None)
    name = without_surrogates(str(next(names, default_id)))
    spans = record.get("spans")
    if spans is not None:
        if not isinstance(spans, list) or not all(isinstance(span, str) for span in spans):
            raise UserError(f"{where}: `spans` must be a list of strings")
        cut = tuple(without_surrogates(span) for span in spans)
        document = Document(name, "\n".join(cut), cut)
    else:
        text, title = _text(record.get("text", 0)), _text(record.get("title"))
        if not isinstance(text, str):
            raise UserError(f"{where} has no `text` (a string) and no `spans` (a list of strings)")
        text, title = text.strip(), title.strip() if isinstance(title, str) else ""
        if not text.startswith(title):
            text = f"{title}\n{text}"
        document = Document(name, without_surrogates(text))
    _check_size(len(document.text), where)
    return document


def _text(value: Any) -> Any:
    """Decodes text that tensorflow-datasets gives as bytes; what is null is empty."""
    if value is None:
        return ""
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value


def _check_size(n_bytes: int, where: str) -> None:
    if n_bytes > MAX_DOCUMENT_BYTES:
        limit = MAX_DOCUMENT_BYTES // 1_000_000
        raise UserError(f"{where}: a document is larger than {limit} MB; split it first")


def _require_records(source: str, columns: Columns | None) -> None:
    if columns is not None:
        raise UserError(f"{source} has no columns to name: .jsonl, .parquet, hf: and tfds: have")


def _huggingface_parts(name: str, stack: ExitStack) -> list[Records]:
    parts = name.split(":")
    heads = [":".join(parts[:n]) for n in range(len(parts), 0, -1)]  # a folder's may hold colons
    path = next(filter(os.path.isdir, heads), parts[0])
    config, split = (*name[len(path) + 1 :].split(":"), "")[:2]
    if not path:
        raise UserError("hf: expected a dataset's name or folder, as in hf:ag_news::train")
    split = split or "train"
    import datasets  # slow to import, and needed for this source only

    found = str(stack.enter_context(plain_path(Path(path)))) if os.path.isdir(path) else path
    if any(Path(found, file).exists() for file in ("state.json", "dataset_dict.json")):
        saved = datasets.load_from_disk(found)
        return _slices(saved[split] if isinstance(saved, datasets.DatasetDict) else saved)
    # Where a folder's name has a `[`, datasets (5.2.0) finds nothing in it.
    data = datasets.load_dataset(found, config or None, split=split, streaming=True)
    n = data.num_shards
    return [(f"{k}:" if n > 1 else "", 1, functools.partial(data.shard, n, k)) for k in range(n)]


def _tensorflow_parts(name: str, stack: ExitStack) -> list[Records]:
    # "wikipedia/20230601.en:1.0.0" names a version, "lm1b:test" a split.
    parts = re.fullmatch(r"(.+?)(?::([^:/\d][^:/]*))?", name, re.DOTALL)
    if parts is None:
        raise UserError("tfds: expected a dataset's name, as in tfds:lm1b:train")
    path, split = (name, "train") if os.path.isdir(name) else parts.groups("train")
    import tensorflow_datasets as tfds  # slow to import, and needed for this source only

    if os.path.isdir(path):
        plain = stack.enter_context(plain_path(Path(path)))
        return _slices(tfds.builder_from_directory(plain).as_data_source(split=split))
    return _slices(tfds.data_source(path, split=split))


def _slices(data: Any) -> list[Records]:
    numbers = range(len(data))
    slices = [numbers[k : k + _RECORDS_PER_PART] for k in numbers[::_RECORDS_PER_PART]]
    return [("", k[0] + 1, functools.partial(map, data.__getitem__, k)) for k in slices]
