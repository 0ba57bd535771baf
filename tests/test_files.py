"""Folders that are whole or absent, and metrics cut back to a checkpoint."""

import json
from pathlib import Path

import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.files import forget_steps_after, new_folder, read_json, write_json


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    with new_folder(tmp_path / "a" / "out") as folder:
        (folder / "file").write_text("x")
        assert not (tmp_path / "a" / "out").exists()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["out"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_folder_that_fails_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    def fail() -> None:
        with new_folder(tmp_path / "out") as folder:
            (folder / "file").write_text("x")
            raise error

    with pytest.raises(error):
        fail()
    assert not any(tmp_path.iterdir())


def test_what_a_killed_attempt_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "old").write_text("x")
    with new_folder(tmp_path / "out"):
        pass
    assert not any((tmp_path / "out").iterdir())


def test_a_taken_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(UserError, match="already exists"), new_folder(tmp_path):
        pass


def test_metrics_are_cut_back(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in (1, 2, 3)) + '{"st')
    forget_steps_after(path, 2)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'
    forget_steps_after(tmp_path / "new.jsonl", 2)
    assert (tmp_path / "new.jsonl").read_text() == ""


def test_json_round_trip_and_its_errors(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"ä": 1})
    assert read_json(tmp_path / "a.json") == {"ä": 1}
    (tmp_path / "b.json").write_bytes(b"{")
    with pytest.raises(UserError, match=r"b\.json is not valid JSON"):
        read_json(tmp_path / "b.json")
    with pytest.raises(UserError, match=r"cannot read .*c\.json"):
        read_json(tmp_path / "c.json")
