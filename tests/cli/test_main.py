"""How a command ends when its surroundings fail: one line, and nothing half-made."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cocondenser_jax.cli import main
from cocondenser_jax.corpus.tokenizer import save_tokenizer, train_wordpiece

WORDS = "red green blue stone river cloud tree house bird fish salt iron".split()


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """`cocondenser corpus` for a text of some hundred kilobytes."""
    texts = [f"Text {n}. " + " ".join(WORDS * 3) + ". And so on, it ended." for n in range(2000)]
    lines = (json.dumps({"text": text}) + "\n" for text in texts)
    (tmp_path / "text.jsonl").write_text("".join(lines))
    (tmp_path / "tokenizer").mkdir()
    save_tokenizer(train_wordpiece(texts[:50], 80), tmp_path / "tokenizer")
    program = [sys.executable, "-m", "cocondenser_jax.cli", "corpus", "--max_tokens=16"]
    program += [f"--tokenizer={tmp_path}/tokenizer", f"--out={tmp_path}/stores/out"]
    return [*program, f"--source={tmp_path}/text.jsonl"]


def run(command: list[str], **options: Any) -> tuple[int, str]:
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=100, **options)
    return ended.returncode, ended.stderr.splitlines()[-1]


def test_a_full_disk_leaves_no_store(command: list[str], tmp_path: Path) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    status, line = run(command, preexec_fn=small_files)
    assert status == 2, line
    assert line.startswith("cocondenser: cannot write ")
    assert not any((tmp_path / "stores").iterdir())


def test_a_full_or_closed_output_is_one_line(command: list[str]) -> None:
    with open("/dev/full", "w") as full:
        status, line = run(command, stdout=full)
    assert (status, line) == (2, "cocondenser: [Errno 28] No space left on device")
    status, line = run(["sh", "-c", 'exec "$@" >&-', "sh", *command])
    assert status == 2
    assert line.startswith("cocondenser: standard output is closed")


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "ascii:surrogateescape"])
def test_any_name_can_be_printed(encoding: str) -> None:
    code = "from cocondenser_jax.cli import main\nfrom cocondenser_jax.corpus import store\n"
    code += "store.verify_store = str\n"
    code += "main(['verify', 'store', '--store=é\\udcff\\x1b[2J'])"
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    printed = subprocess.check_output([sys.executable, "-c", code], env=environment)
    name = "é" if encoding == "utf-8" else r"\xe9"
    assert printed.decode().endswith(rf"{name}\xff\x1b[2J: every file is as it was written" "\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing_half_made(
    command: list[str], tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "stores"
    process = subprocess.Popen(command)
    try:
        while not (out / "out.partial").exists():
            assert process.poll() is None
            time.sleep(0.002)
        process.send_signal(number)
        assert process.wait(timeout=60) == 128 + number
    finally:
        process.kill()
    assert not any(out.iterdir())


def test_surroundings_that_libraries_do_not_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "x")
    assert main(["verify", "store", "--store=a"]) == 2
    assert "WORLD_SIZE is 'x': expected a whole number" in capsys.readouterr().err


def test_what_may_not_be_read_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied", "stores/wiki")

    monkeypatch.setattr(Path, "is_dir", refuse)
    assert main(["verify", "store", "--store=stores/wiki"]) == 2
    assert capsys.readouterr().err.endswith("Permission denied: 'stores/wiki'\n")
