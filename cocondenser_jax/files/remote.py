"""Folders on object stores, such as gs://BUCKET/FOLDER or s3://BUCKET/FOLDER, by fsspec.

A folder is written on this machine and then uploaded, `sha256.json` last: without it, the folder is
not there. It is read from a local copy. Copies lie in $COCONDENSER_CACHE, or ~/.cache/cocondenser.
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
from cocondenser_jax.files.runs import CHECKSUMS, require_intact, write_checksums
from cocondenser_jax.files.whole import new_folder

logger = logging.getLogger(__name__)

# A Path keeps one of the two slashes.
_URL = re.compile(r"([a-z][a-z0-9]+):/{1,2}([^/].*)")


def local_copy(place: Path) -> Path:
    """Returns a local folder: `place` itself, or a copy of a URL, fetched once per machine.

    A copy is compared with its checksums when it is fetched. It is fetched again if the folder at
    the URL has changed.
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
    """Yields the local folder to write: `place` itself, or one that is uploaded to a URL.

    If the block or the upload fails, a folder that `grows` stays as it is, and the next attempt
    continues it; any other is made again. A URL has the parts of all tasks or none: one that is
    written by task i of n alone is refused.
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
    if folder.exists() and not grows:
        logger.info("%s: what an upload that failed has left is made again", url)
        shutil.rmtree(folder)
    yield folder
    (folder / CHECKSUMS).unlink(missing_ok=True)  # of an upload that failed
    write_checksums(folder)
    checksums = (folder / CHECKSUMS).read_bytes()
    with _naming(f"{url}: the upload of {folder} failed"):
        for names in (list(json.loads(checksums)), [CHECKSUMS]):
            sources = [str(folder / name) for name in names]
            targets = [f"{root}/{name}" for name in names]
            store.put(sources, targets, callback=_progress("upload"))
    copy = _cached(url, checksums)
    if copy.exists():  # the same files were there before
        shutil.rmtree(folder)
    else:
        folder.rename(copy)


def _find_url(place: Path) -> str | None:
    match = _URL.fullmatch(str(place))
    return f"{match[1]}://{match[2]}" if match else None


def cache_folder() -> Path:
    """Returns the folder of what is fetched once per machine."""
    return Path(os.environ.get("COCONDENSER_CACHE") or Path.home() / ".cache/cocondenser")


def _cached(url: str, checksums: bytes = b"") -> Path:
    """Returns the path of the local copy of a URL that has these checksums."""
    return cache_folder() / hashlib.sha256(url.encode() + checksums).hexdigest()[:16]


def _progress(title: str) -> Any:
    return TqdmCallback(tqdm_kwargs={"desc": title, "unit": " files"})


@contextlib.contextmanager
def _naming(place: str) -> Iterator[None]:
    """Turns what an object store raises, which differs by library, into a UserError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{place}: {whole_message(error)}") from error
