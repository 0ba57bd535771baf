"""Reads and writes folders on object stores (gs://BUCKET/FOLDER, s3://BUCKET/FOLDER), by fsspec.

A folder is written locally and then uploaded, `sha256.json` last; a folder without that file is
incomplete. Folders are read from local copies in $COCONDENSER_CACHE, or ~/.cache/cocondenser.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped]
from fsspec.callbacks import TqdmCallback  # type: ignore[import-untyped]

from cocondenser_jax.errors import UserError, whole_message
from cocondenser_jax.files.locks import locked
from cocondenser_jax.files.runs import CHECKSUMS, require_intact, write_checksums
from cocondenser_jax.files.whole import new_folder

logger = logging.getLogger(__name__)

# pathlib reduces the two slashes to one.
_URL = re.compile(r"([a-z][a-z0-9]+):/{1,2}([^/].*)")


def local_copy(place: Path) -> Path:
    """Returns a local folder: `place` itself, or a copy of a URL, downloaded once per machine.

    A download is verified by its checksums, and repeated only when the folder at the URL changes.

    Raises:
      UserError: for a folder that is missing, incomplete or damaged, or a store that fails.
    """
    url = _find_url(place)
    if url is None:
        return place
    with _naming(url):
        store, root = fsspec.url_to_fs(url)
        if not store.exists(f"{root}/{CHECKSUMS}"):
            raise UserError(f"{url}: no such folder, or not uploaded whole (no {CHECKSUMS})")
        checksums = store.cat_file(f"{root}/{CHECKSUMS}")
        copy = _cached(url, checksums)
        if not copy.exists():
            names = [*json.loads(checksums), CHECKSUMS]
            with new_folder(copy) as partial:
                sources = [f"{root}/{name}" for name in names]
                targets = [str(partial / name) for name in names]
                store.get(sources, targets, callback=_progress("download"))
                require_intact(partial)
    return copy


@contextlib.contextmanager
def output_folder(
    place: Path, task: tuple[int, int] = (0, 1), *, grows: bool = False
) -> Iterator[Path]:
    """Yields the local folder to write: `place` itself, or one to be uploaded to a URL.

    Args:
      place: a folder or a URL.
      task: (i, n) if the folder is only part i of n; refused for URLs, which hold whole results.
      grows: whether the next attempt continues the local folder after a failure of the block or
        the upload; otherwise it starts again.

    Raises:
      UserError: for a URL that exists already or that another process writes, or a store that
        fails.
    """
    url = _find_url(place)
    if url is None:
        yield place
        return
    if task != (0, 1):
        raise UserError(f"--task writes a part of {url}: expected a folder of this machine")
    with _naming(url):
        store, root = fsspec.url_to_fs(url)
        if store.exists(f"{root}/{CHECKSUMS}"):
            raise UserError(f"{url} already exists: choose a new folder, or remove it first")
    folder = _cached(url)
    with locked(folder.with_name(f"{folder.name}.lock"), url):
        if folder.exists() and not grows:
            logger.info("%s: starting again after a failed upload", url)
            shutil.rmtree(folder)
        yield folder
        (folder / CHECKSUMS).unlink(missing_ok=True)  # from a failed upload
        write_checksums(folder)
        checksums = (folder / CHECKSUMS).read_bytes()
        with _naming(f"{url}: the upload of {folder} failed"):
            for names in (list(json.loads(checksums)), [CHECKSUMS]):
                sources = [str(folder / name) for name in names]
                targets = [f"{root}/{name}" for name in names]
                store.put(sources, targets, callback=_progress("upload"))
        copy = _cached(url, checksums)
        if copy.exists():  # the same content was uploaded before
            shutil.rmtree(folder)
        else:
            folder.rename(copy)


def _find_url(place: Path) -> str | None:
    match = _URL.fullmatch(str(place))
    return f"{match[1]}://{match[2]}" if match else None


def cache_folder() -> Path:
    """Returns the folder for downloads that are kept."""
    return Path(os.environ.get("COCONDENSER_CACHE") or Path.home() / ".cache/cocondenser")


def _cached(url: str, checksums: bytes = b"") -> Path:
    """Returns the path of the local copy of a URL with these checksums."""
    return cache_folder() / hashlib.sha256(url.encode() + checksums).hexdigest()[:16]


def _progress(title: str) -> Any:
    return TqdmCallback(tqdm_kwargs={"desc": title, "unit": " files"})


@contextlib.contextmanager
def _naming(place: str) -> Iterator[None]:
    """Turns any error of an object store's library into a UserError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{place}: {whole_message(error)}") from error
