"""Reads tab-separated files: by a header, by the name of a published file, or as the user says.

    id, text                MS MARCO passages, collection.tsv, and the queries of both its tasks
    id, title, text         the same with the titles of RocketQA, corpus.tsv
    id, url, title, text    MS MARCO documents, msmarco-docs.tsv
    a header                DPR, psgs_w100.tsv, and tables of one's own: `id`, `text` and perhaps
                            `title` and `url`, in any order, among other columns; quoted as csv

Whether a first line is a header is not guessed: it has names for `id` and `text` (`HEADER_NAMES`).
"""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path

from cocondenser_jax.errors import UserError, first_three
from cocondenser_jax.files.whole import MAX_LINE_BYTES, read_lines

# The passages of a data folder are the first of these.
PASSAGE_FILES = (
    "corpus.jsonl",
    "corpus.tsv",
    "collection.tsv",
    "psgs_w100.tsv",
    "msmarco-docs.tsv",
)
# Names of a data folder's files, compressed or not, in the order in which they are looked for.
DATA_FILES = {
    "passages": PASSAGE_FILES,
    "judgments": ("qrels/SPLIT.tsv", "qrels.SPLIT.tsv", "msmarco-docSPLIT-qrels.tsv"),
    "queries": ("queries.jsonl", "queries.SPLIT.tsv", "msmarco-docSPLIT-queries.tsv"),
}
FIELDS = ("id", "url", "title", "text")
# The published tables without a header, by their names, and their columns.
_PUBLISHED = {
    "corpus.tsv": ("id", "title", "text"),
    "collection.tsv": ("id", "text"),
    "msmarco-docs.tsv": FIELDS,
    "queries.SPLIT.tsv": ("id", "text"),
    "msmarco-docSPLIT-queries.tsv": ("id", "text"),
    "msmarco-testSPLIT-queries.tsv": ("id", "text"),
    "topics.SPLIT.tsv": ("id", "text"),  # Anserini's
}
# What headers call each field, without capitals and separators. A column of the field's own name is
# taken before those of the other names.
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
_NO_FIELD = "-"  # of a column that is not read
# A source whose columns the user has named: PATH:id,title,text.
_WITH_COLUMNS = re.compile(rf"(.+):((?:{'|'.join((*FIELDS, _NO_FIELD))})(?:,[a-z-]+)+)", re.DOTALL)
_COMPRESSED = re.compile(r"\.(gz|xz|zst)$")
_MAX_NAME = 40  # characters; what is longer is no name of a column
# First lines of .txt files that are no texts: how a message names them.
_NO_PROSE = {
    "a tag of TREC's topics or documents": re.compile(
        r"<\?xml|</?(top|topics?|num|number|title|docs?|docno|parameters|queries|query)\b", re.I
    ),
    "an id before a colon": re.compile(r"(\d+:)+[^\W\d_]"),
    "a result of a run": re.compile(r"\S+\s+Q0\s+\S+\s+\d+\s+\S+\s+\S+$"),
    "a judgment": re.compile(r"\S+\s+(0|Q0)\s+\S+\s+-?\d+$"),
}
_ROWS_COMPARED = 100  # to see whether titles are longer than texts
_Lines = Iterable[tuple[str, str]]  # "FILE:LINE" and the line
_Rows = Iterator[tuple[str, list[str]]]  # "FILE:LINE" and the fields of the line


def plain_name(path: Path) -> str:
    """Drops the suffix of a compression from a file name."""
    return _COMPRESSED.sub("", path.name)


def plain_suffix(path: Path) -> str:
    """Returns the suffix that shows what a file holds, such as .tsv of a.tsv.gz."""
    return Path(plain_name(path)).suffix


def matches_data_file(path: Path, name: str, split: str | None = None) -> bool:
    """Returns whether a path in a data folder has a name of DATA_FILES, of one split or of any."""
    split_pattern = "[^/]+" if split is None else re.escape(split)
    pattern = re.escape(name).replace("SPLIT", split_pattern)
    return re.fullmatch(pattern, str(path.with_name(plain_name(path)))) is not None


def is_data_file(path: Path) -> bool:
    """Returns whether a path, in any folder, ends in one of the names of DATA_FILES."""
    ends = (Path(path.name), Path(*path.parts[-2:]))
    names = [*chain.from_iterable(DATA_FILES.values())]
    return any(matches_data_file(end, name) for end in ends for name in names)


def name_columns(source: str, columns: str) -> str:
    """Returns a source with the columns of its tables, for `split_columns`.

    Raises:
      UserError: unless `columns` are such as "id,title,text".
    """
    names = columns.split(",")
    fields = [name for name in names if name != _NO_FIELD]
    if len({*fields}) < len(fields) or not {"id", "text"} <= {*fields} <= {*FIELDS}:
        raise UserError(
            f"--columns={columns}: expected id and text, perhaps url and title, each once, and"
            f" {_NO_FIELD} for a column that is not read"
        )
    return f"{source}:{columns}"


def split_columns(source: str | Path) -> tuple[str, tuple[str, ...]]:
    """Returns the path or name of a source, and the columns that `name_columns` gave it."""
    match = _WITH_COLUMNS.fullmatch(str(source))
    if match is None or Path(source).exists():
        return str(source), ()
    return match[1], tuple(match[2].split(","))


def read_rows(
    path: Path, lines: Iterable[tuple[int, str]], columns: Sequence[str] = ()
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields "FILE:LINE", and `id`, `url`, `title` and `text` of each numbered line with text.

    Args:
      path: the table.
      lines: its lines with their numbers.
      columns: of FIELDS, where the user says what the columns of a table without a header are.

    Raises:
      UserError: also if nothing says what the columns are, if an id is not one word, or if a
        quoted field goes over several lines.
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
    """Returns the names of a table's columns, those that are read by their fields; [] if none."""
    head = [*islice(_numbered(path, read_lines(path)), 1)]
    return _header(*head[0]) if head else []


def find_columns(
    where: str, cells: Sequence[str], names: Mapping[str, Sequence[str]]
) -> dict[str, int]:
    """Finds the columns of a header; returns field → column, of the fields that it names.

    Args:
      where: of the header, for messages.
      cells: its names; capitals and separators (`query-id`, `Query ID`) do not matter.
      names: field → its other names, without capitals and separators.

    Raises:
      UserError: if two columns have the name of one field.
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
    """Returns whether a column of this name may be the id, by another name than `id` or `_id`."""
    return name not in ("id", "_id") and _plain(name) in ("id", *HEADER_NAMES["id"])


def require_prose(path: Path, lines: Iterable[tuple[int, str]]) -> None:
    """Raises a UserError for a .txt file whose first lines hold ids or tags, not texts alone."""
    head = [*islice(_numbered(path, lines), _ROWS_COMPARED)]
    for where, line in head[:1]:
        for what, form in _NO_PROSE.items():
            if form.match(line.strip()):
                raise UserError(f"{where}: {what}, {line[:60]!r}: expected texts alone")
    if head and all("\t" in line.strip() for _, line in head):
        raise UserError(
            f"{head[0][0]}: a tab in each line, as in a table: expected texts alone, or a .tsv file"
            " whose first line names the columns, id and text among them"
        )


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
    """Returns the columns of a first line by their names; [] unless id and text are among them."""
    cells = [cell.strip()[: _MAX_NAME + 1] for cell in line.replace('"', "").split("\t", 100)]
    found = find_columns(where, cells, HEADER_NAMES)
    if "id" in found and "text" in found:
        for field, i in found.items():
            cells[i] = field
        return cells
    return []


def _require_row(where: str, line: str) -> None:
    """Raises a UserError for a first line in which a cell is a name of the id or of the text."""
    cells = line.split("\t", 100)
    for field in {"id", "text"}.intersection(find_columns(where, cells, HEADER_NAMES)):
        raise UserError(
            f"{where}: {first_three(cells)}: names the {field} as a header does, but not id and"
            " text: name those, or take the line out"
        )


def _published_columns(path: Path, where: str, line: str) -> Sequence[str]:
    """Returns the columns of a published table, by its name; its ids have digits."""
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
    for where, line in lines:
        # One field too many shows the mistake; a line of nothing but tabs would make millions.
        fields = line.split("\t", len(columns))
        _check_number(where, fields, columns)
        yield where, fields


def _check_number(where: str, fields: Sequence[str], columns: Sequence[str]) -> None:
    if len(fields) != len(columns):
        raise UserError(
            f"{where}: expected {len(columns)} tab-separated fields ({', '.join(columns)}), "
            f"found {len(fields)}"
        )


def _check_order(columns: Sequence[str], rows: _Rows) -> _Rows:
    """Refuses what is in DPR's order, text before title: titles longer than the texts."""
    first = list(islice(rows, _ROWS_COMPARED))
    sizes = {name: sum(len(row[i]) for _, row in first) for i, name in enumerate(columns)}
    if len(first) > 2 and sizes.get("title", 0) > sizes["text"]:
        raise UserError(
            f"{first[0][0]}: without a header, the columns are {', '.join(columns)}, but the titles"
            " are longer than the texts: put a line with the names of the columns above"
        )
    yield from first
    yield from rows


def _parse_csv(line: str) -> list[str]:
    """Parses one line: a quotation mark too many must not swallow the rest of the file."""
    # csv refuses fields of more than 131,072 characters, by a limit of the whole process.
    limit = csv.field_size_limit(MAX_LINE_BYTES)
    try:
        return next(csv.reader([line], delimiter="\t", strict=True))
    finally:
        csv.field_size_limit(limit)
