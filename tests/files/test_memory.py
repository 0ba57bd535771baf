"""How much memory is left, by the files in which Linux and a container say so."""

import sys

from cocondenser_jax.files import memory


def test_the_least_of_what_machine_and_container_have(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_GROUP", tmp_path)
    assert memory.available_bytes() == sys.maxsize  # nothing says how much
    (tmp_path / "meminfo").write_text("MemTotal: 900 kB\nMemFree: 1 kB\nMemAvailable: 500 kB\n")
    assert memory.available_bytes() == 500 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available_bytes() == 500 * 1024
    (tmp_path / "memory.max").write_text("100000\n")
    (tmp_path / "memory.stat").write_text("anon 30000\nfile 90000\n")
    assert memory.available_bytes() == 70_000
    (tmp_path / "memory.stat").write_text("anon 130000\n")
    assert memory.available_bytes() == 0


def test_this_machine_has_memory_left():
    assert 2**20 < memory.available_bytes() < 2**50
