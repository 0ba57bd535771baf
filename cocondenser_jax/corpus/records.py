"""Turns records of any library into documents, and its errors into one-line errors."""

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from cocondenser_jax.errors import UserError, name_extra, whole_message
from cocondenser_jax.files.whole import without_surrogates
from cocondenser_jax.representation import join_title

MAX_DOCUMENT_BYTES = 50_000_000
BATCH_CHARACTERS = 1_000_000  # minimum, of documents that are cut together
FIELDS = ("_id", "id", "title", "text", "spans")  # of a record that are read


class Document(NamedTuple):
    """A text and its name; `spans` if the source has already split it."""

    id: str
    text: str
    spans: tuple[str, ...] | None = None


class Record(NamedTuple):
    """A source's record of one document, as read."""

    fields: Mapping[str, Any]  # those of FIELDS, and others
    number: str  # of its line or row, preceded by the name of its file if there are several
    where: str  # names it in errors
    url: str = ""  # of a table


# Reads one piece of a source.
Piece = Callable[[], Iterator[Document]]
RecordPiece = Callable[[], Iterator[Record]]


def record_piece(
    source: str,
    records: Callable[[], Iterable[dict[str, Any]]],
    prefix: str = "",
    first: int = 1,
) -> RecordPiece:
    """Makes a piece of a library's records; numbers start at `first` and have a `prefix`."""

    def read() -> Iterator[Record]:
        for number, fields in _numbered(source, records, first):
            yield Record(fields, f"{prefix}{number}", f"{source}, record {number}")

    return read


def _numbered(
    source: str, records: Callable[[], Iterable[dict[str, Any]]], first: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Numbers records; errors name the source and the last record that could be read."""
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
def named_errors(source: str) -> Iterator[None]:
    """Adds the source to a library's errors."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # differs between libraries: a wrong name, a failed connection
        raise _unreadable(source, error) from error


def _unreadable(source: str, error: Exception) -> UserError:
    missing = name_extra(error) if isinstance(error, ImportError) else None
    return missing or UserError(f"{source}: {whole_message(error)}")


def to_document(record: Record) -> Document:
    """Makes a document of a record; one without an id is named by its number."""
    fields, number, where, _ = record
    name = without_surrogates(_id(fields, number, where))
    spans = fields.get("spans")
    if spans is not None:
        texts = [_text(span, "spans", where) for span in spans] if isinstance(spans, list) else []
        if not isinstance(spans, list) or not all(isinstance(text, str) for text in texts):
            raise UserError(f"{where}: `spans` must be a list of strings")
        if None in spans:
            raise UserError(f"{where}: `spans` must be a list of strings, without nulls")
        cut = tuple(without_surrogates(text) for text in texts)
        own = _text(fields.get("text"), "text", where)
        if isinstance(own, str) and own.strip() and _letters(own) != _letters("".join(cut)):
            raise UserError(f"{where} has a `text` other than its `spans`: expected one of the two")
        document = Document(name, "\n".join(cut), cut)
    else:
        text = _text(fields.get("text", 0), "text", where)
        title = _text(fields.get("title"), "title", where)
        if not isinstance(text, str):
            raise UserError(f"{where} has no `text` (a string) and no `spans` (a list of strings)")
        if not isinstance(title, str):
            raise UserError(f"{where}: `title` must be a string")
        text = join_title(title.strip(), text.strip(), "\n")
        document = Document(name, without_surrogates(text))
    check_size(len(document.text.encode()), where)
    return document


def _letters(text: str) -> str:
    """Returns a text without its white space."""
    return "".join(text.split())


def _id(fields: Mapping[str, Any], default: str, where: str) -> str:
    for key in ("_id", "id"):
        name = fields.get(key)
        if isinstance(name, datetime.date):  # datasets represents JSON strings like this
            raise UserError(f"{where}: `{key}` is read as a date, {name}: expected a string")
        if name is not None:
            return str(_text(name, key, where))
    return default


def _text(value: Any, field: str, where: str) -> Any:
    return "" if value is None else decode(value, field, where)


def decode(value: Any, field: str, where: str) -> Any:
    """Decodes text that a library gives as bytes; returns any other value."""
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{where}: `{field}` is not UTF-8") from None


def check_size(n_bytes: int, where: str) -> None:
    """Raises a UserError for a record that is too large to be a document."""
    if n_bytes > MAX_DOCUMENT_BYTES:
        limit = MAX_DOCUMENT_BYTES // 1_000_000
        raise UserError(f"{where}: a document is larger than {limit} MB; split it first")


def batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Groups documents that are cut together."""
    batch: list[Document] = []
    n_characters = 0
    for document in documents:
        batch.append(document)
        n_characters += len(document.text)
        if n_characters >= BATCH_CHARACTERS:
            yield batch
            batch = []
            n_characters = 0
    if batch:
        yield batch
