"""The comparison with the authors' release, whose code is not here: what it does with times."""

import pytest

from benchmarks import release
from benchmarks.step import Measured, Size, flax_side

SIZE = Size(2, 64, 4, 4)


def measured(monkeypatch, *, theirs):
    """Lets our side take a second and report a loss of 20, the other two and another loss."""
    sides = {
        flax_side: Measured(20.0, 1.0, 2**20, "CPU", 0.0),
        release.release_side: Measured(theirs, 2.0, 3 * 2**20, "CPU", 0.0),
    }
    monkeypatch.setattr(release, "alone", lambda side, *_: sides[side])
    monkeypatch.setattr(release, "write_model", lambda *_: None)
    return release.compare("tiny", SIZE, ["Condenser"], 1)


def test_the_row_says_how_many_times_faster_our_step_is(monkeypatch):
    row = measured(monkeypatch, theirs=20.0001)
    assert row["times the release"] == 2.0
    assert (row["peak MiB"], row["peak MiB, the release"]) == (1, 3)


def test_times_of_other_losses_are_not_compared(monkeypatch):
    with pytest.raises(SystemExit, match=r"the losses differ: 20\.0 and 20\.1"):
        measured(monkeypatch, theirs=20.1)
