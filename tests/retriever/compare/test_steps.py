"""Steps of a pipeline run once, and are timed whatever happens."""

import time
from pathlib import Path

import pytest

from cocondenser_jax.files.whole import read_json
from cocondenser_jax.retriever.compare.steps import SECONDS, make_once


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
