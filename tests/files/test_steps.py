"""Steps of a pipeline run once, and are timed whatever happens."""

import time
from pathlib import Path

import pytest

from cocondenser_jax.files.steps import SECONDS, make_once, remove_results, seconds_of
from cocondenser_jax.files.whole import read_json, write_json


def slowly(path):
    time.sleep(0.05)
    path.write_text("made")


def test_a_step_runs_until_its_result_is_there(tmp_path):
    result = tmp_path / "folder" / "result"
    result.parent.mkdir()

    def fail(path):
        time.sleep(0.05)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        make_once(tmp_path, result, fail)
    interrupted = read_json(tmp_path / SECONDS)["folder/result"]
    assert interrupted >= 0.05
    assert make_once(tmp_path, result, slowly) == result
    assert result.read_text() == "made"
    made = read_json(tmp_path / SECONDS)["folder/result"]
    assert made >= interrupted + 0.05
    make_once(tmp_path, result, fail)
    assert read_json(tmp_path / SECONDS)["folder/result"] < made + 0.05


def test_a_step_gets_its_arguments_and_then_the_path_of_its_result(tmp_path, monkeypatch):
    calls = []

    def make(first, second, path):
        calls.append((first, second, path))
        path.mkdir()

    monkeypatch.chdir(tmp_path)
    for workdir in (tmp_path / "absolute", Path("relative")):
        workdir.mkdir()
        for _ in range(2):
            assert make_once(workdir, workdir / "folder", make, 1, "two") == workdir / "folder"
        assert calls == [(1, "two", workdir / "folder")]
        assert [*read_json(workdir / SECONDS)] == ["folder"]
        calls.clear()


def test_seconds_are_added_up_and_leave_with_what_is_removed(tmp_path):
    write_json(tmp_path / SECONDS, {"a": 1.0, "folder/b": 2.0, "c": 4.0, "d": 8.0})
    paths = [tmp_path / name for name in ("a", "folder/b")]
    (tmp_path / "folder").mkdir()
    for path in (*paths, tmp_path / "c", tmp_path / "untimed"):
        path.touch()
    assert seconds_of(tmp_path, paths) == 3.0
    remove_results(tmp_path, [*paths, tmp_path / "untimed"])
    assert read_json(tmp_path / SECONDS) == {"c": 4.0, "d": 8.0}
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["c", "folder", SECONDS]


def test_results_without_seconds_are_removed(tmp_path):
    (tmp_path / "a").touch()
    remove_results(tmp_path, [tmp_path / "a"])
    assert [path.name for path in tmp_path.iterdir()] == [SECONDS]


def test_a_removal_that_is_killed_is_repeated(tmp_path):
    """Seconds are removed first: what is left of the results is then removed again."""
    write_json(tmp_path / SECONDS, {"a": 1.0})
    with pytest.raises(FileNotFoundError):
        remove_results(tmp_path, [tmp_path / "a"])
    assert read_json(tmp_path / SECONDS) == {}
