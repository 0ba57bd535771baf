"""How a command ends when its surroundings fail: one line, and nothing half-made."""

import errno
import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from cocondenser_jax import cli
from cocondenser_jax.cli import main
from cocondenser_jax.corpus import build
from tests.world import WORDS, write_records, write_tokenizer


@pytest.fixture
def command(tmp_path):
    """`cocondenser corpus` for a text of a hundred kilobytes."""
    texts = [f"Text {n}. " + " ".join(WORDS * 3) + ". And so on, it ended." for n in range(800)]
    write_records(tmp_path / "text.jsonl", ({"text": text} for text in texts))
    write_tokenizer(tmp_path / "tokenizer", texts[:50])
    places = [f"--tokenizer={tmp_path}/tokenizer", f"--out={tmp_path}/stores/out"]
    return ["corpus", "--max_length=16", f"--corpus={tmp_path}/text.jsonl", *places]


def test_a_full_disk_leaves_no_store(
    command,
    tmp_path,
    small_disk,
    capsys,
):
    small_disk(50_000)
    assert main(command) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("cocondenser: cannot write ")
    assert not any((tmp_path / "stores").iterdir())


needs_full_device = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="needs /dev/full, which Linux has"
)


def full_device():
    return open("/dev/full", "w")


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "ascii:surrogateescape"])
def test_any_name_can_be_printed(encoding):
    code = "from cocondenser_jax.cli import main\nfrom cocondenser_jax.corpus import store\n"
    code += "store.verify_store = str\n"
    code += "main(['verify', '--store=é\\x1b[2J'])"
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    printed = subprocess.check_output([sys.executable, "-c", code], env=environment)
    name = "é" if encoding == "utf-8" else r"\xe9"
    assert printed.decode().endswith(rf"{name}\x1b[2J: all files match their checksums" "\n")


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["verify", "--store=a\udcffb"], r"a\xffb"),
        (["pretrain", "--config=a\udc80b.py", "--workdir=run"], r"a\x80b"),
        (["adapt", "--corpus=x", "--model=y", "--workdir=z", "--config.seed=a\udcffb"], r"a\xffb"),
    ],
)
def test_a_path_that_is_not_utf_8_is_refused(words, shown, capsys):
    assert main(words) == 2
    error = capsys.readouterr().err
    assert shown in error
    assert error.endswith("expected UTF-8 (rename the file or folder)\n")
    assert error.count("\n") == 1


def closed_pipe():
    read, write = os.pipe()
    os.close(read)
    return os.fdopen(write, "w")


@pytest.mark.parametrize(
    ("make_output", "status", "says"),
    [
        pytest.param(
            full_device,
            2,
            "cocondenser: [Errno 28] No space left on device\n",
            marks=needs_full_device,
        ),
        (closed_pipe, 141, ""),
    ],
)
@pytest.mark.parametrize("is_help", [True, False])
def test_an_output_that_takes_nothing(
    command,
    make_output,
    status,
    says,
    is_help,
    monkeypatch,
    capsys,
):
    with make_output() as output:
        monkeypatch.setattr("sys.stdout", output)
        assert main(["verify", "--help"] if is_help else command) == status
    # What was closed here failed no second time.
    assert capsys.readouterr().err.rpartition("\r")[2].endswith(says)


@needs_full_device
def test_a_process_says_one_line_of_a_full_or_closed_output():
    program = [sys.executable, "-m", "cocondenser_jax.cli", "verify", "--help"]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    for redirection, says in ((">/dev/full", "[Errno 28]"), (">&-", "standard output is closed")):
        shell = ["sh", "-c", f'exec "$@" {redirection}', "sh", *program]
        ended = subprocess.run(shell, stderr=subprocess.PIPE, text=True, env=environment)
        assert ended.returncode == 2
        assert ended.stderr.startswith(f"cocondenser: {says}")
        assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing_half_made(
    command,
    tmp_path,
    number,
    monkeypatch,
    capsys,
):
    def send(*arguments):
        assert (tmp_path / "stores" / "out.partial").is_dir()
        signal.raise_signal(number)

    monkeypatch.setattr(build, "cut_documents", send)
    handlers = signal.SIG_DFL, signal.default_int_handler
    before = signal.signal(number, handlers[number == signal.SIGINT])
    try:
        status = main(command)
        assert capsys.readouterr().err.endswith("cocondenser: interrupted\n")
    except SystemExit as end:
        status = end.code
    finally:
        left = signal.signal(number, before)
    assert status == 128 + number
    assert left == handlers[number == signal.SIGINT]  # a second signal ends the process
    assert not any((tmp_path / "stores").iterdir())


def test_a_signal_in_a_callback_of_the_garbage_collector_is_not_lost(monkeypatch, command, capsys):
    """Python ignores what is raised there, and JAX has such a callback."""

    def collect(*arguments):
        def send(phase, info):
            gc.callbacks.remove(send)
            signal.raise_signal(signal.SIGTERM)

        gc.callbacks.append(send)
        gc.collect()
        time.sleep(5)
        pytest.fail("the signal was lost")

    monkeypatch.setattr(build, "cut_documents", collect)
    before = [signal.signal(each, signal.SIG_DFL) for each in (signal.SIGTERM, signal.SIGALRM)]
    hook = sys.unraisablehook
    try:
        with pytest.raises(SystemExit) as ended:
            main(command)
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGALRM, before[1])
    assert ended.value.code == 128 + signal.SIGTERM
    assert sys.unraisablehook is hook
    assert "ignored" not in capsys.readouterr().err


def test_other_errors_that_python_ignores_are_reported_as_before(monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    ignored = SimpleNamespace(exc_value=ValueError("of a finalizer"))
    with cli._ended_after_all():
        sys.unraisablehook(ignored)
    assert reported == [ignored]


def test_what_a_user_can_change_about_a_file_is_one_line(monkeypatch, capsys):
    def refuse(*arguments, **options):
        raise OSError(number, os.strerror(number), "stores/wiki")

    monkeypatch.setattr(Path, "is_dir", refuse)
    for name in "EACCES EPERM EROFS ENAMETOOLONG EMFILE ENOSPC EDQUOT EFBIG".split():
        number = getattr(errno, name)
        assert main(["verify", "--store=stores/wiki"]) == 2
        said = f"cocondenser: [Errno {number}] {os.strerror(number)}: 'stores/wiki'\n"
        assert capsys.readouterr().err == said
    number = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        main(["verify", "--store=stores/wiki"])


def test_the_first_words_on_a_new_machine_are_not_those_of_a_library(capsys):
    import logging

    assert main(["mine", "--help"]) == 0
    assert not logging.getLogger("matplotlib.font_manager").isEnabledFor(logging.INFO)
    # Fine-tuning on one device would begin with advice on several.
    gathering = logging.getLogger("sentence_transformers.util.distributed")
    assert not gathering.isEnabledFor(logging.WARNING)
    assert gathering.isEnabledFor(logging.ERROR)


def test_a_command_under_nohup_does_not_end_with_its_terminal():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert main(["verify", "--help"]) == 0
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
