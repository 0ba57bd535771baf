"""Streams documents from installed packages, files, folders and published datasets."""

import functools
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from cocondenser_jax.corpus.folders import find_files, find_place, is_accepted
from cocondenser_jax.corpus.markdown import read_sections
from cocondenser_jax.corpus.pydocs import read_docstrings
from cocondenser_jax.corpus.records import (
    FIELDS,
    MAX_DOCUMENT_BYTES,
    Document,
    Piece,
    Record,
    RecordPiece,
    check_size,
    named_errors,
    record_piece,
    to_document,
)
from cocondenser_jax.errors import (
    UserError,
    escape_control,
    first_three,
    log_once,
)
from cocondenser_jax.files.tables import (
    names_an_id,
    plain_suffix,
    read_header,
    read_rows,
    require_prose,
)
from cocondenser_jax.files.whole import parse_object, read_lines

logger = logging.getLogger(__name__)

T = TypeVar("T")

ACCEPTED_FILES = (
    "a .txt, .md, .jsonl, .tsv (also .gz, .xz, .zst) or .parquet file, a folder or pattern of them"
)
ACCEPTED = (
    f"pydocs, pydocs:numpy,scipy, {ACCEPTED_FILES}, "
    "hf:NAME_OR_FOLDER[:CONFIG[:SPLIT]] or tfds:NAME_OR_FOLDER[:SPLIT]"
)
# Files of a dataset in a folder that are read without its library, which would read all columns and
# refuse files in which an unneeded column has a different type.
_OWN_SUFFIXES = (".jsonl", ".parquet")
_RECORDS_PER_PIECE = 10_000  # of a dataset whose records are read by number
_ROWS_AT_ONCE = 100


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


def documents_sha256(source: str) -> str:
    """Returns the SHA-256 of the names and texts of a source's documents, in order."""
    digest = hashlib.sha256()
    for _ in hashed(read_documents(source), digest):
        pass
    return digest.hexdigest()


def hashed(documents: Iterable[T], digest: "hashlib._Hash") -> Iterator[T]:
    """Streams documents or passages, and adds each to a digest."""
    for document in documents:
        digest.update(json.dumps(document).encode())
        yield document


def open_source(source: str) -> list[Piece]:
    """Lists the pieces of a source (see `open_records`), as documents."""
    return [functools.partial(_to_documents, piece) for piece in open_records(source)]


def _to_documents(piece: RecordPiece) -> Iterator[Document]:
    return map(to_document, piece())


def open_records(source: str) -> list[RecordPiece]:
    """Lists the pieces of a source (files, row groups, runs of records), always in the same order.

    Args:
      source: `pydocs` or `pydocs:PACKAGE,PACKAGE` (docstrings of installed packages); a path
        that ends in `.txt` (a document per line, or separated by blank lines if it has any), `.md`
        (a document per section), `.jsonl` or `.parquet` (records with `text`, or `title` and
        `text`, or `spans`; the id in `_id` or `id`, else the number of line or row) or `.tsv` (see
        `tables`; URLs are not read), each but Parquet also compressed; a folder, or a
        pattern of its files (see `folders.find_files`); these with `:id,title,text`, the columns of
        their tables;
        `hf:NAME_OR_FOLDER[:CONFIG[:SPLIT]]`, which is streamed; `tfds:NAME_OR_FOLDER[:SPLIT]`.
    """
    require_source(source)
    scheme, _, name = source.partition(":")
    if scheme == "pydocs":
        packages = [package for package in name.split(",") if package] or None
        return [functools.partial(_read_packages, packages)]
    if scheme in _DATASETS:
        with named_errors(source):
            return _DATASETS[scheme](source, name)
    path, pattern, columns = find_place(source)
    names = find_files(path, pattern) if path.is_dir() else [""]
    if columns and path.is_dir() and not any(plain_suffix(Path(name)) == ".tsv" for name in names):
        raise _no_tables(path)
    if len(names) == 1:
        return _file_pieces(path / names[0], "", columns)
    # Line numbers are unique within a file only.
    pieces = (_file_pieces(path / name, f"{escape_control(name)}:", columns) for name in names)
    return list(chain.from_iterable(pieces))


def require_source(source: str) -> None:
    """Raises a UserError for sources that `open_records` cannot open, judging by the name."""
    path, pattern, columns = find_place(source)
    is_file = source.partition(":")[0] not in ("pydocs", *_DATASETS)
    if columns and not (is_file and (path.is_dir() or plain_suffix(path) == ".tsv")):
        raise _no_tables(path)
    if not is_file or path.is_dir():
        return
    if pattern or not path.exists():
        raise UserError(f"{source} does not exist: expected {ACCEPTED}")
    if not is_accepted(path.name) or not path.is_file():
        raise UserError(f"unknown source {source!r}: expected {ACCEPTED}")


def _no_tables(path: Path) -> UserError:
    return UserError(f"{path}: --columns says what the columns of .tsv files are")


def _file_pieces(path: Path, prefix: str, columns: Sequence[str] = ()) -> list[RecordPiece]:
    suffix = plain_suffix(path)
    if suffix == ".parquet":
        return _parquet_pieces(path, prefix)
    if suffix == ".jsonl":
        return [functools.partial(_read_objects, path, prefix)]
    if suffix == ".txt":
        return [functools.partial(_read_text, path, prefix)]
    if suffix == ".md":
        return [functools.partial(_read_markdown, path, prefix)]
    return [functools.partial(_read_table, path, columns)]


def _read_packages(packages: list[str] | None) -> Iterator[Record]:
    for name, text in read_docstrings(packages):
        yield Record({"id": name, "text": text}, name, name)


def _read_table(path: Path, columns: Sequence[str]) -> Iterator[Record]:
    _warn_of_unread(path, read_header(path), "column")
    for where, row in read_rows(path, _lines(path), columns):
        yield Record(row, "", where, row["url"])  # each row has an id


def _read_objects(path: Path, prefix: str) -> Iterator[Record]:
    has_warned = False
    for number, line in _lines(path):
        if line.strip():
            where = f"{path}:{number}"
            fields = parse_object(line, where)
            if not has_warned:
                _warn_of_unread(path, fields, "field")
                has_warned = True
            yield Record(fields, f"{prefix}{number}", where)


def _warn_of_unread(path: Path, names: Iterable[str], kind: str) -> None:
    """Logs which fields are ignored if there is no title: one of them may be meant as one."""
    others = [name for name in names if name not in (*FIELDS, "url")]
    if others and "title" not in names:
        log_once(
            logger,
            f"{path}: not reading {first_three(others)}; a {kind} of titles must be named title",
        )


def _read_text(path: Path, prefix: str) -> Iterator[Record]:
    require_prose(path, _lines(path))
    has_blocks = len(list(islice(_blocks(path), 2))) == 2
    for block in _blocks(path):
        if not has_blocks:
            for number, line in block:
                yield Record({"text": line}, f"{prefix}{number}", f"{path}:{number}")
            continue
        first, text = next(block)
        where = f"{path}:{first}"
        texts = [text]
        n_bytes = len(text.encode())
        for _, text in block:
            n_bytes += len(text.encode())
            check_size(n_bytes, where)
            texts.append(text)
        yield Record({"text": "\n".join(texts)}, f"{prefix}{first}", where)


def _read_markdown(path: Path, prefix: str) -> Iterator[Record]:
    lines = []
    n_bytes = 0
    for _, line in _lines(path):
        n_bytes += len(line.encode())
        check_size(n_bytes, str(path))
        lines.append(line)
    for number, title, text in read_sections(lines):
        yield Record({"title": title, "text": text}, f"{prefix}{number}", f"{path}:{number}")


def _blocks(path: Path) -> Iterator[Iterator[tuple[int, str]]]:
    groups = groupby(_lines(path), lambda line: bool(line[1].strip()))
    return (lines for has_text, lines in groups if has_text)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    return read_lines(path, MAX_DOCUMENT_BYTES, show_progress=True)


def _parquet_pieces(path: Path, prefix: str) -> list[RecordPiece]:
    import pyarrow.dataset  # type: ignore[import-untyped]  # for this source only

    with named_errors(str(path)):
        data = pyarrow.dataset.dataset(path)
        groups = [*chain.from_iterable(file.split_by_row_group() for file in data.get_fragments())]
        columns = data.schema.names  # which need not be UTF-8
    # A column that may hold the id: then passages are not numbered.
    names = [name for name in columns if name in FIELDS or names_an_id(name)]
    _warn_of_unread(path, columns, "column")
    pieces = []
    first = 1
    for group in groups:
        rows = functools.partial(_parquet_rows, group, names)
        pieces.append(record_piece(str(path), rows, prefix, first))
        first += group.row_groups[0].num_rows
    return pieces


def _parquet_rows(group: Any, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for batch in group.to_batches(columns=names, batch_size=_ROWS_AT_ONCE):
        try:
            yield from batch.to_pylist()
        except UnicodeDecodeError:  # of any row: bytes; a row without an id is refused by name
            import pyarrow as pa

            strings = (pa.string(), pa.large_string(), pa.string_view())
            for i, name in enumerate(names):
                if batch.schema.field(name).type in strings:
                    batch = batch.set_column(i, name, batch[name].cast(pa.large_binary()))
            yield from batch.to_pylist()


def _huggingface_pieces(source: str, name: str) -> list[RecordPiece]:
    path, _, rest = name.partition(":")
    config, _, split = rest.partition(":")
    if not path:
        raise UserError("hf: expected a dataset's name or folder, as in hf:ag_news::train")
    import datasets  # slow to import, and needed for this source only

    # Its log messages before an exception repeat the exception.
    datasets.logging.set_verbosity(logging.CRITICAL)
    # datasets (5.2.0) finds nothing in a folder whose name has a `[`.
    open_builder = functools.partial(datasets.load_dataset_builder, path, config or None)
    builder = open_builder()
    if options := _as_written(builder):
        open_builder = functools.partial(open_builder, **options)
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
        # No record of the first file has a value: in other files they are strings, or become
        # strings.
        strings = dict.fromkeys(nulls, datasets.Value("string"))
        kinds = datasets.Features({**data.features, **strings})
        data = open_builder(features=kinds).as_streaming_dataset(split)
    return _streamed_pieces(source, data, paths)


def _as_written(builder: Any) -> dict[str, Any]:
    """Returns the options with which datasets reads the fields of .csv files unchanged.

    Otherwise a text "NA" would be missing, and an id 007 the number 7. Empty for other files.
    """
    import datasets

    if not hasattr(builder.config, "na_filter"):
        return {}
    if builder.info.features is None:
        return {"na_filter": False, "converters": dict.fromkeys(FIELDS, str)}
    # The dataset's card declares types, possibly also of columns that are not read.
    read = [name for name in builder.info.features if name in FIELDS]
    strings = dict.fromkeys(read, datasets.Value("string"))
    return {"na_filter": False, "features": datasets.Features(strings)}


def _streamed_pieces(source: str, data: Any, paths: Sequence[str]) -> list[RecordPiece]:
    """Makes a piece of each shard; a shard is one file if there are as many files."""
    n_shards = data.num_shards
    names = paths if len(paths) == n_shards else [f"file {k}" for k in range(n_shards)]
    prefixes = _prefixes(n_shards)
    return [
        record_piece(
            f"{source} {names[k]}", functools.partial(data.shard, n_shards, k), prefixes[k]
        )
        for k in range(n_shards)
    ]


def _prefixes(n_files: int) -> list[str]:
    """Names the files of a dataset, because record numbers are unique only within a file."""
    return [f"{k}:" for k in range(n_files)] if n_files > 1 else [""]


def _tensorflow_pieces(source: str, name: str) -> list[RecordPiece]:
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
        record_piece(source, functools.partial(map, data.__getitem__, k), first=k[0] + 1)
        for k in slices
    ]


_DATASETS = {"hf": _huggingface_pieces, "tfds": _tensorflow_pieces}
