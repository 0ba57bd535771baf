"""Reads tab-separated files, and the layouts in which passages are published.

    id, text                MS MARCO passages, collection.tsv
    id, title, text         the same with the titles of RocketQA, corpus.tsv
    id, url, title, text    MS MARCO documents, msmarco-docs.tsv
    a header                DPR, psgs_w100.tsv, and passages of one's own: `id`, `text` and perhaps
                            `title` and `url`, in any order, among other columns; quoted as csv

The first line tells them apart, whatever the file is called: it has names for `id` and `text` (see
`HEADER_NAMES`), or as many columns as one of the other layouts. A first line that may be either is
refused, and so are files of one folder of which some have names: the names may be those of all.
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
_FIELDS = tuple(HEADER_NAMES)
# The layouts without a header, by the number of columns. Queries have no title: a third column is
# a time, a count or another form of the query.
_COLUMNS = {2: ("id", "text"), 3: ("id", "title", "text"), 4: _FIELDS}
QUERY_COLUMNS = {2: _COLUMNS[2]}
_COMPRESSED = re.compile(r"\.(gz|xz|zst)$")
_MAX_NAME = 40  # characters; what is longer is no name of a column
_WORD = re.compile(r"[^\W\d]([^\W\d]|-)*")  # without digits, which most ids have
_ROWS_COMPARED = 100  # to see whether titles are longer than texts; fewer than 3 prove nothing
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


def read_rows(
    path: Path,
    lines: Iterable[tuple[int, str]],
    layouts: Mapping[int, Sequence[str]] = _COLUMNS,
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields "FILE:LINE", and `id`, `url`, `title` and `text` of each numbered line with text.

    Args:
      path: the table.
      lines: its lines with their numbers.
      layouts: number of columns → the fields that they are, where there is no header.

    Raises:
      UserError: also if the first line looks like names of other columns, if columns are in another
        order than those of a layout, or if a quoted field goes over several lines.
    """
    lines = iter(lines)
    head = _read_head(path, lines)
    if not head:
        return
    where, line = head[0]
    columns: Sequence[str] = _read_header(head)
    if columns:
        rows = _quoted_rows(columns, _other_lines(line, chain(head[1:], _numbered(path, lines))))
    else:
        columns = _known_layout(where, line, layouts)
        rows = _plain_rows(columns, chain(head, _numbered(path, lines)))
        rows = _check_order(columns, rows)
    places = {name: columns.index(name) for name in _FIELDS if name in columns}
    for place, fields in rows:
        yield place, dict.fromkeys(_FIELDS, "") | {name: fields[i] for name, i in places.items()}


def require_headers_alike(tables: Iterable[Path]) -> None:
    """Raises a UserError if some of several tables begin with names, and others do not.

    The others may be pieces of a table that was cut, in an order that only its first piece says.
    """
    with_names: list[Path] = []
    without: list[Path] = []
    for path in tables:
        if head := _read_head(path, read_lines(path)):
            (with_names if _read_header(head) else without).append(path)
    if with_names and without:
        raise UserError(
            f"{with_names[0]} begins with the names of its columns, {without[0]} does not: expected"
            " them in all of these files or in none"
        )


def read_header(path: Path) -> list[str]:
    """Returns the names of a table's columns, those that are read by their fields; [] if none."""
    head = _read_head(path, read_lines(path))
    return _read_header(head) if head else []


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


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name.casefold())


def _numbered(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[str, str]]:
    return ((f"{path}:{number}", line) for number, line in lines if line.strip())


def _read_head(path: Path, lines: Iterable[tuple[int, str]]) -> list[tuple[str, str]]:
    """Reads the first two lines with text, by which `_read_header` decides."""
    head = list(islice(_numbered(path, lines), 2))
    if head and "\r" in head[0][1]:
        raise UserError(f"{head[0][0]}: lines end with a carriage return alone, expected \\n")
    return head


def _other_lines(header: str, lines: _Lines) -> Iterator[tuple[str, str]]:
    for where, line in lines:
        if line == header:
            raise UserError(
                f"{where}: the names of the columns again, expected a row: if several files were "
                "joined, keep the first one's"
            )
        yield where, line


def _read_header(head: Sequence[tuple[str, str]]) -> list[str]:
    """Returns the columns by their names; none where the first of two lines is a row."""
    where, line = head[0]
    cells = [cell.strip()[: _MAX_NAME + 1] for cell in line.replace('"', "").split("\t", 100)]
    found = find_columns(where, cells, HEADER_NAMES)
    if "id" in found and "text" in found:
        for field, i in found.items():
            cells[i] = field
        return cells
    if len(cells) == 1 or any(len(cell) > _MAX_NAME for cell in cells):
        return []
    has_digits = any(map(str.isdigit, line))
    stands_out = _has_only_words(line) and not all(_has_only_words(row) for _, row in head)
    if "id" in found or (len(found) > 1 and not has_digits) or stands_out:
        raise UserError(
            f"{where}: {first_three(cells)}: these look like the names of columns; expected id and "
            "text among them. If they are the first row, put a line of names above it"
        )
    return []


def _has_only_words(line: str) -> bool:
    return all(_WORD.fullmatch(cell.strip(' "')) for cell in line.split("\t", 100))


def _known_layout(where: str, line: str, layouts: Mapping[int, Sequence[str]]) -> Sequence[str]:
    n_columns = line.count("\t") + 1
    if n_columns not in layouts:
        known = " or ".join(map(", ".join, layouts.values()))
        raise UserError(
            f"{where}: expected {known} or a header with id and text, separated by tabs, found"
            f" {n_columns} fields"
        )
    return layouts[n_columns]


def _quoted_rows(columns: Sequence[str], lines: _Lines) -> _Rows:
    for where, line in lines:
        try:
            fields = _parse_csv(line)
        except csv.Error as error:
            if _ends_in_quotes(line):
                raise _over_several_lines(where) from None
            raise UserError(f"{where}: wrong quoting, expected csv: {error}") from None
        _check_number(where, fields, columns)
        yield where, fields


def _plain_rows(columns: Sequence[str], lines: _Lines) -> _Rows:
    previous = ("", [""])
    for where, line in lines:
        # One field too many shows the mistake; a line of nothing but tabs would make millions.
        fields = line.split("\t", len(columns))
        if len(fields) != len(columns) and _ends_in_quotes(previous[1][-1]):
            raise _over_several_lines(previous[0])
        _check_number(where, fields, columns)
        previous = (where, fields)
        yield where, fields


def _check_number(where: str, fields: Sequence[str], columns: Sequence[str]) -> None:
    if len(fields) != len(columns):
        raise UserError(
            f"{where}: expected {len(columns)} tab-separated fields ({', '.join(columns)}), "
            f"found {len(fields)}"
        )


def _check_order(columns: Sequence[str], rows: _Rows) -> _Rows:
    """Refuses what looks like another order: DPR's without its header, or texts before ids."""
    first = list(islice(rows, _ROWS_COMPARED))
    values = {name: [fields[i] for _, fields in first] for i, name in enumerate(columns)}
    sizes = {name: sum(map(len, values[name])) for name in columns}
    # Titles may be ids, and ids longer than queries, but not both; numbers are no texts.
    texts_are_ids = all(map(str.isdecimal, values["text"]))
    ids_are_texts = any(len(name.split()) > 1 for name in values["id"]) or (
        texts_are_ids and not any(map(str.isdecimal, values["id"]))
    )
    wrong = ""
    if sizes.get("title", 0) > sizes["text"]:
        wrong = "titles"
    elif ids_are_texts and sizes["id"] > sizes["text"]:
        wrong = "ids"
    if wrong and len(first) > 2:
        raise UserError(
            f"{first[0][0]}: without a header, the columns are {', '.join(columns)}, but the "
            f"{wrong} are longer than the texts: put a line with the names of the columns above"
        )
    yield from first
    yield from rows


def _over_several_lines(where: str) -> UserError:
    return UserError(
        f"{where}: wrong quoting, a quoted field goes over several lines; expected a line for each "
        "row: replace line breaks in fields by spaces"
    )


def _ends_in_quotes(line: str) -> bool:
    """Returns whether the last field of a line, or this field, is quoted and not closed."""
    if '"' not in line:
        return False
    try:
        _parse_csv(line)
    except csv.Error:
        with_end = f'{line}"'
    else:
        return False
    try:
        _parse_csv(with_end)
    except csv.Error:
        return False
    return True


def _parse_csv(line: str) -> list[str]:
    """Parses one line: a quotation mark too many must not swallow the rest of the file."""
    # csv refuses fields of more than 131,072 characters, by a limit of the whole process.
    limit = csv.field_size_limit(MAX_LINE_BYTES)
    try:
        return next(csv.reader([line], delimiter="\t", strict=True))
    finally:
        csv.field_size_limit(limit)
