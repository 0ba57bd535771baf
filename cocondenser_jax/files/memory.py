"""Measures the memory that is still available."""

import sys
from pathlib import Path

_MEMORY = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")  # of a container, in version 2


def available_bytes() -> int:
    """Returns the available bytes of this machine or container; sys.maxsize if unknown."""
    return min(_of_machine(_MEMORY), _of_container(_GROUP))


def _of_machine(path: Path) -> int:
    return _field(path, "MemAvailable:", 1024, sys.maxsize)


def _of_container(folder: Path) -> int:
    try:
        limit = int((folder / "memory.max").read_text())
    except (OSError, ValueError):  # "max" means no limit
        return sys.maxsize
    return max(limit - _field(folder / "memory.stat", "anon", 1, 0), 0)


def _field(path: Path, name: str, unit: int, absent: int) -> int:
    """Returns a number, times `unit`, from a file with a name and a number on each line."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return absent
    for line in lines:
        words = line.split()
        if words[0] == name:
            return unit * int(words[1])
    return absent
