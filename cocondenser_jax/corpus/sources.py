"""Streams documents from installed packages, files, folders and published datasets."""

import functools
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from cocondenser_jax.corpus.pydocs import read_docstrings
from cocondenser_jax.errors import (
    UserError,
    escape_control,
    first_three,
    name_extra,
    whole_message,
)
from cocondenser_jax.storage.files import parse_object, read_lines, without_surrogates
from cocondenser_jax.storage.tables import (
    PASSAGE_FILES,
    plain_name,
    plain_suffix,
    read_rows,
    require_headers_alike,
)

logger = logging.getLogger(__name__)

MAX_DOCUMENT_BYTES = 50_000_000
_FIELDS = ("_id", "id", "title", "text", "spans")
ACCEPTED_FILES = "a .txt, .jsonl, .tsv (also .gz, .xz, .zst) or .parquet file, a folder of them"
ACCEPTED = (
    f"pydocs, pydocs:numpy,scipy, {ACCEPTED_FILES}, "
    "hf:NAME_OR_FOLDER[:CONFIG[:SPLIT]] or tfds:NAME_OR_FOLDER[:SPLIT]"
)
_FILE_NAME = re.compile(r".*\.((txt|jsonl|tsv)(\.(gz|xz|zst))?|parquet)", re.DOTALL)
# Of a dataset in a folder, these are read without its library, which would read all columns and
# refuse files in which one that is not needed has another type.
_OWN_SUFFIXES = (".jsonl", ".parquet")
_RECORDS_PER_PIECE = 10_000  # of a dataset whose records are read by number
_ROWS_AT_ONCE = 100


class Document(NamedTuple):
    """A text and its name; `spans` where the source has already cut it."""

    id: str
    text: str
    spans: tuple[str, ...] | None = None


# Reads a piece of a source, without the rest.
Piece = Callable[[], Iterator[Document]]


def read_documents(source: str) -> Iterator[Document]:
    """Streams the documents of a source (see `open_source`)."""
    return read_pieces(source, open_source(source))


def read_pieces(source: str, pieces: Sequence[Piece]) -> Iterator[Document]:
    """Streams the documents of pieces of a source; raises a UserError if there are none."""
    document = None
    for piece in tqdm(pieces, "pieces", leave=False, delay=1, disable=len(pieces) == 1):
        for document in piece():
            yield document
    if document is None:
        raise UserError(f"{source} holds no documents")


def open_source(source: str) -> list[Piece]:
    """Lists the pieces of a source (files, row groups, runs of records), always in the same order.

    Args:
      source: `pydocs` or `pydocs:PACKAGE,PACKAGE` (docstrings of installed packages); a path
        that ends in `.txt` (a document per line, or separated by blank lines if it has any),
        `.jsonl` or `.parquet` (records with `text`, or `title` and `text`, or `spans`; the id in
        `_id` or `id`, else the number of line or row) or `.tsv` (see `tables`; URLs are not read),
        each but Parquet also compressed; a folder (see `choose_files`);
        `hf:NAME_OR_FOLDER[:CONFIG[:SPLIT]]`, which is streamed; `tfds:NAME_OR_FOLDER[:SPLIT]`.
    """
    scheme, _, name = source.partition(":")
    if scheme == "pydocs":
        packages = [package for package in name.split(",") if package] or None
        return [functools.partial(_read_packages, packages)]
    if scheme in _DATASETS:
        with _named(source):
            return _DATASETS[scheme](source, name)
    path = Path(source)
    files = [path]
    if path.is_dir():
        files = _files_in(path)
    elif _FILE_NAME.fullmatch(path.name) is None:
        raise UserError(f"unknown source {source!r}: expected {ACCEPTED}")
    elif not path.is_file():
        raise UserError(f"no file {path}")
    if len(files) == 1:
        return _file_pieces(files[0], "")
    require_headers_alike(file for file in files if plain_suffix(file) == ".tsv")
    # Line numbers are unique within a file only.
    pieces = (_file_pieces(file, f"{escape_control(file.name)}:") for file in files)
    return list(chain.from_iterable(pieces))


def _files_in(folder: Path) -> list[Path]:
    """Chooses the files to read of a folder, and logs their names and those of all others."""
    found = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    files = [Path(name) for name in choose_files(str(path) for path in found if path.is_file())]
    if not files:
        raise UserError(f"folder {folder} holds no .txt, .jsonl, .tsv or .parquet file")
    others = [path.name for path in sorted({*found}.difference(files))]
    if len(files) > 1 or others:
        names = first_three([file.name for file in files])
        rest = f"; not {first_three(others)}" if others else ""
        logger.info("%s: reading %s%s", folder, names, rest)
    return files


def choose_files(paths: Iterable[str]) -> list[str]:
    """Chooses what to read of a folder: all ACCEPTED_FILES, or a data set's passages alone."""
    files = sorted(path for path in paths if _FILE_NAME.fullmatch(path.rpartition("/")[2]))
    # From last to first: a plain file goes before its archive.
    by_name = {plain_name(Path(path)): path for path in reversed(files)}
    for name in PASSAGE_FILES:
        if name in by_name:
            return [by_name[name]]
    return files


def _file_pieces(path: Path, prefix: str) -> list[Piece]:
    suffix = plain_suffix(path)
    if suffix == ".parquet":
        return _parquet_pieces(path, prefix)
    if suffix == ".jsonl":
        return [functools.partial(_read_objects, path, prefix)]
    if suffix == ".txt":
        return [functools.partial(_read_text, path, prefix)]
    return [functools.partial(_read_table, path)]


def _read_packages(packages: list[str] | None) -> Iterator[Document]:
    for name, text in read_docstrings(packages):
        yield Document(name, text)


def _read_table(path: Path) -> Iterator[Document]:
    for where, row in read_rows(path, _lines(path)):
        yield _to_document(row, "", where)  # each row has an id


def _read_objects(path: Path, prefix: str) -> Iterator[Document]:
    for number, line in _lines(path):
        if line.strip():
            where = f"{path}:{number}"
            yield _to_document(parse_object(line, where), f"{prefix}{number}", where)


def _read_text(path: Path, prefix: str) -> Iterator[Document]:
    has_blocks = len(list(islice(_blocks(path), 2))) == 2
    for block in _blocks(path):
        if not has_blocks:
            yield from (Document(f"{prefix}{number}", line) for number, line in block)
            continue
        first, text = next(block)
        texts = [text]
        n_bytes = len(text.encode())
        for _, text in block:
            n_bytes += len(text.encode())
            _check_size(n_bytes, f"{path}:{first}")
            texts.append(text)
        yield Document(f"{prefix}{first}", "\n".join(texts))


def _blocks(path: Path) -> Iterator[Iterator[tuple[int, str]]]:
    groups = groupby(_lines(path), lambda line: bool(line[1].strip()))
    return (lines for has_text, lines in groups if has_text)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    return read_lines(path, MAX_DOCUMENT_BYTES, show_progress=True)


def _parquet_pieces(path: Path, prefix: str) -> list[Piece]:
    import pyarrow.dataset  # type: ignore[import-untyped]  # for this source only

    with _named(str(path)):
        data = pyarrow.dataset.dataset(path)
        groups = [*chain.from_iterable(file.split_by_row_group() for file in data.get_fragments())]
    names = [name for name in data.schema.names if name in _FIELDS]
    pieces = []
    first = 1
    for group in groups:
        rows = functools.partial(_parquet_rows, group, names)
        pieces.append(_record_piece(str(path), rows, prefix, first))
        first += group.row_groups[0].num_rows
    return pieces


def _parquet_rows(group: Any, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for batch in group.to_batches(columns=names, batch_size=_ROWS_AT_ONCE):
        try:
            yield from batch.to_pylist()
        except UnicodeDecodeError:  # of any row: bytes, one of which is refused by its name
            import pyarrow as pa

            strings = (pa.string(), pa.large_string(), pa.string_view())
            for i, name in enumerate(names):
                if batch.schema.field(name).type in strings:
                    batch = batch.set_column(i, name, batch[name].cast(pa.large_binary()))
            yield from batch.to_pylist()


def _record_piece(
    source: str,
    records: Callable[[], Iterable[dict[str, Any]]],
    prefix: str = "",
    first: int = 1,
) -> Piece:
    """Makes a piece of records; one without an id is named by prefix and number, from `first`."""

    def read() -> Iterator[Document]:
        for number, record in _numbered(source, records, first):
            yield _to_document(record, f"{prefix}{number}", f"{source}, record {number}")

    return read


def _numbered(
    source: str, records: Callable[[], Iterable[dict[str, Any]]], first: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Numbers records; names the source, and the last record that could be read, in errors."""
    number = first - 1
    try:
        for number, record in enumerate(records(), start=first):
            yield number, record
    except UserError:
        raise
    except Exception as error:  # of each library another
        after = f", after record {number}" if number >= first else ""
        raise _unreadable(f"{source}{after}", error) from error


@contextmanager
def _named(source: str) -> Iterator[None]:
    """Names the source in errors of a library."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # of each library another: a wrong name, a failed connection
        raise _unreadable(source, error) from error


def _unreadable(source: str, error: Exception) -> UserError:
    missing = name_extra(error) if isinstance(error, ImportError) else None
    return missing or UserError(f"{source}: {whole_message(error)}")


def _to_document(record: dict[str, Any], default_id: str, where: str) -> Document:
    name = without_surrogates(_id(record, default_id, where))
    spans = record.get("spans")
    if spans is not None:
        texts = [_text(span, "spans", where) for span in spans] if isinstance(spans, list) else []
        if not isinstance(spans, list) or not all(isinstance(text, str) for text in texts):
            raise UserError(f"{where}: `spans` must be a list of strings")
        if None in spans:
            raise UserError(f"{where}: `spans` must be a list of strings, without nulls")
        cut = tuple(without_surrogates(text) for text in texts)
        document = Document(name, "\n".join(cut), cut)
    else:
        text = _text(record.get("text", 0), "text", where)
        title = _text(record.get("title"), "title", where)
        if not isinstance(text, str):
            raise UserError(f"{where} has no `text` (a string) and no `spans` (a list of strings)")
        if not isinstance(title, str):
            raise UserError(f"{where}: `title` must be a string")
        text = text.strip()
        title = title.strip()
        if not text.startswith(title):
            text = f"{title}\n{text}"
        document = Document(name, without_surrogates(text))
    _check_size(len(document.text), where)
    return document


def _id(record: dict[str, Any], default: str, where: str) -> str:
    for key in ("_id", "id"):
        if record.get(key) is not None:
            return str(_text(record[key], key, where))
    return default


def _text(value: Any, field: str, where: str) -> Any:
    """Decodes text that a library gives as bytes; null becomes an empty text."""
    if value is None:
        return ""
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{where}: `{field}` is not UTF-8") from None


def _check_size(n_bytes: int, where: str) -> None:
    if n_bytes > MAX_DOCUMENT_BYTES:
        limit = MAX_DOCUMENT_BYTES // 1_000_000
        raise UserError(f"{where}: a document is larger than {limit} MB; split it first")


def _huggingface_pieces(source: str, name: str) -> list[Piece]:
    path, _, rest = name.partition(":")
    config, _, split = rest.partition(":")
    if not path:
        raise UserError("hf: expected a dataset's name or folder, as in hf:ag_news::train")
    import datasets  # slow to import, and needed for this source only

    # What it logs before it raises is in the error.
    datasets.logging.set_verbosity(logging.CRITICAL)
    # Where a folder's name has a `[`, datasets (5.2.0) finds nothing in it.
    open_builder = functools.partial(datasets.load_dataset_builder, path, config or None)
    builder = open_builder()
    split = split or "train"
    paths = [str(file) for file in (builder.config.data_files or {}).get(split, [])]
    suffixes = {plain_suffix(Path(file)) for file in paths}
    if paths and os.path.isdir(path) and suffixes.issubset(_OWN_SUFFIXES):
        prefixes = _prefixes(len(paths))
        pieces = [_file_pieces(Path(file), prefixes[k]) for k, file in enumerate(paths)]
        return list(chain.from_iterable(pieces))
    data = builder.as_streaming_dataset(split)
    if nulls := [
        each for each, kind in (data.features or {}).items() if kind == datasets.Value("null")
    ]:
        # No record of the first file has a value: they are strings elsewhere, or become strings.
        strings = dict.fromkeys(nulls, datasets.Value("string"))
        kinds = datasets.Features({**data.features, **strings})
        data = open_builder(features=kinds).as_streaming_dataset(split)
    return _streamed_pieces(source, data, paths)


def _streamed_pieces(source: str, data: Any, paths: Sequence[str]) -> list[Piece]:
    """Makes a piece of each shard, which is one of the files if there are as many."""
    n_shards = data.num_shards
    names = paths if len(paths) == n_shards else [f"file {k}" for k in range(n_shards)]
    prefixes = _prefixes(n_shards)
    return [
        _record_piece(
            f"{source} {names[k]}", functools.partial(data.shard, n_shards, k), prefixes[k]
        )
        for k in range(n_shards)
    ]


def _prefixes(n_files: int) -> list[str]:
    """Names the files of a dataset: numbers of records are unique within one only."""
    return [f"{k}:" for k in range(n_files)] if n_files > 1 else [""]


def _tensorflow_pieces(source: str, name: str) -> list[Piece]:
    # "wikipedia/20230601.en:1.0.0" names a version, "lm1b:test" a split.
    match = re.fullmatch(r"(.+?)(?::([^:/\d][^:/]*))?", name)
    if match is None:
        raise UserError("tfds: expected a dataset's name, as in tfds:lm1b:train")
    path, split = match.groups("train")
    import tensorflow_datasets as tfds  # slow to import, and needed for this source only

    if os.path.isdir(path):
        data = tfds.builder_from_directory(path).as_data_source(split=split)
    else:
        data = tfds.data_source(path, split=split)
    numbers = range(len(data))  # records are read by number
    slices = [numbers[k : k + _RECORDS_PER_PIECE] for k in numbers[::_RECORDS_PER_PIECE]]
    return [
        _record_piece(source, functools.partial(map, data.__getitem__, k), first=k[0] + 1)
        for k in slices
    ]


_DATASETS = {"hf": _huggingface_pieces, "tfds": _tensorflow_pieces}
