"""Inserts small faults into the package, one at a time, and runs the tests that should fail.

  python -m benchmarks.mutants --per_module=40 --seed=0

Each fault (`benchmarks.faults`) is inserted into a copy of the working tree, where the tests of the
file run up to the first failure. Without a fault, all tests must pass. `--log` records outcomes, so
that the same command resumes. `equivalent_mutants.json` lists mutants that are not faults:
{"path: before → after": reason}.
"""

import argparse
import contextlib
import importlib
import itertools
import json
import multiprocessing
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults import Mutant, sample, tests_of
from benchmarks.results import report

ROOT = Path(__file__).parents[1]
PACKAGE = "cocondenser_jax"
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.json")
MODULES = (
    "files",
    "model_folder",
    "model",
    "pretrain",
    "plan",
    "corpus",
    "convert",
    "retriever/data",
    "retriever/train",
    "retriever/search",
    "retriever/compare",
)
# Libraries that do not import the package are loaded before forking, which saves 20 seconds for
# each mutant. Not bm25s (0.3.16): it starts JAX's threads, and locks would stay locked in a child.
LIBRARIES = (
    "tests.conftest flax.linen optax grain torch transformers"
    " sentence_transformers datasets faiss ir_measures hypothesis scipy.stats"
).split()
LIMIT = 1800  # seconds for all tests of a file; each test has its own limit
OPTIONS = (
    "-x -q -p no:randomly -p no:cacheprovider -p no:xdist --basetemp=temporary -o timeout=300"
).split()


def copies(folder: Path, n: int) -> Iterator[Path]:
    """Makes `n` copies of all files that git tracks or would track."""
    command = "git ls-files -z --cached --others --exclude-standard".split()
    names = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    for number in range(n):
        for name in names.split("\0")[:-1]:
            target = folder / str(number) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target, follow_symlinks=False)  # configs is a link
        yield folder / str(number)


def run(tests: list[str], copy: Path) -> str:
    """Runs tests in a process and returns the outcome, see `outcome_of`."""
    process = multiprocessing.get_context("fork").Process(target=_test, args=(tests, copy))
    process.start()
    end = time.monotonic() + LIMIT
    # `join` would also wait for a later fork, which has the same end of the pipe open.
    while process.exitcode is None and time.monotonic() < end:
        time.sleep(0.05)
    late = process.exitcode is None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid or 0, signal.SIGKILL)  # including processes of the tests
    process.join()
    if process.exitcode in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise SystemExit(f"pytest did not run {' '.join(tests)}")
    return "timeout" if late else outcome_of(process.exitcode or 0)


def outcome_of(exit_status: int) -> str:
    """Returns "noticed" if a test failed, "crashed" if a signal ended the tests, or "survived".

    After a crash, no test names the fault.
    """
    if exit_status < 0:
        return "crashed"
    return "noticed" if exit_status else "survived"


def _test(tests: list[str], copy: Path) -> None:
    os.setsid()
    output = os.open(copy / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.chdir(copy)
    sys.path.insert(0, str(copy))
    os.environ["PYTHONPATH"] = str(copy)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", PACKAGE)]:
        del sys.modules[name]
    if not Path(importlib.import_module(PACKAGE).__path__[0]).is_relative_to(copy):
        os._exit(pytest.ExitCode.USAGE_ERROR)  # the fault would be in an untested package
    os._exit(pytest.main([*OPTIONS, *tests]))


def try_mutant(mutant: Mutant, free: "queue.Queue[Path]") -> str:
    """Runs the tests of a mutant in a free copy."""
    copy = free.get()
    original = (copy / mutant.path).read_text(encoding="utf-8")
    try:
        (copy / mutant.path).write_text(mutant.source, encoding="utf-8")
        return run(tests_of(ROOT, mutant.path), copy)
    finally:
        (copy / mutant.path).write_text(original, encoding="utf-8")
        free.put(copy)


def try_all(mutants: list[Mutant], log: Path, workers: int) -> None:
    """Appends the outcome of every mutant to the log, and prints it with the time left."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = f"{name}/programs"
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # two mutants may have the same size and time
        sys.dont_write_bytecode = True
        for library in LIBRARIES:
            importlib.import_module(library)
        free: queue.Queue[Path] = queue.Queue()
        for copy in copies(Path(name), workers):
            free.put(copy)
        start, pool = time.monotonic(), ThreadPoolExecutor(workers)
        try:
            tried = {pool.submit(try_mutant, mutant, free): mutant for mutant in mutants}
            for n, future in enumerate(as_completed(tried), 1):
                mutant, outcome = tried[future], future.result()
                with log.open("a", encoding="utf-8") as file:
                    line = {"key": mutant.key, "outcome": outcome, "mutant": str(mutant)}
                    file.write(json.dumps(line) + "\n")
                left = (time.monotonic() - start) / n * (len(tried) - n) / 60
                print(f"{n}/{len(tried)}, {left:.0f} min left, {outcome}: {mutant}", flush=True)
        finally:
            pool.shutdown(cancel_futures=True)


def read_log(log: Path) -> dict[str, str]:
    """Returns the last outcome of each mutant."""
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    return {line["key"]: line["outcome"] for line in map(json.loads, text.splitlines())}


def row(
    module: str, mutants: list[Mutant], outcomes: Mapping[str, str], equivalent: Iterable[str]
) -> dict[str, Any]:
    """Counts the outcomes for a module."""
    faults = [mutant for mutant in mutants if mutant.name not in equivalent]
    survived = [str(mutant) for mutant in faults if outcomes[mutant.key] in ("survived", "crashed")]
    noticed = len(faults) - len(survived)
    return {
        "module": module,
        "tried": len(mutants),
        "no faults": len(mutants) - len(faults),
        "noticed": noticed,
        "not noticed": len(survived),
        "share": noticed / max(1, len(faults)),
        "survived": survived,
    }


def main() -> None:
    """Runs the sample and prints a row for each module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modules", nargs="+", choices=MODULES, default=MODULES)
    parser.add_argument("--per_module", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, default=Path("runs/mutants.jsonl"))
    parser.add_argument("--again", action="store_true", help="also what no test noticed before")
    parser.add_argument("--report", action="store_true", help="run nothing, count what was tried")
    parser.add_argument("--json_out", type=Path)
    args = parser.parse_args()
    mutants = {module: sample(ROOT, module, args.per_module, args.seed) for module in args.modules}
    equivalent = json.loads(EQUIVALENT.read_text(encoding="utf-8"))
    outcomes = read_log(args.log)
    wanted = {None, "survived"} if args.again else {None}
    # One of each module, again and again.
    turns = itertools.zip_longest(*mutants.values())
    everything = [mutant for turn in turns for mutant in turn if mutant]
    waiting = [
        mutant
        for mutant in everything
        if outcomes.get(mutant.key) in wanted and mutant.name not in equivalent
    ]
    if waiting and not args.report:
        try_all(waiting, args.log, workers=2)
    outcomes = read_log(args.log)
    known = outcomes.keys() | {mutant.key for mutant in everything if mutant.name in equivalent}
    tried = {module: [m for m in drawn if m.key in known] for module, drawn in mutants.items()}
    rows = (row(module, drawn, outcomes, equivalent) for module, drawn in tried.items() if drawn)
    report(rows, args.json_out)


if __name__ == "__main__":
    main()
