"""Steps of a pipeline run once, and are timed whatever happens."""

import time

import pytest

from cocondenser_jax.quickstart.steps import SECONDS, make_once
from cocondenser_jax.storage.files import read_json


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


def test_a_folder_that_grows_is_made_until_it_is_done(tmp_path):
    run, done = tmp_path / "run", tmp_path / "model"
    calls = []

    def grow(path):
        path.mkdir(exist_ok=True)
        calls.append(path)
        if len(calls) == 2:
            done.touch()

    for _ in range(3):
        make_once(tmp_path, run, grow, done=done)
    assert calls == [run, run]
    assert [*read_json(tmp_path / SECONDS)] == ["run"]
