"""Output folders that are whole or absent, JSON files, and checksums."""

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cocondenser_jax.errors import UserError


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yields an empty folder beside `target` that becomes `target` if the block succeeds.

    A block that fails, or is interrupted, leaves nothing behind; one that was killed leaves
    `<name>.partial`, which the next attempt removes.

    Raises:
      UserError: if `target` already exists and is not an empty folder.
    """
    require_absent(target)
    partial = target.with_name(target.name + ".partial")
    if partial.exists():
        shutil.rmtree(partial)
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"cannot create {target}: {error.strerror}") from error
    try:
        yield partial
        if target.exists():
            target.rmdir()
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def require_absent(target: Path) -> None:
    """Raises a UserError if `target` exists and is anything but an empty folder."""
    if target.is_dir() and not any(target.iterdir()):
        return
    if target.exists() or target.is_symlink():
        raise UserError(f"{target} already exists: choose a new folder, or remove it first")


def write_json(path: Path, value: Any) -> None:
    """Writes `value` to `path` as indented JSON, whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(path)


def read_json(path: Path) -> Any:
    """Reads a JSON file.

    Raises:
      UserError: if it is missing, not UTF-8, or not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}") from error


def forget_steps_after(path: Path, step: int) -> None:
    """Cuts a `metrics.jsonl` back to the steps up to `step`, for a run that goes on from there.

    What an interrupted run logged after its last checkpoint will be logged again; a last line that
    a kill cut short goes too. A file that is not there becomes an empty one.
    """
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    kept = [line for line in lines if json.loads(line)["step"] <= step]
    path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
