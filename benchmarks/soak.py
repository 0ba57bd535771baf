"""Kills commands at random moments, and compares the resumed runs with an uninterrupted one.

python -m benchmarks.soak --quickstart=runs/quickstart --kills=50
python -m benchmarks.soak --quickstart=runs/quickstart --kills=50 finetune encode corpus
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from benchmarks.results import report, write_rows
from cocondenser_jax.files.whole import file_sha256

KILLS_PER_RUN = 10
AIMS = "any time", "step", "checkpoint"
MOMENTS = "compile", "step", "checkpoint", "end"
CHECKPOINT_SECONDS = 0.05  # about the time for writing a small checkpoint


class Kill(NamedTuple):
    """The state of a run when it was killed."""

    moment: str  # one of MOMENTS; "compile" is everything before the first step
    repeated: int  # logged steps that no checkpoint held


class Run(NamedTuple):
    """A run that was killed several times, then left to finish."""

    kills: list[Kill]
    survived: bool  # whether it finished with the outcome of an uninterrupted run


class Command(NamedTuple):
    """A command to kill; {} in its words is the quickstart's folder."""

    words: str
    folder: str  # the flag of its output
    outcome: Callable[[Path], Any]  # what must be equal at the end
    # A file in the output of a finished command that refuses to run again; "": it runs again.
    finished: str = ""


def losses(workdir: Path) -> list[dict[str, float]]:
    """Returns the logged metrics without the rates, which depend on the machine."""
    return [
        {key: x for key, x in line.items() if not key.endswith(("_per_second", "_wait_share"))}
        for line in _logged(workdir)
    ]


def files(folder: Path) -> dict[str, str]:
    """Returns the checksum of every file."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): file_sha256(path) for path in paths}


COMMANDS = {
    "pretrain": Command(
        "--config=configs/quickstart.py:cocondenser --config.data.store={}/store"
        " --config.train.steps=40 --config.checkpoint.every=5 --config.log_every=1",
        "--workdir",
        losses,
    ),
    "finetune": Command(
        "--config=configs/quickstart_finetune.py --config.model.folder={0}/model"
        " --config.data.folder={0}/data"
        " --config.train.max_steps=40 --config.checkpoint.every=5 --config.log_every=1"
        " --config.data.batch_size=16",
        "--workdir",
        lambda folder: (
            losses(folder),
            files(folder / "retriever").get("model.safetensors"),
        ),
        finished="retriever",
    ),
    "encode": Command(
        "--model={0}/retriever --corpus={0}/data --shard_size=500 --max_length=16",
        "--out",
        files,
    ),
    "corpus": Command(
        "--corpus={0}/data/pretrain.jsonl --tokenizer={0}/tokenizer --max_length=32",
        "--out",
        files,
        finished="manifest.json",
    ),
}


def main() -> None:
    """Kills `--kills` times and prints a table; exit status 1 if a run did not survive."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=["pretrain"], help=", ".join(COMMANDS))
    parser.add_argument("--quickstart", required=True, help="its run folder")
    parser.add_argument("--kills", type=int, default=50, help="of each command")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json_out", type=Path)
    arguments = parser.parse_args()
    runs: dict[str, list[Run]] = {name: [] for name in arguments.names}
    for name in runs:
        words = COMMANDS[name].words.format(arguments.quickstart).split()
        command = [sys.executable, "-m", "cocondenser_jax.cli", name, *words]
        with (
            tempfile.TemporaryDirectory() as folder,
            tqdm(total=arguments.kills, desc=name, unit=" kills") as bar,
        ):
            rng = random.Random(arguments.seed)
            for run in soak(command, Path(folder), arguments.kills, rng, name=name):
                runs[name].append(run)
                bar.update(len(run.kills))
                # Keeps the results so far if it is stopped, since it takes hours.
                write_rows(rows(runs), arguments.json_out)
    report(rows(runs), arguments.json_out)
    sys.exit(int(not all(run.survived for several in runs.values() for run in several)))


def soak(
    command: Sequence[str],
    folder: Path,
    n_kills: int,
    rng: random.Random,
    environment: Mapping[str, str] | None = None,
    name: str = "pretrain",
) -> Iterator[Run]:
    """Yields runs until they have been killed `n_kills` times in total.

    Args:
      command: its words, without the flag of its output.
      folder: for its outputs.
      n_kills: number of kills, over all runs.
      rng: draws the moments.
      environment: of the command; None for this process's own.
      name: of the command in `COMMANDS`.
    """
    aims = AIMS if name == "pretrain" else AIMS[:1]
    flag, outcome, finished = COMMANDS[name][1:]

    def start(workdir: Path) -> subprocess.Popen[bytes]:
        quiet = subprocess.DEVNULL
        where = f"{flag}={workdir}"
        return subprocess.Popen([*command, where], env=environment, stdout=quiet, stderr=quiet)

    begin = first_step = time.monotonic()
    whole = start(folder / "whole")
    while whole.poll() is None and not _logged(folder / "whole"):
        time.sleep(0.01)
        first_step = time.monotonic()
    if whole.wait():
        raise RuntimeError(f"this fails even when it is not killed: {' '.join(command)}")
    seconds = time.monotonic() - begin
    longest = {"step": (time.monotonic() - first_step) / 4, "checkpoint": CHECKPOINT_SECONDS}
    expected = outcome(folder / "whole")
    number = done = 0
    while done < n_kills:
        workdir = folder / f"killed-{number}"
        kills: list[Kill] = []
        for _ in range(min(KILLS_PER_RUN, n_kills - done)):
            begin = time.monotonic()
            aim = aims[done % len(aims)]
            kill = _kill(start(workdir), workdir, rng, aim, longest.get(aim, seconds))
            if kill is None:  # it finished first: the machine is faster than it was
                # A resumed run has less to do.
                seconds = seconds if kills else time.monotonic() - begin
                break
            kills.append(kill)
            done += 1
        is_finished = bool(finished) and (workdir / finished).exists()
        ended_well = is_finished or start(workdir).wait() == 0
        yield Run(kills, ended_well and outcome(workdir) == expected)
        number += 1


def rows(runs: Mapping[str, Sequence[Run]]) -> list[dict[str, Any]]:
    """Returns a row per moment if only `pretrain` ran, otherwise a row per command."""
    if list(runs) == ["pretrain"]:
        return table(runs["pretrain"])
    return [{"command": name, **_count(several)} for name, several in runs.items()]


def table(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Returns a row per moment and one for all: kills, survived, lost, repeated steps."""
    rows = []
    for moment in (*MOMENTS, "all"):
        chosen = [
            run._replace(kills=[kill for kill in run.kills if moment in (kill.moment, "all")])
            for run in runs
        ]
        repeated = sum(kill.repeated for run in chosen for kill in run.kills)
        rows.append({"killed while": moment, **_count(chosen), "steps repeated": repeated})
    return rows


def _count(runs: Sequence[Run]) -> dict[str, int]:
    """Returns the kills of all runs, and how many of them were survived."""
    kills = Counter(run.survived for run in runs for _ in run.kills)
    return {"kills": kills.total(), "survived": kills[True], "lost": kills[False]}


def _kill(
    process: subprocess.Popen[bytes], workdir: Path, rng: random.Random, aim: str, longest: float
) -> Kill | None:
    """Kills a run up to `longest` seconds after `aim`; returns None if it finished before that."""
    first, before = max(_steps(workdir), default=0), _written(workdir)

    def has_stepped() -> bool:
        # A resumed run first rewrites the part of the log that it keeps.
        return _written(workdir) != before and len(_logged(workdir)) > first

    def reached() -> bool:
        return has_stepped() and (aim == "step" or _is_saving(workdir))

    while aim != "any time" and not reached() and process.poll() is None:
        time.sleep(0.001)
    try:
        process.wait(timeout=rng.uniform(0, longest))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
    if process.wait() != -signal.SIGKILL:
        return None
    logged = len(_logged(workdir))
    if not has_stepped():
        moment = "compile"
    elif _is_saving(workdir):
        moment = "checkpoint"
    else:
        moment = "end" if _steps(workdir)[-1:] == [logged] else "step"
    return Kill(moment, max(0, logged - max(_steps(workdir), default=0)))


def _written(workdir: Path) -> int:
    """Returns when `metrics.jsonl` was last written; 0 if there is none."""
    path = workdir / "metrics.jsonl"
    return path.stat().st_mtime_ns if path.exists() else 0


def _is_saving(workdir: Path) -> bool:
    return any((workdir / "checkpoints").glob("*.partial"))


def _steps(workdir: Path) -> list[int]:
    names = (path.name for path in (workdir / "checkpoints").glob("*"))
    return sorted(int(name) for name in names if name.isdigit())


def _logged(workdir: Path) -> list[dict[str, float]]:
    """Returns the complete lines of `metrics.jsonl`."""
    path = workdir / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


if __name__ == "__main__":
    main()
