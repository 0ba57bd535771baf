"""Chooses the files to read from a folder and its subfolders: of one suffix, or by a pattern."""

import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cocondenser_jax.errors import UserError, first_three, log_once
from cocondenser_jax.files.tables import PASSAGE_FILES, is_data_file, plain_name, split_columns

logger = logging.getLogger(__name__)

_ACCEPTED_NAME = re.compile(
    r".*(\.(?:(?:txt|md|jsonl|tsv)(?:\.(?:gz|xz|zst))?|parquet))", re.DOTALL
)
# Wildcards, longest first: any folders, any name, any character.
_WILDCARDS = {"**/": r"(?:.*/)?", "*": r"[^/]*", "?": r"[^/]"}


class Place(NamedTuple):
    """The location of a source's documents, unless it is a dataset's name."""

    path: Path
    pattern: str  # of the files of a folder; "" for a file, or all files of one suffix
    columns: tuple[str, ...]  # of the tables, if the user has named them


def find_place(source: str | Path) -> Place:
    """Parses a source: a path, optionally with a pattern (docs/**/*.md) or columns."""
    name, columns = split_columns(source)
    parts = Path(name).parts
    wild = next((i for i, part in enumerate(parts) if "*" in part or "?" in part), len(parts))
    if wild == len(parts) or Path(name).exists():
        return Place(Path(name), "", columns)
    return Place(Path(*parts[:wild]), "/".join(parts[wild:]), columns)


def is_accepted(name: str) -> bool:
    """Returns whether documents are read from a file of this name, alone or in a folder."""
    return _ACCEPTED_NAME.fullmatch(name) is not None


def find_files(folder: Path, pattern: str) -> list[str]:
    """Finds the files to read, and logs their names and those of all others.

    For a data set, only its passages; otherwise the files that match a pattern, or all documents,
    which must then have the same suffix. Other files named like those of a data set (queries,
    judgments, passages in other folders) are not documents. Names that begin with a dot are
    skipped, and links to folders are not followed.

    Returns:
      Paths in `folder`, in their order.
    """
    found = [*_list_tree(folder)]
    files = [] if pattern else _passages(found)
    if not files:
        matches = re.compile(_to_regex(pattern or "**/*")).fullmatch
        files = [
            name
            for name in found
            if is_accepted(name) and not is_data_file(Path(name)) and matches(name)
        ]
        if not pattern:
            files = _corpus_of_hub(files)
            _require_one_suffix(folder, files)
    others = sorted({*found}.difference(files))
    if not files:
        has = f"only {first_three(others)}" if others else "nothing that is not hidden"
        raise UserError(
            f"folder {folder} holds no .txt, .md, .jsonl, .tsv or .parquet file"
            f"{f' of the pattern {pattern}' if pattern else ''}, and no folder in it does (there is"
            f" {has})"
        )
    if len(files) > 1 or others:
        rest = f"; not {first_three(others)}" if others else ""
        log_once(logger, f"{folder}: reading {first_three(files)}{rest}", logging.INFO)
    return files


def require_not_read(source: str | Path, out: Path) -> None:
    """Raises a UserError for an output in a folder of documents, where it would be read as one.

    Outputs may go into a data set, whose passages are in one file, and into hidden folders.
    """
    place = Path(os.path.realpath(out))
    top = Path(os.path.realpath(find_place(source).path))
    if not top.is_dir() or not place.is_relative_to(top) or _passages(os.listdir(top)):
        return
    if not any(name.startswith(".") for name in place.relative_to(top).parts):
        raise UserError(
            f"{out} is in the folder of the documents, {source}, and would be read as one of them:"
            " choose another place"
        )


def _passages(names: Sequence[str]) -> list[str]:
    """Returns the file of passages among the names in a folder, the plain one before its archive.

    [] if the folder is not a data set.
    """
    for known in PASSAGE_FILES:
        for name in sorted(names):
            if "/" not in name and plain_name(Path(name)) == known:
                return [name]
    return []


def _corpus_of_hub(files: Sequence[str]) -> list[str]:
    """Leaves out queries and judgments in the layout of data sets on the Hub.

    It has the folders corpus, queries and qrels, with files of any name.
    """
    if not any(name.startswith("corpus/") for name in files):
        return [*files]
    return [name for name in files if not name.startswith(("queries/", "qrels/"))]


def _require_one_suffix(folder: Path, files: Sequence[str]) -> None:
    """Raises a UserError for several suffixes: it is unclear which files are documents."""
    first: dict[str, str] = {}
    for name in files:
        if match := _ACCEPTED_NAME.fullmatch(name):
            first.setdefault(match[1], name)
    if len(first) > 1:
        kinds = ", ".join(first.values())
        raise UserError(
            f"folder {folder} holds documents of {len(first)} kinds ({kinds}): choose them by a"
            f" pattern, such as '{folder}/**/*{next(iter(first))}'"
        )


def _to_regex(pattern: str) -> str:
    parts = re.split(r"(\*\*/|\*|\?)", pattern)
    return "(?s:" + "".join(_WILDCARDS.get(part, re.escape(part)) for part in parts) + ")"


def _list_tree(folder: Path) -> list[str]:
    """Returns the sorted relative paths of all files and of links to folders."""

    def refuse(error: OSError) -> None:
        raise UserError(f"cannot read {error.filename}: {error.strerror}") from error

    found = []
    for place, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        paths = (os.path.join(place, name) for name in (*links, *files) if name[0] != ".")
        found += [os.path.relpath(path, folder) for path in paths]
    return sorted(found)
