"""Folders on an object store; fsspec's memory file system stands in for one."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest

from cocondenser_jax.cli import main
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.remote import cache_folder, local_copy, output_folder
from cocondenser_jax.files.whole import new_folder
from tests.world import make_texts, write_records, write_tokenizer

URL = "memory://bucket/made/here"


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    """The file system, empty; it holds bytes by their names, such as /bucket/made/here/words."""
    monkeypatch.setenv("COCONDENSER_CACHE", str(tmp_path / "cache"))
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()


def path(tmp_path, url=URL):
    """The URL as the command line hands it over: a Path, with one slash less."""
    made = type(tmp_path)(url)
    assert str(made) == url.replace("://", ":/")
    return made


def resume(tmp_path):
    """Continues what an attempt that failed has left."""
    return output_folder(path(tmp_path), grows=True)


def write(tmp_path, text="some words"):
    with output_folder(path(tmp_path)) as folder, new_folder(folder) as partial:
        (partial / "inner").mkdir()
        (partial / "inner" / "words").write_text(text)
        (partial / "none").touch()
    return folder


def contents(folder):
    files = [each for each in folder.rglob("*") if each.is_file()]
    return {str(each.relative_to(folder)): each.read_bytes() for each in files}


def test_a_local_folder_is_its_own_copy(tmp_path):
    for name in ("made", "gs", "c:/made", "hf:name", str(tmp_path)):
        with output_folder(path(tmp_path, name)) as folder:
            assert folder == local_copy(path(tmp_path, name)) == type(tmp_path)(name)
    assert not (tmp_path / "cache").exists()


def test_what_is_read_is_what_was_written(tmp_path, store):
    written = write(tmp_path)
    names = ["inner/words", "none", "sha256.json"]
    assert sorted(store.find("/bucket")) == [f"/bucket/made/here/{name}" for name in names]
    assert not written.exists()  # it is the copy now
    copy = local_copy(path(tmp_path))
    assert sorted(contents(copy)) == names
    assert (copy / "inner" / "words").read_text() == "some words"
    shutil.rmtree(tmp_path / "cache")
    assert contents(local_copy(path(tmp_path))) == {
        name: store.cat_file(f"/bucket/made/here/{name}") for name in names
    }


def test_a_copy_is_fetched_once_and_again_when_the_folder_has_changed(tmp_path, store):
    write(tmp_path)
    first = local_copy(path(tmp_path))
    store.rm("/bucket/made/here/inner/words")  # nothing but the checksums is read again
    assert local_copy(path(tmp_path)) == first
    store.rm("/bucket/made/here/sha256.json")
    write(tmp_path, "other words")
    second = local_copy(path(tmp_path))
    assert (second / "inner" / "words").read_text() == "other words"
    assert (first / "inner" / "words").read_text() == "some words"


@pytest.mark.parametrize("name", ["inner/words", "none"])
def test_a_damaged_upload_is_refused_and_leaves_no_copy(tmp_path, store, name):
    write(tmp_path)
    shutil.rmtree(tmp_path / "cache")
    store.pipe_file(f"/bucket/made/here/{name}", b"changed")
    with pytest.raises(UserError, match=f"is damaged .{name} is not what was saved"):
        local_copy(path(tmp_path))
    assert not list((tmp_path / "cache").iterdir())


def test_an_upload_that_fails_is_not_there_and_can_be_repeated(tmp_path, store, monkeypatch):
    put = type(store).put

    def fail(self, sources, *others, **options):
        if "sha256.json" in sources[0]:
            raise ConnectionError("line is down\nand a long trace")
        put(self, sources, *others, **options)

    monkeypatch.setattr(type(store), "put", fail)
    message = (
        f"^{URL}: the upload of {tmp_path}/cache/[0-9a-f]* failed: line is down and a long trace$"
    )
    with pytest.raises(UserError, match=message):
        write(tmp_path)
    said = rf"^{URL}: no such folder, or not uploaded whole \(no sha256\.json\)$"
    with pytest.raises(UserError, match=said):
        local_copy(path(tmp_path))
    monkeypatch.undo()
    monkeypatch.setenv("COCONDENSER_CACHE", str(tmp_path / "cache"))
    with resume(tmp_path) as folder:
        (folder / "none").write_text("now some")
    assert (local_copy(path(tmp_path)) / "none").read_text() == "now some"


def fail_at(monkeypatch, system, name, number):
    """Makes call `number` of a method of the store, from 0, write half of a file and fail."""
    method, calls = getattr(type(system), name), []

    def fail(self, source, target, **options):
        calls.append(source)
        if len(calls) == number + 1:
            if name == "put_file":
                self.pipe_file(target, b"half of it")
            else:
                Path(target).parent.mkdir(exist_ok=True)
                Path(target).write_bytes(b"half of it")
            raise ConnectionError("line is down")
        method(self, source, target, **options)

    monkeypatch.setattr(type(system), name, fail)


@pytest.mark.parametrize("number", range(3))
def test_an_upload_that_fails_at_any_file_is_read_elsewhere_once_repeated(
    tmp_path, store, monkeypatch, number
):
    with monkeypatch.context() as patch:
        fail_at(patch, store, "put_file", number)
        with pytest.raises(UserError, match=r"the upload of .* failed: line is down"):
            write(tmp_path)
    with pytest.raises(UserError, match=f"^{URL}: "):
        local_copy(path(tmp_path))
    if number == 2:  # of half the checksums nobody knows whose they are
        with pytest.raises(UserError, match="already exists"):
            write(tmp_path)
        store.rm("/bucket/made/here/sha256.json")
    # The next attempt may make other files of the same names, and more.
    with resume(tmp_path) as folder:
        (folder / "inner" / "words").write_text("other words")
        (folder / "more").write_text("more")
    expected = {"inner/words": b"other words", "more": b"more", "none": b""}
    shutil.rmtree(tmp_path / "cache")  # as on another machine
    copy = contents(local_copy(path(tmp_path)))
    assert copy.pop("sha256.json")
    assert copy == expected


@pytest.mark.parametrize("number", range(3))
def test_a_download_that_fails_at_any_file_is_repeated(tmp_path, store, monkeypatch, number):
    write(tmp_path)
    shutil.rmtree(tmp_path / "cache")
    with monkeypatch.context() as patch:
        fail_at(patch, store, "get_file", number)
        with pytest.raises(UserError, match=f"^{URL}: line is down$"):
            local_copy(path(tmp_path))
    assert not list((tmp_path / "cache").iterdir())
    assert contents(local_copy(path(tmp_path))) == {
        name: store.cat_file(f"/bucket/made/here/{name}")
        for name in ("inner/words", "none", "sha256.json")
    }


def test_the_same_folder_is_uploaded_again_after_it_was_removed(tmp_path, store):
    write(tmp_path)
    before = contents(local_copy(path(tmp_path)))
    store.rm("/bucket/made", recursive=True)
    assert not write(tmp_path).exists()
    assert contents(local_copy(path(tmp_path))) == before


def test_a_block_that_fails_uploads_nothing(tmp_path, store):
    with pytest.raises(TypeError, match="must be str"):
        write(tmp_path, text=3)
    assert not store.find("/bucket")


def test_what_a_failed_upload_left_is_kept_only_where_the_folder_grows(
    tmp_path, store, monkeypatch, caplog
):
    with monkeypatch.context() as patch:
        fail_at(patch, store, "put_file", 0)
        with pytest.raises(UserError, match="line is down"):
            write(tmp_path)

    def found(grows):
        with contextlib.suppress(KeyError), output_folder(path(tmp_path), grows=grows) as folder:
            seen = sorted(contents(folder)) if folder.exists() else []
            raise KeyError
        return seen

    assert found(grows=True) == ["inner/words", "none", "sha256.json"]
    caplog.set_level("INFO")
    assert found(grows=False) == []
    assert caplog.messages == [f"{URL}: starting again after a failed upload"]


def test_two_processes_do_not_write_to_one_url(tmp_path):
    code = (
        "import sys; from pathlib import Path\n"
        "from cocondenser_jax.files.remote import output_folder\n"
        "with output_folder(Path(sys.argv[1])): pass"
    )
    other = [sys.executable, "-c", code, str(path(tmp_path))]
    with output_folder(path(tmp_path)) as folder, new_folder(folder) as partial:
        (partial / "words").write_text("some words")
        ended = subprocess.run(other, check=False, capture_output=True, text=True)
        assert f"UserError: {URL} is in use by process {os.getpid()} on" in ended.stderr
    assert contents(local_copy(path(tmp_path)))["words"] == b"some words"


def test_a_part_of_a_result_is_not_uploaded(tmp_path, store):
    said = f"^--task writes a part of {URL}: expected a folder of this machine$"
    with pytest.raises(UserError, match=said), output_folder(path(tmp_path), (0, 2)):
        pytest.fail("others would not find it")
    with output_folder(tmp_path / "part", (1, 2)) as folder:
        assert folder == tmp_path / "part"


def test_copies_are_kept_in_the_users_cache(monkeypatch):
    assert cache_folder() == Path(os.environ["COCONDENSER_CACHE"])
    for value in (None, ""):
        monkeypatch.setenv("HOME", "/home/user")
        monkeypatch.setenv("COCONDENSER_CACHE", value or "")
        if value is None:
            monkeypatch.delenv("COCONDENSER_CACHE")
        assert cache_folder() == Path("/home/user/.cache/cocondenser")


def test_progress_is_shown_in_files(tmp_path, store, capsys):
    write(tmp_path)
    assert "upload: 100%" in (shown := capsys.readouterr().err)
    assert " files/s]" in shown
    shutil.rmtree(tmp_path / "cache")
    local_copy(path(tmp_path))
    assert "download: 100%" in capsys.readouterr().err


def test_what_is_there_is_not_replaced(tmp_path, store):
    write(tmp_path)
    before = dict(store.store)
    said = f"^{URL} already exists: choose a new folder, or remove it first$"
    with pytest.raises(UserError, match=said):
        write(tmp_path)
    assert store.store == before


@pytest.mark.parametrize(("url", "reason"), [("zz://a/b", "Protocol not known"), (URL, "no such")])
def test_a_url_without_a_folder_ends_in_one_line(tmp_path, url, reason):
    with pytest.raises(UserError, match=f"^{url}: {reason}") as error:
        local_copy(path(tmp_path, url))
    assert "\n" not in str(error.value)


def test_corpus_writes_a_store_that_opens_with_another_by_its_url(tmp_path, store):
    texts = make_texts(9)
    write_records(tmp_path / "texts.jsonl", [{"text": text} for text in texts])
    write_tokenizer(tmp_path / "tokenizer", texts)
    command = ["corpus", f"--corpus={tmp_path}/texts.jsonl", "--max_length=10"]
    command.append(f"--tokenizer={tmp_path}/tokenizer")
    assert main([*command, f"--out={tmp_path}/store"]) == 0
    assert main([*command, f"--out={URL}"]) == 0
    shutil.rmtree(tmp_path / "cache")
    local, remote = open_store(tmp_path / "store"), open_store(URL)
    assert remote.sha256 == local.sha256
    both = open_store(f"{tmp_path}/store,2*{URL}")
    assert both.n_documents == 2 * local.n_documents
    assert [corpus.weight for corpus in both.corpora] == [1, 2]


def test_the_same_command_makes_and_uploads_a_store_whose_upload_has_failed(
    tmp_path, store, monkeypatch, capsys
):
    """Of other texts, too: what was left is not taken for what is asked for."""
    texts = make_texts(9)
    write_tokenizer(tmp_path / "tokenizer", texts)
    command = ["corpus", f"--corpus={tmp_path}/texts.jsonl", "--max_length=10", f"--out={URL}"]
    command.append(f"--tokenizer={tmp_path}/tokenizer")
    write_records(tmp_path / "texts.jsonl", [{"text": text} for text in texts])
    with monkeypatch.context() as patch:
        fail_at(patch, store, "put_file", 1)
        assert main(command) == 2
    assert "failed: line is down" in capsys.readouterr().err
    write_records(tmp_path / "texts.jsonl", [{"text": text} for text in texts[:5]])
    assert main(command) == 0
    assert main([*command[:-2], command[-1], f"--out={tmp_path}/store"]) == 0
    shutil.rmtree(tmp_path / "cache")
    assert open_store(URL).sha256 == open_store(tmp_path / "store").sha256
