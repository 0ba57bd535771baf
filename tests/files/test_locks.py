"""A second process is kept out of what the first is writing."""

import errno
import fcntl
import os
import re
import signal
import socket
import subprocess
import sys

import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.files import locks
from cocondenser_jax.files.runs import LOCK, lock_folder
from cocondenser_jax.files.whole import new_file, new_folder

HOLD = """
import sys
from pathlib import Path
from cocondenser_jax.files.whole import new_file, new_folder
from cocondenser_jax.files.runs import lock_folder
with globals()[sys.argv[1]](Path(sys.argv[2])) as partial:
    if partial:
        (partial / "grown" if partial.is_dir() else partial).touch()
    print("held", flush=True)
    sys.stdin.read()
"""


def hold(path, how="lock_folder"):
    """Starts a process that writes to a place until its input ends."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HOLD, how, str(path)]
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_held_folder_is_refused_until_its_holder_ends(tmp_path):
    folder = tmp_path / "new" / "run"
    first = hold(folder)
    here = f"process {first.pid} on {socket.gethostname()} since 20"
    said = rf"^{folder} is in use by {here}\d\d-\d\d-\d\d \d\d:\d\d:\d\d: wait until it ends, or"
    said += " choose another place$"
    with pytest.raises(UserError, match=said), lock_folder(folder):
        pytest.fail("the folder is held")
    assert [path.name for path in folder.iterdir()] == [LOCK]
    first.send_signal(signal.SIGKILL)
    first.wait()
    with lock_folder(folder):
        (folder / "grown").touch()
    assert [path.name for path in folder.iterdir()] == ["grown"]
    first.communicate()


@pytest.mark.parametrize("error", [UserError, OSError])
def test_holding_leaves_no_folder_that_was_not_there(tmp_path, error):
    with pytest.raises(error, match="refused"), lock_folder(tmp_path / "run"):
        raise error("refused")
    assert not any(tmp_path.iterdir())


def test_a_folder_that_cannot_be_held_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    file = tmp_path / "file"
    said = f"^cannot write to {file}: File exists$"
    with pytest.raises(UserError, match=said), lock_folder(file):
        pytest.fail("not a folder")
    (tmp_path / LOCK).mkdir()
    with (
        pytest.raises(UserError, match=f"^cannot write to {tmp_path}: Is a directory$"),
        lock_folder(tmp_path),
    ):
        pytest.fail("no lock")


def test_a_holder_that_is_not_known_yet_is_another_process(tmp_path, monkeypatch):
    """It has locked the file and not written its name yet; a long one is cut."""

    def refuse(*_):
        raise BlockingIOError

    monkeypatch.setattr(locks.fcntl, "lockf", refuse)
    for name, holder in (("", "another process"), ("x" * 300, "x" * 200)):
        (tmp_path / LOCK).write_text(name)
        said = f"^{tmp_path} is in use by {holder}: wait until it ends, or choose another place$"
        with pytest.raises(UserError, match=said), lock_folder(tmp_path):
            pytest.fail("the folder is held")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_written_to_with_a_warning(
    tmp_path, monkeypatch, caplog, number
):
    def fail(*_):
        raise OSError(number, "no locks here")

    monkeypatch.setattr(locks.fcntl, "lockf", fail)
    entered = []
    with lock_folder(tmp_path):
        entered.append(True)
    assert entered == [True]
    said = "cannot be locked (no locks here): start nothing else in it"
    assert caplog.messages == [f"{tmp_path} {said}"]


@pytest.mark.parametrize("make", [new_file, new_folder])
def test_what_another_process_makes_is_refused(tmp_path, make):
    out = tmp_path / "out"
    first = hold(out, make.__name__)
    with pytest.raises(UserError, match=rf"out is in use by process {first.pid} on"), make(out):
        pytest.fail("another process makes it")
    first.communicate()
    assert first.returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def is_held(folder):
    """Tells whether a new process is refused the lock of a folder."""
    code = "import sys\nfrom pathlib import Path\nfrom cocondenser_jax.errors import UserError\n"
    code += "from cocondenser_jax.files.runs import lock_folder\n"
    code += "try:\n    with lock_folder(Path(sys.argv[1])): pass\n"
    code += "except UserError: sys.exit(2)"
    status = subprocess.run([sys.executable, "-c", code, str(folder)], check=False).returncode
    assert status in (0, 2)
    return status == 2


@pytest.fixture
def between_open_and_lock(monkeypatch):
    """Gives a function whose argument is called once, after the next file is opened to lock it."""

    def insert(happen):
        lock = fcntl.lockf

        def lockf(descriptor, operation):
            monkeypatch.setattr(locks.fcntl, "lockf", lock)
            happen()
            lock(descriptor, operation)

        monkeypatch.setattr(locks.fcntl, "lockf", lockf)

    return insert


def test_a_lock_that_a_second_process_made_meanwhile_is_not_ours(tmp_path, between_open_and_lock):
    """The file that was opened is removed by its last holder, and a second process makes it."""
    holders = []

    def happen():
        (tmp_path / LOCK).unlink()
        holders.append(hold(tmp_path))

    between_open_and_lock(happen)
    with pytest.raises(UserError, match="in use by process"), lock_folder(tmp_path):
        pytest.fail("two processes hold one folder")
    assert is_held(tmp_path)
    holders[0].communicate()


def test_a_lock_that_was_removed_meanwhile_is_made_again(tmp_path, between_open_and_lock):
    between_open_and_lock((tmp_path / LOCK).unlink)
    with lock_folder(tmp_path):
        # The file is not read here: to close it would release the lock of this process.
        assert is_held(tmp_path)
    assert not is_held(tmp_path)


def test_who_locks_what_was_just_released_keeps_others_out(tmp_path, monkeypatch):
    """A second process takes the lock as soon as it is released, before this one goes on."""
    close, holders = os.close, []
    with lock_folder(tmp_path):
        held = (tmp_path / LOCK).stat()

        def close_and_let_in(descriptor):
            is_lock = os.path.samestat(os.fstat(descriptor), held)
            close(descriptor)
            if is_lock:
                monkeypatch.setattr(os, "close", close)
                holders.append(hold(tmp_path))

        monkeypatch.setattr(os, "close", close_and_let_in)
    assert is_held(tmp_path)
    assert f"process {holders[0].pid} on" in (tmp_path / LOCK).read_text()
    holders[0].communicate()
    assert not is_held(tmp_path)


def test_a_longer_name_that_a_killed_holder_left_is_replaced(tmp_path):
    (tmp_path / LOCK).write_text("x" * 300)
    holder = hold(tmp_path)
    named = re.escape(f"process {holder.pid} on {socket.gethostname()} since ")
    assert re.fullmatch(rf"{named}[\d-]+ [\d:]+", (tmp_path / LOCK).read_text())
    holder.communicate()
