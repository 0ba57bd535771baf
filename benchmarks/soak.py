"""Kills pre-training at random moments: do the restarted runs log what an unbroken run logs?

python -m benchmarks.soak --store=runs/quickstart/store --kills=200
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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from benchmarks.results import report

KILLS_PER_RUN = 10
AIMS = "any time", "step", "checkpoint"
MOMENTS = "compile", "step", "checkpoint", "end"
CHECKPOINT_SECONDS = 0.05  # about as long as a small one is being written
OVERRIDES = (
    "--config.train.steps=40",
    "--config.checkpoint.every=5",
    "--config.log_every=1",
)


class Kill(NamedTuple):
    """What a run was doing when it was killed."""

    moment: str  # one of MOMENTS; "compile" is all that comes before the first step
    repeated: int  # logged steps that no checkpoint held


class Run(NamedTuple):
    """A run that was killed several times, then left to finish."""

    kills: list[Kill]
    survived: bool  # it finished, with the metrics of a run that was never killed


def main() -> None:
    """Kills `--kills` times and prints a table; exit status 1 if a run did not survive."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", required=True, help="a token store")
    parser.add_argument("--config", default="configs/quickstart.py:cocondenser")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json_out", type=Path)
    arguments, overrides = parser.parse_known_args()
    command = [
        *(sys.executable, "-m", "cocondenser_jax.cli", "pretrain"),
        *(f"--config={arguments.config}", f"--config.data.store={arguments.store}"),
        *(*OVERRIDES, *overrides),
    ]
    runs = []
    with (
        tempfile.TemporaryDirectory() as folder,
        tqdm(total=arguments.kills, desc="soak", unit=" kills") as bar,
    ):
        for run in soak(command, Path(folder), arguments.kills, random.Random(arguments.seed)):
            runs.append(run)
            bar.update(len(run.kills))
    report(iter(table(runs)), arguments.json_out)
    sys.exit(int(not all(run.survived for run in runs)))


def soak(
    command: Sequence[str],
    folder: Path,
    n_kills: int,
    rng: random.Random,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Run]:
    """Yields runs until they have been killed `n_kills` times in total.

    Args:
      command: of `cocondenser pretrain`, without --workdir.
      folder: for the run folders.
      n_kills: number of kills, over all runs.
      rng: draws the moments.
      environment: of the command; None for this process's own.
    """

    def start(workdir: Path) -> subprocess.Popen[bytes]:
        quiet = subprocess.DEVNULL
        where = f"--workdir={workdir}"
        return subprocess.Popen([*command, where], env=environment, stdout=quiet, stderr=quiet)

    begin = time.monotonic()
    if start(folder / "whole").wait():
        raise RuntimeError(f"this fails even when it is not killed: {' '.join(command)}")
    seconds = time.monotonic() - begin
    expected = losses(folder / "whole")
    number = done = 0
    while done < n_kills:
        workdir = folder / f"killed-{number}"
        kills = []
        for _ in range(min(KILLS_PER_RUN, n_kills - done)):
            begin = time.monotonic()
            kill = _kill(start(workdir), workdir, rng, AIMS[done % len(AIMS)], seconds)
            if kill is None:  # it finished first: the machine is faster than it was
                seconds = time.monotonic() - begin
                break
            kills.append(kill)
            done += 1
        ended_well = start(workdir).wait() == 0
        yield Run(kills, ended_well and losses(workdir) == expected)
        number += 1


def losses(workdir: Path) -> list[dict[str, float]]:
    """Returns the logged metrics without the rates, which depend on the machine."""
    return [
        {key: x for key, x in line.items() if not key.endswith(("_per_second", "_wait_share"))}
        for line in _logged(workdir)
    ]


def table(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Returns a row per moment and one for all: kills, survived, lost, steps repeated."""
    rows = []
    for moment in (*MOMENTS, "all"):
        chosen = [(k, run) for run in runs for k in run.kills if moment in (k.moment, "all")]
        survived = Counter(run.survived for _, run in chosen)
        rows.append(
            {
                "killed while": moment,
                "kills": len(chosen),
                "survived": survived[True],
                "lost": survived[False],
                "steps repeated": sum(kill.repeated for kill, _ in chosen),
            }
        )
    return rows


def _kill(
    process: subprocess.Popen[bytes], workdir: Path, rng: random.Random, aim: str, seconds: float
) -> Kill | None:
    """Kills a run at a random time after `aim`; returns None if it finished before that."""
    first = len(_logged(workdir))

    def reached() -> bool:
        if aim == "checkpoint":
            return _is_saving(workdir)
        return aim == "any time" or len(_logged(workdir)) > first

    while not reached() and process.poll() is None:
        time.sleep(0.001)
    longest = {"any time": seconds, "step": seconds / 4, "checkpoint": CHECKPOINT_SECONDS}
    try:
        process.wait(timeout=rng.uniform(0, longest[aim]))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
    if process.wait() != -signal.SIGKILL:
        return None
    logged = len(_logged(workdir))
    if _is_saving(workdir):
        moment = "checkpoint"
    elif logged <= first:
        moment = "compile"
    else:
        moment = "end" if _steps(workdir)[-1:] == [logged] else "step"
    return Kill(moment, max(0, logged - max(_steps(workdir), default=0)))


def _is_saving(workdir: Path) -> bool:
    return any((workdir / "checkpoints").glob("*tmp*"))


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
