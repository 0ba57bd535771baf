"""Folders that grow: what they were started with, their checkpoints, their checksums."""

import json
import logging
import os
from pathlib import Path

import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.runs import (
    CHECKSUMS,
    LOCK,
    newest_intact,
    numbered_folders,
    require_intact,
    require_own,
    require_same,
    start_or_compare,
    task_folder,
    task_folders,
    write_checksums,
)
from cocondenser_jax.files.whole import write_json

SETTINGS = {"seed": 1, "data": {"store": "a", "sha256": "1f"}, "probe": {"every": 5, "data": ""}}


def changed(**values):
    return json.loads(json.dumps(SETTINGS)) | values


def test_the_first_start_writes_the_settings_and_a_later_one_leaves_them(tmp_path):
    path = tmp_path / "run" / "run.json"
    assert start_or_compare(path, SETTINGS) == SETTINGS
    written = path.read_text()
    assert json.loads(written) == SETTINGS
    assert start_or_compare(path, changed(seed=2), free=["seed"]) == SETTINGS
    assert path.read_text() == written
    assert [file.name for file in path.parent.iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    ("now", "difference"),
    [
        (changed(seed=2), "with seed=1, now it is 2:"),
        (changed(seed="1"), "with seed=1, now it is '1':"),
        (changed(data={"store": "b", "sha256": "2e"}), "with data.sha256='1f', now it is '2e':"),
        (changed(extra={"deep": 3}), "with extra.deep=None, now it is 3:"),
        (changed(data={"store": "a"}), "with data.sha256='1f', now it is None:"),
        (changed(seed=2, x=[0]), r"with seed=1, now it is 2; x=None, now it is \[0\]:"),
    ],
)
def test_a_difference_in_either_direction_is_refused(tmp_path, now, difference):
    path = tmp_path / "run.json"
    start_or_compare(path, SETTINGS)
    said = f"^{tmp_path} was started {difference} choose a new folder, or remove it first$"
    with pytest.raises(UserError, match=said):
        start_or_compare(path, now, free=["data.store", "dat", "probe", "versions"])
    assert json.loads(path.read_text()) == SETTINGS


def test_a_free_name_stands_for_all_below_it(tmp_path):
    path = tmp_path / "run.json"
    start_or_compare(path, SETTINGS)
    now = changed(probe={"every": 7, "metric": "mrr"}, data={"store": "b", "sha256": "1f"})
    start_or_compare(path, now, free=["probe", "data.store"])
    start_or_compare(path, {"seed": 1}, free=["probe", "data"])
    with pytest.raises(UserError, match=r"with probe\.every=5, now it is 7; probe\.data"):
        start_or_compare(path, now, free=["data.store", "probe.e"])


def test_what_json_cannot_tell_apart_is_no_difference(tmp_path):
    for _ in range(2):
        started = start_or_compare(tmp_path / "run.json", {"betas": (0.9, 0.98)})
        assert started == {"betas": [0.9, 0.98]}


@pytest.mark.parametrize("left", [LOCK, "run.json.partial", "run.json.partial.lock"])
def test_what_a_kill_left_before_the_first_file_is_nothing(tmp_path, left):
    (tmp_path / left).touch()
    start_or_compare(tmp_path / "run.json", SETTINGS)
    assert {path.name for path in tmp_path.iterdir()} <= {"run.json", LOCK}


@pytest.mark.parametrize("found", ["thesis.tex", "other.json.partial"])
def test_a_folder_that_holds_something_else_is_refused(tmp_path, found):
    (tmp_path / found).touch()
    with pytest.raises(UserError, match=f"{tmp_path} already exists"):
        start_or_compare(tmp_path / "run.json", SETTINGS)
    assert [path.name for path in tmp_path.iterdir()] == [found]


def test_numbered_folders_are_in_the_order_of_their_numbers(tmp_path):
    for name in ("step-10", "step-9", "step-9.partial", "11", "step-", "[x]-1"):
        (tmp_path / name).mkdir()
    numbered = {9: tmp_path / "step-9", 10: tmp_path / "step-10"}
    assert list(numbered_folders(tmp_path, "step-").items()) == list(numbered.items())
    assert numbered_folders(tmp_path) == {11: tmp_path / "11"}
    assert numbered_folders(tmp_path, "[x]-") == {1: tmp_path / "[x]-1"}
    assert numbered_folders(tmp_path / "absent") == {}


def make_checkpoints(run, steps):
    for step in steps:
        folder = run / "checkpoints" / str(step)
        folder.mkdir(parents=True)
        (folder / "arrays").write_text(f"of {step}")
        write_checksums(folder)
    return numbered_folders(run / "checkpoints")


def load(folder):
    require_intact(folder)
    return (folder / "arrays").read_text()


def test_the_newest_intact_checkpoint_is_loaded(tmp_path, caplog):
    folders = make_checkpoints(tmp_path, (100, 20, 3))
    assert newest_intact(folders, load) == (100, "of 100")
    assert newest_intact(dict(reversed(folders.items())), load) == (100, "of 100")
    assert not caplog.records
    for step in (100, 20):
        (folders[step] / "arrays").write_text("other")
    with caplog.at_level(logging.WARNING):
        assert newest_intact(folders, load) == (3, "of 3")
    said = [record.getMessage() for record in caplog.records]
    reason = "is damaged (arrays is not what was saved); trying an earlier one"
    assert said == [f"{folders[step]} {reason}" for step in (100, 20)]
    (folders[3] / "arrays").unlink()
    with pytest.raises(UserError) as refused:
        newest_intact(folders, load)
    assert str(refused.value) == (
        f"{tmp_path}: none of its checkpoints (3, 20, 100) is intact; to start again, choose a new"
        " folder"
    )
    assert sorted(folders) == sorted(numbered_folders(tmp_path / "checkpoints"))


def test_a_file_that_changed_or_is_gone_is_damage(tmp_path):
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "a").write_bytes(b"0123")
    (tmp_path / "b").write_bytes(b"")
    write_checksums(tmp_path)
    require_intact(tmp_path)
    (tmp_path / "new").touch()
    require_intact(tmp_path)
    (tmp_path / "part" / "a").write_bytes(b"0133")
    with pytest.raises(UserError, match=rf"{tmp_path} is damaged \(part/a is not what was saved"):
        require_intact(tmp_path)
    (tmp_path / "b").unlink()
    with pytest.raises(UserError, match=rf"{tmp_path} is damaged \(b is not what was saved\)"):
        require_intact(tmp_path)


@pytest.mark.parametrize("content", ["[]", "1", '{"../outside": ""}', "x"])
def test_broken_checksums_are_damage(tmp_path, content):
    folder = tmp_path / "item"
    folder.mkdir()
    (tmp_path / "outside").touch()
    said = rf"^{folder} is damaged \(sha256\.json is not what was saved\)$"
    with pytest.raises(UserError, match=said):
        require_intact(folder)
    (folder / CHECKSUMS).write_text(content)
    with pytest.raises(UserError, match="is not what was saved"):
        require_intact(folder)


def test_checksums_and_their_files_survive_a_power_cut(tmp_path, monkeypatch):
    synced = {}

    def fsync(descriptor):
        status = os.fstat(descriptor)
        synced[status.st_ino] = status.st_size

    write_json(tmp_path / "a.json", [1])
    (tmp_path / "arrays").write_bytes(b"0123")
    monkeypatch.setattr(os, "fsync", fsync)
    write_checksums(tmp_path)
    for path in tmp_path.iterdir():
        assert synced[path.stat().st_ino] == path.stat().st_size


@pytest.mark.parametrize("names", [[], [LOCK], [LOCK, "run.json.partial"], ["run.json", "else"]])
def test_a_folder_is_its_own_where_it_is_empty_or_was_started(tmp_path, names):
    for name in names:
        (tmp_path / name).touch()
    require_own(tmp_path / "run.json")
    require_own(tmp_path / "absent" / "run.json")


def test_other_files_may_be_there_before_the_first(tmp_path):
    for name in ("lock", "lock.partial", "lock.partial.lock"):
        (tmp_path / name).touch()
        require_own(tmp_path / "run.json", also=["other", "lock"])
        start_or_compare(tmp_path / "run.json", {}, also=["lock"])
        (tmp_path / "run.json").unlink()
        with pytest.raises(UserError, match="already exists: choose a new folder, or remove it"):
            require_own(tmp_path / "run.json", also=["other"])


def test_folders_of_tasks(tmp_path):
    assert task_folder(tmp_path, (0, 1)) == tmp_path
    assert task_folder(tmp_path, (2, 12)) == tmp_path / "task-00002-of-00012"
    for task in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(UserError) as refused:
            task_folder(tmp_path, task)
        said = f"task {task[0]}/{task[1]}: expected i/n with 0 <= i < n"
        assert str(refused.value) == said
    assert task_folders(tmp_path) == [tmp_path]
    folders = [task_folder(tmp_path, (index, 6)) for index in range(6)]
    for folder in folders:
        folder.mkdir()
    assert task_folders(tmp_path) == folders
    (tmp_path / "task-00001-of-00002").mkdir()
    (tmp_path / "task-00000-of-00002").mkdir()
    others = "task-00000-of-00002, task-00001-of-00002, from another number of tasks"
    for n_missing, said in ((0, f"also holds {others}"), (4, "lacks task-00001-of-00006, ")):
        for folder in folders[1 : 1 + n_missing]:
            folder.rmdir()
        if n_missing:
            said += "task-00002-of-00006, task-00003-of-00006, ..."
        with pytest.raises(UserError) as refused:
            task_folders(tmp_path)
        assert str(refused.value) == f"{tmp_path} {said}"


def test_parts_of_one_result_have_the_same_settings():
    folders = [Path("a"), Path("b"), Path("c")]
    manifests = [{"x": 1, "y": 2, "own": n} for n in range(3)]
    require_same(folders, manifests, ["x", "y"])
    manifests[1:] = [{"x": 1, "own": 1}, {"x": 2}]
    with pytest.raises(UserError, match=r"^b differs from a in its y$"):
        require_same(folders, manifests, ["x", "y"])
    manifests[1]["y"] = 2
    with pytest.raises(UserError, match=r"^c differs from a in its x, y$"):
        require_same(folders, manifests, ["x", "y"])


@pytest.mark.parametrize("names", [["else"], [LOCK, "else"], ["run.json.partial", "run"]])
def test_a_folder_of_something_else_is_refused(tmp_path, names):
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=f"{tmp_path} already exists"):
        require_own(tmp_path / "run.json")
    with pytest.raises(UserError, match=f"{names[0]} already exists"):
        require_own(tmp_path / names[0] / "run.json")


def test_a_name_that_no_file_can_have_is_damage(tmp_path):
    (tmp_path / CHECKSUMS).write_text(json.dumps({"n" * 300: ""}))
    with pytest.raises(UserError, match="is not what was saved"):
        require_intact(tmp_path)
