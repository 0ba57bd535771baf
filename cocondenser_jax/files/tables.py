"""Reads tab-separated files, with columns from a header, a published file's name or the user.

    id, text                MS MARCO passages, collection.tsv, and queries of both its tasks
    id, title, text         the same with RocketQA's titles, corpus.tsv
    id, url, title, text    MS MARCO documents, msmarco-docs.tsv
    a header                DPR, psgs_w100.tsv, and the user's tables: `id`, `text` and optionally
                            `title` and `url`, in any order, among other columns; quoted as csv

A first line is a header only if it names `id` and `text`, or their synonyms in `HEADER_NAMES`.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path

from cocondenser_jax.errors import UserError, first_three
from cocondenser_jax.files.whole import MAX_LINE_BYTES, read_lines

# Files of a data folder's passages; the first one found is read.
PASSAGE_FILES = (
    "corpus.jsonl",
    "corpus.tsv",
    "collection.tsv",
    "psgs_w100.tsv",
    "msmarco-docs.tsv",
)
# Names of a data folder's files, compressed or not, in order of preference.
DATA_FILES = {
    "passages": PASSAGE_FILES,
    "judgments": ("qrels/SPLIT.tsv", "qrels.SPLIT.tsv", "msmarco-docSPLIT-qrels.tsv"),
    "queries": ("queries.jsonl", "queries.SPLIT.tsv", "msmarco-docSPLIT-queries.tsv"),
}
FIELDS = ("id", "url", "title", "text")
# Columns of published tables without a header, by file name.
_PUBLISHED = {
    "corpus.tsv": ("id", "title", "text"),
    "collection.tsv": ("id", "text"),
    "msmarco-docs.tsv": FIELDS,
    "queries.SPLIT.tsv": ("id", "text"),
    "msmarco-docSPLIT-queries.tsv": ("id", "text"),
    "msmarco-testSPLIT-queries.tsv": ("id", "text"),
    "topics.SPLIT.tsv": ("id", "text"),  # Anserini's
}
# Synonyms of each field in headers, lower-case, without separators. A column with the field's own
# name comes first.
HEADER_NAMES = {
    "id": (
        *("docid", "docno", "documentid", "corpusid", "pid", "passageid", "psgid", "paragraphid"),
        *("qid", "queryid", "questionid", "articleid", "pageid", "chunkid"),
    ),
    "url": ("link", "uri"),
    "title": ("headline", "doctitle", "passagetitle", "documenttitle"),
    "text": (
        *("passage", "passagetext", "body", "content", "contents", "document", "documenttext"),
        *("paragraph", "query", "querytext", "question", "questiontext", "sentence", "abstract"),
    ),
}
_NO_FIELD = "-"  # a column that is not read
# A source with columns named by the user: PATH:id,title,text.
_WITH_COLUMNS = re.compile(rf"(.+):((?:{'|'.join((*FIELDS, _NO_FIELD))})(?:,[a-z-]+)+)", re.DOTALL)
_COMPRESSED = re.compile(r"\.(gz|xz|zst)$")
_MAX_NAME = 40  # characters of a column's name
# First lines of .txt files that are not plain text, by their description in messages.
_NO_PROSE = {
    "a tag of TREC's topics or documents": re.compile(
        r"<\?xml|</?(top|topics?|num|number|title|docs?|docno|parameters|queries|query)\b", re.I
    ),
    "a field of SMART's collections": re.compile(r"\.[IW]( \d+)?$"),
    "a document of HTML or RTF": re.compile(r"<!doctype\b|<html\b|\{\\rtf", re.I),
    "JSON": re.compile(r"\[?\s*\{\s*\"[^\"]*\"\s*:|[\[{]$"),
    "an id before a colon": re.compile(r"(\d+:)+[^\W\d_]"),
    "a result of a run": re.compile(r"\S+\s+Q0\s+\S+\s+\d+\s+\S+\s+\S+$"),
    "a judgment": re.compile(r"\S+\s+(0|Q0)\s+\S+\s+-?\d+$"),
}
# Other lines that show the same: of a file that begins with a comment, or of an archive.
_NO_PROSE_EITHER = re.compile(r"</?(top|doc|docno)>|.*\0", re.I)
_OR_A_TABLE = "expected texts alone, or a .tsv file whose first line names the columns, id and text"
# What a line with an id begins with: a number and a mark, or a number alone, as some texts do.
_MARKED_ID = re.compile(r"([A-Za-z-]{0,8}\d+(?:-\d+)*)[:.)|,;](?!\d)\s*\S")
_NUMBER = re.compile(r"(\d{1,18})\s+\S")
_FEWEST_IDS, _MANY_IDS = 3, 10  # lines
ROWS_COMPARED = 100  # first lines of a file that show what it holds
_Lines = Iterable[tuple[str, str]]  # "FILE:LINE" and the line
_Rows = Iterator[tuple[str, list[str]]]  # "FILE:LINE" and the fields of the line


def plain_name(path: Path) -> str:
    """Returns a file name without its compression suffix."""
    return _COMPRESSED.sub("", path.name)


def plain_suffix(path: Path) -> str:
    """Returns a file's suffix under its compression suffix, such as .tsv for a.tsv.gz."""
    return Path(plain_name(path)).suffix


def matches_data_file(path: Path, name: str, split: str | None = None) -> bool:
    """Returns whether a path in a data folder matches DATA_FILES[name], for one split or any."""
    split_pattern = "[^/]+" if split is None else re.escape(split)
    pattern = re.escape(name).replace("SPLIT", split_pattern)
    return re.fullmatch(pattern, str(path.with_name(plain_name(path)))) is not None


def is_data_file(path: Path) -> bool:
    """Returns whether a path in any folder has a name from DATA_FILES."""
    ends = (Path(path.name), Path(*path.parts[-2:]))
    names = [*chain.from_iterable(DATA_FILES.values())]
    return any(matches_data_file(end, name) for end in ends for name in names)


def name_columns(source: str, columns: str) -> str:
    """Appends the columns of its tables to a source, for `split_columns`.

    Raises:
      UserError: unless `columns` has the form "id,title,text".
    """
    _require_columns(f"--columns={columns}", columns.split(","))
    return f"{source}:{columns}"


def split_columns(source: str | Path) -> tuple[str, tuple[str, ...]]:
    """Splits a source into its path or name and the columns that `name_columns`, or a user, added.

    Raises:
      UserError: see `name_columns`.
    """
    match = _WITH_COLUMNS.fullmatch(str(source))
    if match is None or Path(source).exists():
        return str(source), ()
    columns = tuple(match[2].split(","))
    _require_columns(str(source), columns)
    return match[1], columns


def _require_columns(said: str, columns: Sequence[str]) -> None:
    """Raises a UserError unless columns that a user named, as in `said`, can be read."""
    fields = [name for name in columns if name != _NO_FIELD]
    if len({*fields}) < len(fields) or not {"id", "text"} <= {*fields} <= {*FIELDS}:
        raise UserError(
            f"{said}: expected id and text, perhaps url and title, each once, and {_NO_FIELD} for a"
            " column that is not read"
        )


def read_rows(
    path: Path, lines: Iterable[tuple[int, str]], columns: Sequence[str] = ()
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields "FILE:LINE" and the fields `id`, `url`, `title` and `text` of each non-blank line.

    Args:
      path: the table.
      lines: its lines with their numbers.
      columns: the columns of a table without a header, as the user named them.

    Raises:
      UserError: also if the columns are unknown, if an id is not one word, or if a quoted field
        spans several lines.
    """
    rows = _numbered(path, lines)
    head = [*islice(rows, 1)]
    if not head:
        return
    where, line = head[0]
    if "\r" in line:
        raise UserError(f"{where}: lines end with a carriage return alone, expected \\n")
    if named := _header(where, line):
        if columns:
            raise UserError(f"{where}: names the columns itself: leave --columns out")
        columns = named
        found = _quoted_rows(columns, _other_lines(line, rows))
    elif columns:
        _require_row(where, line)
        found = _plain_rows(columns, chain(head, rows))
    else:
        columns = _published_columns(path, where, line)
        found = _check_order(columns, _plain_rows(columns, chain(head, rows)))
    places = {name: columns.index(name) for name in FIELDS if name in columns}
    for place, fields in found:
        row = dict.fromkeys(FIELDS, "") | {name: fields[i] for name, i in places.items()}
        if row["id"].split() != [row["id"]]:
            raise UserError(f"{place}: the id {row['id'][:60]!r} has white space, or is empty")
        yield place, row


def read_header(path: Path) -> list[str]:
    """Returns the columns named by a table's header, by field name if read; [] without one."""
    head = [*islice(_numbered(path, read_lines(path)), 1)]
    return _header(*head[0]) if head else []


def find_columns(
    where: str, cells: Sequence[str], names: Mapping[str, Sequence[str]]
) -> dict[str, int]:
    """Returns the column number of each field that a header names.

    Args:
      where: the header's position, for messages.
      cells: its cells; case and separators do not matter (`query-id`, `Query ID`).
      names: the synonyms of each field, lower-case, without separators.

    Raises:
      UserError: if two columns may be the same field.
    """
    plain = [_plain(cell) for cell in cells]
    columns = {}
    for field, others in names.items():
        exact = [i for i, name in enumerate(plain) if name == field]
        found = exact or [i for i, name in enumerate(plain) if name in others]
        if len(found) > 1:
            raise UserError(
                f"{where}: the columns {' and '.join(cells[i] for i in found)} may all be the "
                f"{field}: name one of them {field}"
            )
        if found:
            columns[field] = found[0]
    return columns


def names_an_id(name: str) -> bool:
    """Returns whether a column's name is a synonym of the id, other than `id` and `_id`."""
    return name not in ("id", "_id") and _plain(name) in ("id", *HEADER_NAMES["id"])


def require_prose(path: Path, lines: Iterable[tuple[int, str]]) -> None:
    """Raises a UserError for a .txt file with ids, tags or a header in its first 100 lines."""
    head = [*islice(_numbered(path, lines), ROWS_COMPARED)]
    if not head:
        return
    where, first = head[0]
    texts = [line.strip() for _, line in head]
    for what, form in _NO_PROSE.items():
        if form.match(texts[0]):
            raise UserError(f"{where}: {what}, {first[:60]!r}: expected texts alone")
    for other, line in head:
        if _NO_PROSE_EITHER.match(line.strip()):
            raise UserError(f"{other}: a tag or a zero byte, {line[:60]!r}: expected texts alone")
    if all("\t" in text for text in texts):
        raise UserError(f"{where}: a tab in each line, as in a table: {_OR_A_TABLE} among them")
    named = {_plain(cell) for cell in re.split("[,;|]", first[:1000])}
    if all(named.intersection((field, *HEADER_NAMES[field])) for field in ("id", "text")):
        raise UserError(f"{where}: {first[:60]!r} names columns: {_OR_A_TABLE} among them")


def require_no_ids(path: Path, lines: Iterable[tuple[int, str]]) -> None:
    """Raises a UserError if lines seem to begin with ids, which would be searched for as words."""
    head = [*islice(_numbered(path, lines), ROWS_COMPARED)]
    if _begin_with_ids([line.strip() for _, line in head]):
        where, _ = head[0]
        raise UserError(f"{where}: each line begins with a number, as with an id: {_OR_A_TABLE}")


def _begin_with_ids(texts: Sequence[str]) -> bool:
    """Whether all lines begin with different marked numbers, or with numbers that must be ids.

    These rise, or have no gaps, or are those of many lines.
    """
    if len(texts) < _FEWEST_IDS:
        return False
    numbers = [int(found[1]) for text in texts if (found := _NUMBER.match(text))]
    if len(numbers) < len(texts):
        marked = {found[1] for text in texts if (found := _MARKED_ID.match(text))}
        return len(marked) == len(texts)
    different = sorted({*numbers})
    has_no_gaps = len(different) == len(numbers) == different[-1] - different[0] + 1
    return different == numbers or has_no_gaps or len(texts) >= _MANY_IDS


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name.casefold())


def _numbered(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[str, str]]:
    return ((f"{path}:{number}", line) for number, line in lines if line.strip())


def _other_lines(header: str, lines: _Lines) -> Iterator[tuple[str, str]]:
    for where, line in lines:
        if line == header:
            raise UserError(
                f"{where}: the names of the columns again, expected a row: if several files were "
                "joined, keep the first one's"
            )
        yield where, line


def _header(where: str, line: str) -> list[str]:
    """Returns the columns that a first line names; [] unless id and text are among them."""
    cells = [cell.strip()[: _MAX_NAME + 1] for cell in line.replace('"', "").split("\t", 100)]
    found = find_columns(where, cells, HEADER_NAMES)
    if "id" in found and "text" in found:
        for field, i in found.items():
            cells[i] = field
        return cells
    return []


def _require_row(where: str, line: str) -> None:
    """Raises a UserError for a first line with a cell that names the id or the text."""
    cells = line.split("\t", 100)
    for field in {"id", "text"}.intersection(find_columns(where, cells, HEADER_NAMES)):
        raise UserError(
            f"{where}: {first_three(cells)}: names the {field} as a header does, but not id and"
            " text: name those, or take the line out"
        )


def _published_columns(path: Path, where: str, line: str) -> Sequence[str]:
    """Returns a published table's columns by its file name; the first id must contain a digit."""
    name = Path(path.name)
    published = (columns for known, columns in _PUBLISHED.items() if matches_data_file(name, known))
    columns = next(published, ())
    cells = line.split("\t", 100)
    if len(cells) == len(columns) and any(map(str.isdigit, cells[0])):
        return columns
    expected = f"{', '.join(columns)} of a published {plain_name(path)}, or " if columns else ""
    raise UserError(
        f"{where}: {first_three([cell[:_MAX_NAME] for cell in cells])}: expected {expected}a first"
        " line that names the columns, id and text among them; or, where passages are read,"
        " --columns=id,title,text"
    )


def _quoted_rows(columns: Sequence[str], lines: _Lines) -> _Rows:
    for where, line in lines:
        try:
            fields = _parse_csv(line)
        except csv.Error as error:
            raise UserError(
                f"{where}: wrong quoting, expected csv with a line for each row: {error}"
            ) from None
        _check_number(where, fields, columns)
        yield where, fields


def _plain_rows(columns: Sequence[str], lines: _Lines) -> _Rows:
    for number, (where, line) in enumerate(lines):
        # One extra field reveals the mistake; splitting a line of tabs would make millions.
        fields = line.split("\t", len(columns))
        _check_number(where, fields, columns)
        if number < ROWS_COMPARED and any(map(_is_quoted, fields)):
            raise UserError(
                f"{where}: a cell is quoted as in csv: expected the first line of its file, which"
                " names the columns"
            )
        yield where, fields


def _is_quoted(cell: str) -> bool:
    """Whether a cell is quoted and its quotation marks doubled, as in a part of DPR's passages.

    A text in three of them may be one of Python.
    """
    inner = cell[1:-1]
    if cell != f'"{inner}"' or '""' not in inner or cell.startswith('"""'):
        return False
    return '"' not in inner.replace('""', "")


def _check_number(where: str, fields: Sequence[str], columns: Sequence[str]) -> None:
    if len(fields) != len(columns):
        raise UserError(
            f"{where}: expected {len(columns)} tab-separated fields ({', '.join(columns)}), "
            f"found {len(fields)}"
        )


def _check_order(columns: Sequence[str], rows: _Rows) -> _Rows:
    """Refuses rows in DPR's order (text before title), recognized by titles longer than texts."""
    first = list(islice(rows, ROWS_COMPARED))
    sizes = {name: sum(len(row[i]) for _, row in first) for i, name in enumerate(columns)}
    if len(first) > 2 and sizes.get("title", 0) > sizes["text"]:
        raise UserError(
            f"{first[0][0]}: without a header, the columns are {', '.join(columns)}, but the titles"
            " are longer than the texts: put a line with the names of the columns above"
        )
    yield from first
    yield from rows


def _parse_csv(line: str) -> list[str]:
    """Parses one line by itself, so that a stray quotation mark cannot swallow the next lines."""
    # csv has a process-wide limit of 131,072 characters per field.
    limit = csv.field_size_limit(MAX_LINE_BYTES)
    try:
        return next(csv.reader([line], delimiter="\t", strict=True))
    finally:
        csv.field_size_limit(limit)
