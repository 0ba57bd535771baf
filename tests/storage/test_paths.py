"""Whatever a folder is called, libraries get a path that they take."""

import os
from pathlib import Path

import pytest

from cocondenser_jax.storage.paths import plain_path


@pytest.mark.parametrize("name", ["[a]*?", "a\\b'\"", "a\n\x1b b", "é", "\udcff", "-x,=@:~"])
def test_a_link_stands_in_for_an_odd_path(tmp_path, name):
    (tmp_path / name).mkdir()
    with plain_path(tmp_path / name) as plain:
        assert all(c.isalnum() or c in "/.-_" for c in os.fsencode(plain).decode("ascii"))
        (plain / "file").write_text("x")
    assert [path.name for path in (tmp_path / name).iterdir()] == ["file"]
    assert not plain.parent.exists()


def test_a_plain_path_stays(tmp_path, monkeypatch):
    with plain_path(tmp_path / "a_b-c.1") as plain:
        assert plain == tmp_path / "a_b-c.1"
    (tmp_path / "\udcff").mkdir()
    monkeypatch.chdir(tmp_path / "\udcff")  # libraries make paths absolute
    with plain_path(Path("..")) as plain:
        assert plain.is_absolute()
        assert plain.samefile(tmp_path)
