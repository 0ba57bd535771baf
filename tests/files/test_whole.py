"""Compressed files, and folders that are whole or absent."""

import contextlib
import errno
import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
from backports import zstd
from safetensors.numpy import load_file, save_file
from tqdm import tqdm

from cocondenser_jax.errors import UserError
from cocondenser_jax.files import whole as files
from cocondenser_jax.files.whole import (
    estimate_lines,
    file_sha256,
    new_folder,
    numbered_lines,
    parse_object,
    read_json,
    read_lines,
    read_object,
    require_writable,
    without_surrogates,
    write_json,
    write_text,
)
from tests.world import COMPRESSIONS


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_lines_and_json_plain_and_compressed(tmp_path, suffix):
    compress = COMPRESSIONS[suffix]
    path = tmp_path / f"text{suffix}"
    # Archives end to end, as parallel compressors write them; the empty ones fill a buffer.
    text = compress("\ufeffé\r\n\n".encode()) + compress(b" last\n")
    path.write_bytes(text + compress(b"") * 10_000)
    assert list(read_lines(path)) == [(1, "é"), (2, ""), (3, " last")]
    path.write_bytes(compress('{"ä": 1}'.encode()))
    assert read_json(path) == {"ä": 1}


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_a_cut_or_overwritten_archive_is_an_error(tmp_path, suffix):
    text = json.dumps([f"{i * 7919 % 10007}\n" for i in range(20_000)], indent=0).encode()
    whole = COMPRESSIONS[suffix](text)
    path = tmp_path / f"text{suffix}"
    # What follows the header, at 10 to 12 bytes, is then no block of any of the formats.
    overwritten = whole[:12] + b"\xff" * 50 + whole[62:]
    for damaged in (whole[: len(whole) // 2], overwritten, b"text"):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"cannot read .*text\.\w+: \w"):
            list(read_lines(path))
        with pytest.raises(UserError, match=r"cannot read .*text\.\w+: \w"):
            read_json(path)


def test_what_follows_the_last_frame_of_zst_is_not_ignored(tmp_path):
    path = tmp_path / "text.zst"
    for rest in (bytes(3), b"garbage"):
        path.write_bytes(zstd.compress(b"1\n") + rest)
        with pytest.raises(UserError, match="cannot read"):
            list(read_lines(path))


@pytest.mark.parametrize("end", ["", "\r", "\n"])
def test_a_file_whose_lines_end_with_carriage_returns_alone_is_refused(end, tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(f"one\rtwo{end}".encode())
    said = rf"^{path}: lines end with a carriage return alone, expected \\n$"
    with pytest.raises(UserError, match=said):
        list(read_lines(path))
    path.write_bytes(f"one\r\nbar 1 %\rbar 2 %{end}".encode())
    assert list(read_lines(path)) == [(1, "one"), (2, "bar 1 %\rbar 2 %")]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("text", ["one\ntwo\n", "один\r\nдва", "x\n"])
def test_utf_16_without_a_mark_is_refused(text, encoding, tmp_path):
    """Its Latin and Cyrillic letters are valid UTF-8."""
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode(encoding))
    with pytest.raises(UserError, match=rf"^{path}:[12]: UTF-16, expected UTF-8$"):
        list(read_lines(path))


def test_bad_lines_are_named(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"good\n\xff\n")
    with pytest.raises(UserError, match=f"^{path}:2: not UTF-8$"):
        list(read_lines(path))
    path.write_bytes(b"1234\n12345\n")
    assert len(list(read_lines(path, max_bytes=6))) == 2
    with pytest.raises(UserError, match=f"^{path}:2: a line is larger than 0 MB; split it first$"):
        list(read_lines(path, max_bytes=5))
    with pytest.raises(
        UserError, match=f"^cannot read {tmp_path}/none: No such file or directory$"
    ):
        list(read_lines(tmp_path / "none"))


def test_a_folder_appears_whole(tmp_path):
    with new_folder(tmp_path / "a" / "out") as folder:
        (folder / "file").write_text("x")
        assert not (tmp_path / "a" / "out").exists()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["out"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_folder_that_fails_leaves_nothing(tmp_path, error):
    def fail():
        with new_folder(tmp_path / "out") as folder:
            (folder / "file").write_text("x")
            raise error

    with pytest.raises(error):
        fail()
    assert not any(tmp_path.iterdir())


def test_a_folder_of_any_name_is_made(tmp_path):
    with new_folder(tmp_path / "[a] é🙂'\n") as folder:
        save_file({"x": np.arange(2)}, folder / "file")
    assert load_file(tmp_path / "[a] é🙂'\n" / "file")["x"].tolist() == [0, 1]


def test_others_may_read_what_they_may_list(tmp_path):
    with new_folder(tmp_path / "new") as folder:
        (folder / "part").mkdir()
        (folder / "part" / "weights").touch(0o600)
        folder.chmod(0o770)
    assert (tmp_path / "new" / "part" / "weights").stat().st_mode & 0o777 == 0o660


def test_a_link_to_an_empty_folder_is_kept_and_its_folder_filled(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "link").symlink_to("deep")
    with new_folder(tmp_path / "link") as folder:
        (folder / "file").write_text("x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "deep" / "file").read_text() == "x"


def test_the_working_folder_is_not_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (".", str(tmp_path)):
        said = f"^{Path(name)} cannot be replaced: choose a new folder in it$"
        with pytest.raises(UserError, match=said), new_folder(Path(name)):
            pytest.fail("the shell stands in it")
    monkeypatch.setattr(Path, "is_mount", lambda path: True)
    with pytest.raises(UserError, match="cannot be replaced"), new_folder(tmp_path / "mounted"):
        pytest.fail("it cannot be renamed to")


def test_what_a_killed_attempt_left_is_removed(tmp_path):
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "old").write_text("x")
    with new_folder(tmp_path / "out"):
        pass
    assert not any((tmp_path / "out").iterdir())


def test_a_folder_that_another_process_finished_meanwhile_is_not_made_again(tmp_path, monkeypatch):
    @contextlib.contextmanager
    def locked_late(lock, what):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "theirs").touch()
        yield

    monkeypatch.setattr(files, "locked", locked_late)
    with pytest.raises(UserError, match="already exists"), new_folder(tmp_path / "out"):
        pytest.fail("the work would be for nothing")


def test_a_folder_that_is_not_empty_is_refused(tmp_path):
    (tmp_path / "mine").write_text("x")
    (tmp_path / "dangling").symlink_to("nowhere")
    for place in (tmp_path, tmp_path / "mine", tmp_path / "dangling"):
        said = f"^{place} already exists: choose a new folder, or remove it first$"
        with pytest.raises(UserError, match=said), new_folder(place):
            pytest.fail("it holds something")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        ValueError("disk is full"),
        RuntimeError("Disk quota exceeded"),
    ],
)
def test_a_full_disk_is_one_line(tmp_path, error):
    full = pytest.raises(UserError, match=r"cannot write .*out: .*(No space|full|quota)")
    with full, new_folder(tmp_path / "out"):
        raise error
    assert not any(tmp_path.iterdir())


def test_other_errors_are_not_of_the_disk(tmp_path):
    for error in (UserError("the disk is full of it"), ValueError("no such layer")):
        with pytest.raises(type(error)) as raised, new_folder(tmp_path / "out"):
            raise error
        assert raised.value is error


def test_json_holds_names_that_are_not_utf8(tmp_path):
    write_json(tmp_path / "a.json", {"é\udcff": ["\ud800"]})
    assert "".join((tmp_path / "a.json").read_text().split()) == r'{"é\udcff":["\ud800"]}'
    assert read_json(tmp_path / "a.json") == {"é\udcff": ["\ud800"]}


def test_json_round_trip_and_its_errors(tmp_path):
    write_json(tmp_path / "a.json", {"ä": 1})
    assert read_json(tmp_path / "a.json") == {"ä": 1}
    (tmp_path / "b.json").write_bytes(b"{")
    with pytest.raises(UserError, match=r"b\.json is not valid JSON"):
        read_json(tmp_path / "b.json")
    with pytest.raises(UserError, match=r"cannot read .*c\.json"):
        read_json(tmp_path / "c.json")


def test_an_object_may_be_absent_only_where_that_is_allowed(tmp_path):
    path = tmp_path / "facts.json"
    assert read_object(path, {"step": 1}) == {"step": 1}
    with pytest.raises(UserError, match=r"cannot read .*facts\.json"):
        read_object(path)
    write_json(path, [1])
    said = f"^{path}: expected a JSON object, found list$"
    with pytest.raises(UserError, match=said):
        read_object(path, {})
    write_json(path, {"step": 2})
    assert read_object(path, {"step": 1}) == read_object(path) == {"step": 2}


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_json_that_would_fill_the_memory_is_refused(tmp_path, suffix):
    path = tmp_path / f"a.json{suffix}"
    path.write_bytes(COMPRESSIONS[suffix](b"[0" + b",0" * 26_000_000 + b"]"))
    with pytest.raises(UserError, match=f"^{path} is larger than 50 MB, the limit$"):
        read_json(path)


def test_json_is_written_into_new_folders_and_not_into_files(tmp_path):
    write_json(tmp_path / "new" / "folder" / "a.json", [1])
    assert read_json(tmp_path / "new" / "folder" / "a.json") == [1]
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == ["a.json"]
    with pytest.raises(UserError, match=r"cannot write .*a\.json/b\.json: "):
        write_json(tmp_path / "new" / "folder" / "a.json" / "b.json", [1])


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("folder", "it exists and is not a file"),
        ("", "it exists and is not a file"),
        ("file/x.json", "{folder}/file is not a folder"),
        ("n" * 300, "File name too long"),
        ("pipe", "it exists and is not a file"),
        ("to_pipe", "it exists and is not a file"),
    ],
)
def test_a_file_is_not_written_to_an_unfit_place(tmp_path, place, message):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to_pipe").symlink_to("pipe")
    before = sorted(tmp_path.rglob("*"))
    said = message.format(folder=tmp_path)
    for write in (write_json, lambda target, _: require_writable(target)):
        with pytest.raises(UserError, match=f"^cannot write {tmp_path / place}: {said}$"):
            write(tmp_path / place, {})
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "pipe").is_fifo()


def test_a_link_is_kept_and_what_it_leads_to_is_replaced(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "link").symlink_to("deep/file")
    write_json(tmp_path / "link", 1)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "deep" / "file").read_text() == "1\n"


def test_what_a_power_cut_must_not_lose_is_on_the_disk(tmp_path, monkeypatch):
    target = tmp_path / "run.json"
    synced = {}

    def fsync(descriptor):
        status = os.fstat(descriptor)
        synced.setdefault(status.st_ino, (status.st_size, target.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_json(target, {"a": 1})
    # All of it, before it gets its name.
    assert synced == {target.stat().st_ino: (target.stat().st_size, False)}


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_progress_is_that_of_the_bytes_on_disk(tmp_path, monkeypatch, capsys, suffix):
    path = tmp_path / f"lines.txt{suffix}"
    path.write_bytes(COMPRESSIONS[suffix](b"a line\n" * 30_000))
    monkeypatch.setattr(files, "tqdm", lambda **of: tqdm(**of | {"mininterval": 0, "delay": 0}))
    assert sum(1 for _ in files.read_lines(path)) == 30_000
    assert capsys.readouterr().err == ""
    lines = files.read_lines(path, show_progress=True)
    assert sum(1 for _ in lines) == 30_000
    shown = capsys.readouterr().err
    assert f"lines.txt{suffix}:   0%" in shown
    assert f"lines.txt{suffix}: 100%" in shown


def test_a_folder_that_may_not_be_written_to_is_refused(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(os, "access", lambda *given: asked.append(given))
    target = tmp_path / "new" / "a.json"
    with pytest.raises(UserError, match=f"^cannot write {target}: Permission denied$"):
        require_writable(target)
    assert asked == [(tmp_path, os.W_OK | os.X_OK)]


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_lines_are_counted_or_estimated(tmp_path, suffix):
    path = tmp_path / f"lines.txt{suffix}"
    rng = np.random.default_rng(0)  # noise does not compress
    lines = b"".join(b"%s\n" % rng.bytes(40).hex().encode() for _ in range(10_000))
    path.write_bytes(COMPRESSIONS[suffix](lines))
    assert estimate_lines(path) == pytest.approx(10_000, rel=0.01)
    assert estimate_lines(path, 10_001) == 10_000
    assert estimate_lines(path, 5_000) == pytest.approx(10_000, rel=0.3)  # by buffers
    path.write_bytes(COMPRESSIONS[suffix](b"a\n\nb"))
    assert estimate_lines(path) == 3
    path.write_bytes(COMPRESSIONS[suffix](b""))
    assert estimate_lines(path) == 0
    path.write_bytes(COMPRESSIONS[suffix](b"a\n \n\nb"))
    assert [*numbered_lines(path)] == [(1, "a"), (4, "b")]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[1]", "a:1: expected a JSON object"),
        ('{"a" 1}', "a:1 is not valid JSON: Expecting ':' delimiter, column 6"),
        ("9" * 5000, "a:1 is not valid JSON: Exceeds the limit"),
        ("[" * 100_000, "a:1 is not valid JSON: "),
    ],
)
def test_a_line_that_is_no_object_is_named(line, said):
    assert parse_object('{"a": 1}', "a:1") == {"a": 1}
    with pytest.raises(UserError) as refused:
        parse_object(line, "a:1")
    assert str(refused.value).startswith(said)


def test_half_a_surrogate_becomes_a_question_mark(tmp_path):
    assert without_surrogates("a\ud800é") == "a?é"
    (tmp_path / "a").write_bytes(b"abc")
    assert file_sha256(tmp_path / "a") == hashlib.sha256(b"abc").hexdigest()


def test_text_is_written_with_line_ends_as_they_are(tmp_path):
    write_text(tmp_path / "a", "é\r\nb\n")
    assert (tmp_path / "a").read_bytes() == "é\r\nb\n".encode()
    write_json(tmp_path / "b", {"é": [1]})
    assert (tmp_path / "b").read_text() == '{\n  "é": [\n    1\n  ]\n}\n'
