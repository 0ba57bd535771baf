"""Puts small faults into the package, one at a time: do its tests notice?

  python -m benchmarks.mutants --per_module=40 --seed=0

Each fault (`benchmarks.faults`) is put into a copy of the working tree, where the tests of the file
run up to the first failure: without a fault all tests must pass. `--log` holds what was found: the
same command resumes. Mutants that are no faults, and why, are in `equivalent_mutants.json`:
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
# They import nothing of the package: a fork gives them to each mutant, which saves 20 seconds. Not
# so bm25s (0.3.16), which starts JAX's threads: its locks would stay locked in the child.
LIBRARIES = (
    "tests.conftest flax.linen optax grain torch transformers"
    " sentence_transformers datasets faiss ir_measures hypothesis scipy.stats"
).split()
LIMIT = 1800  # seconds for all tests of a file; each test has its own limit
OPTIONS = (
    "-x -q -p no:randomly -p no:cacheprovider -p no:xdist --basetemp=temporary -o timeout=300"
).split()


def copies(folder: Path, n: int) -> Iterator[Path]:
    """Copies what git tracks, or would track, `n` times."""
    command = "git ls-files -z --cached --others --exclude-standard".split()
    names = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    for number in range(n):
        for name in names.split("\0")[:-1]:
            target = folder / str(number) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target, follow_symlinks=False)  # configs is a link
        yield folder / str(number)


def run(tests: list[str], copy: Path) -> str:
    """Runs tests in a process, and returns what `outcome_of` says of how it ended."""
    process = multiprocessing.get_context("fork").Process(target=_test, args=(tests, copy))
    process.start()
    end = time.monotonic() + LIMIT
    # `join` would also wait for a later fork, which holds the same end of a pipe.
    while process.exitcode is None and time.monotonic() < end:
        time.sleep(0.05)
    late = process.exitcode is None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid or 0, signal.SIGKILL)  # and what the tests have started
    process.join()
    if process.exitcode in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise SystemExit(f"pytest did not run {' '.join(tests)}")
    return "timeout" if late else outcome_of(process.exitcode or 0)


def outcome_of(exit_status: int) -> str:
    """Returns "noticed" if a test failed, "crashed" if the tests were ended by a signal.

    No test names the fault then: only whoever reads the stack would. Else "survived".
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
        os._exit(pytest.ExitCode.USAGE_ERROR)  # the fault would be in a package that nobody tests
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
    """Counts what the tests noticed of a module."""
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
