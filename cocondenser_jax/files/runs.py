"""Folders that grow: their locks, settings, numbered checkpoints, checksums and task folders."""

import contextlib
import json
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from cocondenser_jax.errors import UserError, first_three
from cocondenser_jax.files.locks import locked
from cocondenser_jax.files.whole import file_sha256, read_object, require_absent, write_json

logger = logging.getLogger(__name__)

CHECKSUMS = "sha256.json"
LOCK = ".cocondenser.lock"  # a name of our own, since the file is overwritten and removed

T = TypeVar("T")


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Creates and locks a folder that grows; a second process gets a UserError at once.

    Child processes do not inherit the lock. A process may lock a folder once at a time.
    """
    created = not folder.exists()
    try:
        with locked(folder / LOCK, folder):
            yield
    finally:
        if created:
            with contextlib.suppress(OSError):  # it is empty only if the block was refused
                folder.rmdir()


def require_own(path: Path, also: Collection[str] = ()) -> None:
    """Raises a UserError for a folder with other content but without its first file.

    Args:
      path: the folder's first file, see `start_or_compare`.
      also: names of files that may exist before it.
    """
    if path.exists():
        return
    # The lock, and leftovers of a killed process.
    ours = {LOCK}
    for name in (path.name, *also):
        ours |= {name, f"{name}.partial", f"{name}.partial.lock"}
    folder = path.parent
    if not folder.is_dir() or any(each.name not in ours for each in folder.iterdir()):
        require_absent(folder)


def start_or_compare(
    path: Path,
    settings: Mapping[str, Any],
    free: Collection[str] = (),
    also: Collection[str] = (),
) -> dict[str, Any]:
    """Writes a new folder's settings, or compares them with those of an earlier start.

    Args:
      path: the folder's first file, JSON.
      settings: nested by name, JSON values.
      free: dotted names that may differ when the work resumes, including all names below them.
      also: see `require_own`.

    Returns:
      What is in the file.

    Raises:
      UserError: naming each difference, or if the folder has other content.
    """
    folder = path.parent
    require_own(path, also)
    as_read: dict[str, Any] = json.loads(json.dumps(settings))
    if not path.exists():
        write_json(path, as_read)
        return as_read
    started = read_object(path)
    earlier, now = flatten(started), flatten(as_read)
    differences = [
        f"{name}={earlier.get(name)!r}, now it is {now.get(name)!r}"
        for name in earlier | now
        if earlier.get(name) != now.get(name)
        and not any(f"{name}.".startswith(f"{each}.") for each in free)
    ]
    if differences:
        raise UserError(
            f"{folder} was started with {'; '.join(differences)}: choose a new folder, or remove it"
            " first"
        )
    return started


def require_run_folder(folder: Path, *kinds: str) -> None:
    """Raises a UserError for a folder without any of the files `kinds` that a run starts with."""
    if not any((folder / name).is_file() for name in kinds):
        page = folder / "report.html"  # of adapt, compare or quickstart
        hint = f"; the command that made it wrote {page}" if page.is_file() else ""
        raise UserError(f"{folder} is not a run folder: it has no {' and no '.join(kinds)}{hint}")


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens nested settings to dotted names."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def numbered_folders(parent: Path, prefix: str = "") -> dict[int, Path]:
    """Returns the folders in `parent` named `prefix` plus a number, by number, ascending."""
    names = [path.name for path in parent.glob("*") if path.name.startswith(prefix)]
    numbers = [name.removeprefix(prefix) for name in names]
    steps = sorted(int(number) for number in numbers if number.isdecimal())
    return {step: parent / f"{prefix}{step}" for step in steps}


def newest_intact(folders: Mapping[int, Path], load: Callable[[Path], T]) -> tuple[int, T]:
    """Loads the newest intact checkpoint, with a warning for each newer, damaged one.

    Args:
      folders: checkpoints by step, at least one.
      load: loads a checkpoint, or raises a UserError for a damaged one.

    Returns:
      The step and the value of `load`.

    Raises:
      UserError: if no checkpoint is intact.
    """
    steps = sorted(folders)
    for step in reversed(steps):
        try:
            return step, load(folders[step])
        except UserError as error:
            logger.warning("%s; trying an earlier one", error)
    raise UserError(
        f"{folders[steps[0]].parent.parent}: none of its checkpoints"
        f" ({', '.join(map(str, steps))}) is intact; to start again, choose a new folder"
    )


def write_checksums(folder: Path) -> None:
    """Flushes every file below `folder` to disk and writes their SHA-256 to `sha256.json`."""
    checksums = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        checksums[path.relative_to(folder).as_posix()] = file_sha256(path)
    write_json(folder / CHECKSUMS, checksums)


def require_intact(folder: Path) -> None:
    """Raises a UserError if a file changed since `write_checksums`, or has no checksums."""
    try:
        checksums = read_object(folder / CHECKSUMS)
    except UserError:
        checksums = {CHECKSUMS: "none"}
    for name, sha256 in checksums.items():
        path = folder / name
        # Not Path.is_file(), which raises an error for a name that is too long.
        if not os.path.isfile(path) or file_sha256(path) != sha256:
            raise UserError(f"{folder} is damaged ({name} is not what was saved)")


def task_folder(folder: Path, task: tuple[int, int]) -> Path:
    """Returns the folder of task i of n, from 0; `folder` itself if n is 1."""
    index, n_tasks = task
    if not 0 <= index < n_tasks:
        raise UserError(f"task {index}/{n_tasks}: expected i/n with 0 <= i < n")
    return folder / f"task-{index:05d}-of-{n_tasks:05d}" if n_tasks > 1 else folder


def task_folders(folder: Path) -> list[Path]:
    """Returns the folders of all tasks in order; `folder` itself if there are none.

    Raises:
      UserError: if the folder of a task is missing, or belongs to another number of tasks.
    """
    present = {path.name for path in folder.glob("task-*-of-" + "[0-9]" * 5)}
    if not present:
        return [folder]
    n_tasks = max(int(name[-5:]) for name in present)
    expected = [task_folder(folder, (index, n_tasks)) for index in range(n_tasks)]
    names = [path.name for path in expected]
    if missing := [name for name in names if name not in present]:
        raise UserError(f"{folder} lacks {first_three(missing)}")
    if unexpected := sorted(present.difference(names)):
        raise UserError(
            f"{folder} also holds {first_three(unexpected)}, from another number of tasks"
        )
    return expected


def require_same(
    folders: Sequence[Path], manifests: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> None:
    """Raises a UserError if the manifests of several tasks differ in any of `names`."""
    for folder, manifest in zip(folders, manifests, strict=True):
        if differing := [name for name in names if manifest.get(name) != manifests[0].get(name)]:
            raise UserError(f"{folder} differs from {folders[0]} in its {first_three(differing)}")
