"""Runs a table in parts, on machines that are available for minutes.

  python -m experiments.parts design_gpu/arms --state=state.tar --minutes=12 --data=data

Each part may run on another, empty machine. It unpacks the state, if there is one, runs steps of
the table until the time is over, and replaces the state: the results so far, and the models that
later steps need, with parameters in float16. A step that does not finish in time is repeated by the
next part. Text is not in the state: it is taken from --workdir or made from --data.
"""

import argparse
import io
import subprocess
import tarfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load, save

from cocondenser_jax.errors import UserError, lookup
from cocondenser_jax.files.whole import new_file
from experiments.protocol import protocol_file, require_protocol
from experiments.reproduce import EXPERIMENTS
from papers.program import execute
from papers.steps import (
    Command,
    Folders,
    Refused,
    Step,
    finished,
    require_data,
    run_steps,
    unfinished,
)
from papers.tables import goals_of, load_tables

Execute = Callable[[Command, float], int]  # takes the remaining seconds
_TRAINING = ("pretrain", "finetune")


def run_part(wanted: Sequence[Step], folders: Folders, seconds: float, run: Execute) -> int:
    """Runs steps until all are finished or the time is over; returns the number of steps left.

    `run` raises a TimeoutExpired for a command that takes longer than its limit.
    """
    end = time.monotonic() + seconds

    def in_time(command: Command) -> int:
        left = end - time.monotonic()
        if left <= 0:
            raise subprocess.TimeoutExpired(command, seconds)
        return run(command, left)

    try:
        run_steps(unfinished(wanted, folders), folders, in_time)
    except subprocess.TimeoutExpired as late:
        print(f"no time is left for: {' '.join(late.cmd)}", flush=True)
    return len(unfinished(wanted, folders))


def pack(wanted: Sequence[Step], folders: Folders, state: Path, *others: Path) -> None:
    """Writes a tar file with the inputs of the next part and some other files."""
    kept = finished(wanted, folders)
    # Temporary results are too large, and are made again.
    results = (path for path, step in kept.items() if not step.is_temporary)
    files = [*others, *(path for path in results if path.suffix == ".json")]
    for path, step in kept.items():
        if any(words[1] in _TRAINING for words in step.commands):
            files += [file for file in path.rglob("*") if file.is_file()]
    with new_file(state) as partial, tarfile.open(partial, "w") as archive:
        for file in sorted(files):
            content = _cast(file, file.read_bytes(), np.float32, np.float16)
            entry = tarfile.TarInfo(file.relative_to(folders.work).as_posix())
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def unpack(state: Path, work: Path) -> None:
    """Unpacks a file of `pack` into a working folder, except for existing files.

    Raises:
      UserError: if it is not a file of `pack`.
    """
    try:
        with tarfile.open(state) as archive:
            for entry in archive.getmembers():
                # Refuses entries outside of the folder.
                content = archive.extractfile(tarfile.data_filter(entry, str(work)))
                target = work / entry.name
                if content and not target.exists():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(_cast(target, content.read(), np.float16, np.float32))
    except tarfile.TarError as error:
        raise UserError(f"{state} is no state that a part left: {error}") from error


def _cast(file: Path, content: bytes, old: npt.DTypeLike, new: npt.DTypeLike) -> bytes:
    """Returns a file's content, with parameters in another float format."""
    if file.suffix != ".safetensors":
        return content
    tensors = load(content)
    cast = {name: x.astype(new) if x.dtype == old else x for name, x in tensors.items()}
    return save(cast, metadata={"format": "pt"})


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", help="such as design_gpu/arms")
    parser.add_argument("--state", type=Path, required=True, help="a tar file, at first absent")
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--workdir", type=Path, default=Path("runs/parts"))
    parser.add_argument("--data", type=Path, default=Path("data"))
    return parser


def main(arguments: Sequence[str] | None = None, run: Execute = execute) -> None:
    """Runs the command line; a UserError is one line and exit status 2."""
    parser = make_parser()
    given = parser.parse_args(arguments)
    folders = Folders(given.workdir, given.data)
    try:
        table = lookup(load_tables(EXPERIMENTS.folder), given.table, "table")
        wanted = [goal.step for goal in goals_of(table, [], EXPERIMENTS.recipes)]
        if given.state.exists():
            unpack(given.state, folders.work)
        require_data(unfinished(wanted, folders))
        require_protocol(given.table, folders)
        try:
            n_left = run_part(wanted, folders, given.minutes * 60, run)
        finally:  # also after a failed command
            pack(wanted, folders, given.state, *protocol_file(given.table, folders))
    except Refused:
        parser.exit(2)
    except UserError as error:
        parser.exit(2, f"parts: {error}\n")
    print(f"{n_left} steps are left; {given.state} has {given.state.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
