"""Chooses what to read of a folder: the files in it and in all folders below it."""

import logging
import os
import re
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from cocondenser_jax.errors import UserError, first_three, log_once
from cocondenser_jax.files.tables import (
    PASSAGE_FILES,
    is_data_file,
    plain_name,
    plain_suffix,
    split_columns,
)

logger = logging.getLogger(__name__)

_ACCEPTED_NAME = re.compile(r".*\.((txt|md|jsonl|tsv)(\.(gz|xz|zst))?|parquet)", re.DOTALL)


def is_accepted(name: str) -> bool:
    """Returns whether documents are read from a file of this name, alone or in a folder."""
    return _ACCEPTED_NAME.fullmatch(name) is not None


def find_files(folder: Path) -> list[str]:
    """Finds the files to read, and logs their names and those of all others.

    Names that begin with a dot are left out. A folder that several links lead to is read once, and
    none that has `folder` in it, so links may go in circles.

    Returns:
      Paths in `folder`, see `choose_files`.
    """
    found = _visible(folder) if _is_data_set(folder) else _list_tree(folder)
    try:
        files = choose_files(name for name in found if os.path.isfile(folder / name))
    except UserError as error:
        raise UserError(f"folder {folder} {error}") from None
    others = sorted({*found}.difference(files))
    if not files:
        has = f"only {first_three(others)}" if others else "nothing that is not hidden"
        raise UserError(
            f"folder {folder} holds no .txt, .md, .jsonl, .tsv or .parquet file, and no folder in"
            f" it does (there is {has})"
        )
    if len(files) > 1 or others:
        rest = f"; not {first_three(others)}" if others else ""
        log_once(logger, f"{folder}: reading {first_three(files)}{rest}", logging.INFO)
    return files


def require_not_read(source: str | Path, out: Path) -> None:
    """Raises a UserError for an output in a folder of documents, which would be read with them.

    A data set's passages are in one file, and hidden folders are not read: both may have outputs.
    """
    place = Path(os.path.realpath(out))
    top = Path(os.path.realpath(split_columns(source)[0]))
    if not top.is_dir() or not place.is_relative_to(top) or _is_data_set(top):
        return
    if not any(name.startswith(".") for name in place.relative_to(top).parts):
        raise UserError(
            f"{out} lies in the folder of the documents, {source}, and would be read with them:"
            " choose another place"
        )


def choose_files(paths: Iterable[str]) -> list[str]:
    """Chooses what to read of a folder: all files of documents, or a data set's passages alone.

    A README.md describes the files beside it. It is a document among others in Markdown only. Files
    with the names of a data set's are no documents: queries, judgments, passages in other folders.
    Beside a file, its archive is not read, nor is a second archive of the same name.

    Args:
      paths: of all files, relative to the folder.

    Raises:
      UserError: if Markdown is beside files of other kinds: which of them are documents is not
        known. The message continues the name of the folder.
    """
    files = sorted(filter(is_accepted, paths))
    # From last to first: a plain file goes before its archive.
    by_name = {str(Path(path).with_name(plain_name(Path(path)))): path for path in reversed(files)}
    for name in PASSAGE_FILES:
        if name in by_name:
            return [by_name[name]]
    files = sorted(path for path in by_name.values() if not is_data_file(Path(path)))
    markdown = [path for path in files if plain_suffix(Path(path)) == ".md"]
    others = sorted({*files}.difference(markdown))
    pages = [path for path in markdown if plain_name(Path(path)).lower() != "readme.md"]
    if not pages:
        return others
    if others:
        raise UserError(
            f"holds Markdown ({pages[0]}) and other files ({others[0]}): expected documents of"
            " one of the two kinds, and the other kind in another folder"
        )
    return files


def _is_data_set(folder: Path) -> bool:
    return any(plain_name(Path(name)) in PASSAGE_FILES for name in _visible(folder))


def _visible(folder: Path) -> list[str]:
    """Returns the names in a folder, in their order, without those that begin with a dot."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError as error:
        raise UserError(f"cannot read {folder}: {error.strerror}") from error


def _list_tree(folder: Path) -> list[str]:
    """Returns the relative paths of all files, and of the folders that are not gone through."""
    top = Path(os.path.realpath(folder))
    found = []
    seen = set()
    pending = deque([""])  # links last: a folder in the tree has its own name, not that of a link
    while pending:
        place = pending.popleft()
        real = Path(os.path.realpath(folder / place))
        if real in seen or real in top.parents:
            found.append(place)
            continue
        seen.add(real)
        for name in _visible(folder / place):
            path = os.path.join(place, name)
            if not os.path.isdir(folder / path):
                found.append(path)
            elif os.path.islink(folder / path):
                pending.append(path)
            else:
                pending.appendleft(path)
    return found
