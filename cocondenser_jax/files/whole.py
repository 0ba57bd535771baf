"""Reads plain and compressed files; writes files and folders atomically."""

import contextlib
import errno
import gzip
import hashlib
import json
import lzma
import os
import re
import shutil
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from backports import zstd
from tqdm import tqdm

from cocondenser_jax.errors import UserError, escape_control, whole_message
from cocondenser_jax.files.locks import locked

MAX_LINE_BYTES = 50_000_000  # longer lines are mistakes and would fill the memory
# Libraries' messages about a full disk; inline_container is PyTorch's, "requested and" NumPy's.
_FULL = re.compile(
    "no space left|disk is full|disk quota|file too large|inline_container|requested and",
    re.IGNORECASE,
)
_DECOMPRESS: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open, ".zst": zstd.open}


@contextlib.contextmanager
def _open(path: Path) -> Iterator[tuple[Any, Any]]:
    """Opens a file both raw and decompressed; read errors become UserErrors."""
    decompress = _DECOMPRESS.get(path.suffix, contextlib.nullcontext)
    try:
        with path.open("rb") as raw, decompress(raw) as file:
            yield raw, file
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zstd.ZstdError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot read {path}: {reason}") from error


def read_lines(
    path: Path, max_bytes: int = MAX_LINE_BYTES, *, show_progress: bool = False
) -> Iterator[tuple[int, str]]:
    """Yields the number, from 1, and the text, without its end, of every line of a UTF-8 file.

    Args:
      path: the file, plain or compressed (.gz, .xz, .zst).
      max_bytes: of a line; longer lines are never held in memory.
      show_progress: whether to show a progress bar.

    Raises:
      UserError: also for a line that is too long, or a file with carriage returns as line ends.
    """
    bar = tqdm(
        desc=escape_control(path.name),
        total=path.stat().st_size if path.is_file() else None,
        unit="B",
        unit_scale=True,
        leave=False,
        delay=1,  # small files need no bar
        disable=not show_progress,
    )
    with bar, _open(path) as (raw, file):
        number = 0
        while data := file.readline(max_bytes + 1):
            number += 1
            bar.update(raw.tell() - bar.n)
            if len(data) > max_bytes:
                raise UserError(
                    f"{path}:{number}: a line is larger than {max_bytes // 1_000_000} MB; "
                    "split it first"
                )
            # UTF-16 has zeros at its line ends, and most of its letters are valid UTF-8. After a
            # crash, a file may end in zeros alone.
            if (data.startswith(b"\0") or data.endswith(b"\0\n")) and data.strip(b"\0"):
                raise UserError(f"{path}:{number}: UTF-16, expected UTF-8")
            try:
                # A byte order mark within a file comes from another file joined to it.
                text = data.decode("utf-8").removeprefix("\ufeff")
            except UnicodeDecodeError:
                raise UserError(f"{path}:{number}: not UTF-8") from None
            text = text.rstrip("\r\n")
            yield number, text
        if number == 1 and "\r" in text:
            raise UserError(f"{path}: lines end with a carriage return alone, expected \\n")


def estimate_lines(path: Path, n_sampled: int = 10_000) -> int:
    """Estimates a file's number of lines from its first `n_sampled`; exact for shorter files.

    For a compressed file, the bytes are those of the compressed stream.
    """
    with _open(path) as (raw, file):
        n_lines = sum(1 for _ in islice(file, n_sampled))
        n_bytes = raw.tell()
    return n_lines * path.stat().st_size // n_bytes if n_lines == n_sampled else n_lines


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the non-blank lines of `read_lines`."""
    return ((number, line) for number, line in read_lines(path) if line.strip())


def parse_object(line: str | bytes, where: str) -> dict[str, Any]:
    """Parses a JSON object from a line; error messages begin with `where`."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where} is not valid JSON: {error.msg}, column {error.colno}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not valid JSON: {error}") from error
    if not isinstance(record, dict):
        raise UserError(f"{where}: expected a JSON object")
    return record


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yields an empty folder that becomes `target` if the block succeeds.

    A failed block leaves nothing; a killed one leaves `<name>.partial` until the next attempt.

    Raises:
      UserError: if `target` exists and is not an empty folder, another process is writing it, or
        it cannot be written (for example on a full disk).
    """
    require_absent(target)
    path = Path(os.path.realpath(target))
    if path == Path.cwd() or path.is_mount():
        raise UserError(f"{target} cannot be replaced: choose a new folder in it")
    partial = path.with_name(path.name + ".partial")
    with locked(path.with_name(path.name + ".partial.lock"), target):
        require_absent(target)  # still
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            with full_disk_errors(target):
                yield partial
            mode = partial.stat().st_mode & 0o666
            for file in partial.rglob("*"):
                if file.is_file() and not file.is_symlink():
                    file.chmod(mode)  # safetensors 0.8 lets only the owner read
            partial.rename(path)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


@contextlib.contextmanager
def full_disk_errors(target: Path) -> Iterator[None]:
    """Turns a library's error about a full disk into a UserError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if not _FULL.search(str(error)):
            raise
        raise UserError(f"cannot write {target}: {whole_message(error)}") from error


def require_writable(target: Path) -> None:
    """Raises a UserError if `new_file` could not write; commands call it before their work."""
    path = Path(os.path.realpath(target))
    try:
        if path.exists() and not path.is_file():
            raise UserError(f"cannot write {target}: it exists and is not a file")
        parent = next(each for each in path.parents if each.exists())
        if not parent.is_dir():
            raise UserError(f"cannot write {target}: {parent} is not a folder")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise UserError(f"cannot write {target}: {os.strerror(errno.EACCES)}")
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror or error}") from error


@contextlib.contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """Yields the path of a new, locked file; it replaces `target` only if the block succeeds."""
    require_writable(target)
    # A link such as /dev/stdout stays; the file behind it is replaced.
    path = Path(os.path.realpath(target))
    try:
        partial = path.with_name(path.name + ".partial")
        with locked(path.with_name(path.name + ".partial.lock"), path):
            try:
                yield partial
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror or error}") from error


def require_absent(target: Path) -> None:
    """Raises a UserError if `target` exists and is anything but an empty folder."""
    if target.is_dir() and not any(target.iterdir()):
        return
    if target.exists() or target.is_symlink():
        raise UserError(f"{target} already exists: choose a new folder, or remove it first")


def write_json(path: Path, value: Any) -> None:
    """Writes indented JSON atomically; creates missing folders."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Reads a JSON file of at most MAX_LINE_BYTES, plain or compressed."""
    with _open(path) as (_, file):
        data = file.read(MAX_LINE_BYTES + 1)
    if len(data) > MAX_LINE_BYTES:
        raise UserError(f"{path} is larger than {MAX_LINE_BYTES // 1_000_000} MB, the limit")
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON: {error}") from error


def read_object(path: Path, absent: dict[str, Any] | None = None) -> dict[str, Any]:
    """Reads a JSON object from a file; returns `absent`, if given, for a missing file."""
    if absent is not None and not path.is_file():
        return absent
    value = read_json(path)
    if not isinstance(value, dict):
        raise UserError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def without_surrogates(text: str) -> str:
    """Replaces lone surrogates, which are valid in JSON but not in UTF-8."""
    return text.encode(errors="replace").decode()


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_text(path: Path, text: str) -> None:
    """Replaces a file once the new one is on disk, so a kill or power cut leaves one intact."""
    # Lone surrogates, such as in file names that are not UTF-8, become JSON escapes.
    with new_file(path) as partial, partial.open("w", -1, "utf-8", "backslashreplace") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
