"""Published files: their names, addresses, sizes and checksums; finding and reading them.

Sizes and MD5 sums are those of ir_datasets (MacAvaney et al., arXiv 2103.02280).
"""

import contextlib
import errno
import gzip
import hashlib
import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from tqdm import tqdm

from cocondenser_jax.errors import UserError

_BLOCK = 1 << 20  # bytes


class Published(NamedTuple):
    """A file, or files of one kind, that others publish."""

    name: str
    url: str
    bytes: int = 0  # 0: not known
    md5: str = ""  # "": not known
    # Under which names or patterns it is found, too: unpacked, or in the folders of a program.
    others: tuple[str, ...] = ()
    members: tuple[str, ...] = ()  # the files to take from an archive


class Source(NamedTuple):
    """The place of a file: a path, or a member of an archive."""

    path: Path
    member: str = ""

    def __str__(self) -> str:
        """Names the file, and its archive."""
        return f"{self.member} of {self.path}" if self.member else str(self.path)


def find(folder: Path, wanted: Published) -> dict[str, list[Source]] | None:
    """Finds a published file below a folder, by the names of files or members; None if missing.

    Members of an archive may be unpacked.
    """
    if not wanted.members:
        paths = next(filter(None, (_below(folder, name) for name in _names(wanted))), None)
        return {wanted.name: [Source(path) for path in paths]} if paths else None
    unpacked = {member: _below(folder, member) for member in wanted.members}
    if all(unpacked.values()):
        return {member: [Source(paths[0])] for member, paths in unpacked.items()}
    archives = next(filter(None, (_below(folder, name) for name in _names(wanted))), None)
    if archives is None:
        return None
    return {member: [Source(archives[0], member)] for member in wanted.members}


def _names(wanted: Published) -> tuple[str, ...]:
    return (wanted.name, *wanted.others)


def _below(folder: Path, name: str) -> list[Path]:
    return sorted(path for path in folder.rglob(name) if path.is_file())


def require_as_published(wanted: Published, paths: Iterable[Path]) -> None:
    """Raises a UserError for a file with another size or checksum than the published one.

    Files under other names were unpacked or converted, and are not checked.
    """
    for path in paths:
        if path.name != wanted.name:
            continue
        again = f"it is cut short, damaged or another version; it is published at {wanted.url}"
        size = path.stat().st_size
        if wanted.bytes and size != wanted.bytes:
            raise UserError(f"{path} has {size:,} bytes: expected {wanted.bytes:,}; {again}")
        if wanted.md5 and (found := _md5(path)) != wanted.md5:
            raise UserError(f"{path} has the MD5 sum {found}: expected {wanted.md5}; {again}")


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    size = path.stat().st_size
    with (
        path.open("rb") as file,
        tqdm(total=size, desc=f"checking {path.name}", unit="B", unit_scale=True, delay=1) as bar,
    ):
        while block := file.read(_BLOCK):
            digest.update(block)
            bar.update(len(block))
    return digest.hexdigest()


@contextlib.contextmanager
def opened(source: Source) -> Iterator[IO[bytes]]:
    """Opens the decompressed content of a source."""
    open_it = _open_member if source.member else _open_file
    try:
        with open_it(source) as file:
            yield file
    except (OSError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile) as error:
        if getattr(error, "errno", None) == errno.ENOSPC:  # of what is written meanwhile
            raise
        raise UserError(f"cannot read {source}: {error}") from error


@contextlib.contextmanager
def _open_file(source: Source) -> Iterator[IO[bytes]]:
    decompress: Any = gzip.open if source.path.suffix == ".gz" else open
    with decompress(source.path, "rb") as file:
        yield file


@contextlib.contextmanager
def _open_member(source: Source) -> Iterator[IO[bytes]]:
    if zipfile.is_zipfile(source.path):
        with zipfile.ZipFile(source.path) as archive:
            for name in archive.namelist():
                if Path(name).name == source.member:
                    with archive.open(name) as file:
                        yield file
                    return
    else:
        # In order, since looking for a member by name would read the archive twice.
        with tarfile.open(source.path, "r|*") as packed:
            for entry in packed:
                if entry.isfile() and Path(entry.name).name == source.member:
                    yield packed.extractfile(entry) or io.BytesIO()
                    return
    raise UserError(f"{source.path} holds no {source.member}")


def read_rows(source: Source) -> Iterator[tuple[int, list[str]]]:
    """Yields the number and tab-separated fields of each non-blank line; CRLF is accepted."""
    with opened(source) as file:
        for number, line in enumerate(file, start=1):
            try:
                text = line.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError:
                raise UserError(f"{source}: line {number} is not UTF-8") from None
            if text.strip():
                yield number, text.split("\t")
