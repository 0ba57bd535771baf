"""Protocols: what was measured by another one is never added to."""

import json

import pytest

from cocondenser_jax.errors import UserError
from experiments.protocol import checksum, require_protocol
from experiments.reproduce import main
from papers.steps import Folders

TEXT = """
protocol: {{seeds: {seeds}, hypotheses: [yes]}}
tables:
  t: {{title: T, tolerance: 0.1, rows: {{r: {{measured: {{}}{recorded}}}}}}}
"""


def write(folder, seeds, recorded=""):
    """Returns a folder of its own: files are read once."""
    folder.mkdir()
    (folder / "study.yaml").write_text(TEXT.format(seeds=seeds, recorded=recorded))
    (folder / "other.yaml").write_text("tables: {t: {}}")
    return folder


def test_the_checksum_is_of_the_values():
    one = checksum({"a": 1, "b": {"c": [2, 3]}})
    assert one == checksum({"b": {"c": [2, 3]}, "a": 1})
    assert one != checksum({"a": 1, "b": {"c": [3, 2]}})
    assert len(one) == 12


def test_a_working_folder_keeps_the_protocol_that_it_began_with(tmp_path):
    folders = Folders(tmp_path / "work", tmp_path)
    require_protocol("other/t", folders, write(tmp_path / "a", "[0]"))
    assert not folders.work.exists()
    require_protocol("study/t", folders, tmp_path / "a")
    file = folders.work / "study" / "protocol.json"
    recorded = file.read_text()
    assert json.loads(recorded)["seeds"] == [0]
    require_protocol("study/t", folders, write(tmp_path / "same", "[0]"))
    with pytest.raises(UserError, match=r"study was measured by protocol \w{12}, which is now"):
        require_protocol("study/t", folders, write(tmp_path / "changed", "[1]"))
    assert file.read_text() == recorded


def test_rows_that_another_protocol_measured_are_not_added_to(tmp_path):
    now = checksum({"seeds": [0], "hypotheses": [True]})
    folders = Folders(tmp_path / "work", tmp_path)
    old = write(tmp_path / "old", "[0]", ", protocol: 0123456789ab")
    with pytest.raises(UserError, match=rf"row 'r' of study/t .* 0123456789ab, which is now {now}"):
        require_protocol("study/t", folders, old)
    assert not folders.work.exists()
    require_protocol("study/t", folders, write(tmp_path / "new", "[0]", f", protocol: {now}"))


def test_the_program_refuses_another_protocol_before_it_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("papers.program.require_data", lambda steps: None)
    file = tmp_path / "work" / "design" / "protocol.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"sha256": "0123456789ab"}')
    with pytest.raises(SystemExit, match="2"):
        main(["design/base", f"--workdir={tmp_path}/work", f"--data={tmp_path}"])
    assert "design was measured by protocol 0123456789ab" in capsys.readouterr().err
