"""What counts as noticed: a test that fails, and not a process that crashes."""

import importlib
import signal
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest


@pytest.fixture
def mutants(monkeypatch):
    """The module, without mutmut, which only `make mutants` installs."""
    monkeypatch.setitem(sys.modules, "benchmarks.faults", MagicMock())
    monkeypatch.delitem(sys.modules, "benchmarks.mutants", raising=False)
    yield importlib.import_module("benchmarks.mutants")
    del sys.modules["benchmarks.mutants"]


def test_a_crash_is_not_noticed(mutants):
    assert mutants.outcome_of(pytest.ExitCode.OK) == "survived"
    assert mutants.outcome_of(pytest.ExitCode.TESTS_FAILED) == "noticed"
    for number in (signal.SIGSEGV, signal.SIGABRT):
        assert mutants.outcome_of(-number) == "crashed"


def test_a_crash_is_among_what_was_not_noticed(mutants):
    outcomes = {name: name for name in ("noticed", "crashed", "survived", "timeout")}
    tried = [SimpleNamespace(name=name, key=name) for name in outcomes]
    counted = mutants.row("retrieval", tried, outcomes, equivalent=["survived"])
    assert len(counted["survived"]) == 1
    assert "crashed" in counted["survived"][0]
    assert (counted["tried"], counted["no faults"], counted["noticed"]) == (4, 1, 2)
