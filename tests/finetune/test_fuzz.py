"""Whatever a plan's file holds, it is read or refused with one clear line; nothing in it is run."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given

from cocondenser_jax.errors import UserError
from cocondenser_jax.finetune.schedule import Candidates, hard_plan, load_plan, save_plan
from tests.mutations import Payload, assert_read_or_refused, broken_bytes, fuzz


def test_a_broken_plan_is_read_or_refused(tmp_path: Path) -> None:
    path, settings = tmp_path / "plan.npz", {"planner": "x", "seed": 1}
    save_plan(path, np.arange(6).reshape(2, 3), settings)
    valid = path.read_bytes()

    @fuzz()
    @given(broken_bytes(valid))
    def check(content: bytes) -> None:
        path.write_bytes(content)
        assert_read_or_refused(load_plan, path, settings)

    check()


def test_objects_in_a_plan_are_not_unpickled(tmp_path: Path) -> None:
    objects = np.array([Payload(tmp_path / "ran")], object)
    np.savez(tmp_path / "a.npz", batches=objects, settings="{}")
    with pytest.raises(UserError, match="cannot read the plan"):
        load_plan(tmp_path / "a.npz", {})
    assert not (tmp_path / "ran").exists()


def test_conflicts_must_be_symmetric() -> None:
    candidates = Candidates(np.array([[1], [0], [1]]), np.ones((3, 1)))
    one_way = scipy.sparse.csr_array(([True], ([0], [1])), shape=(3, 3))
    with pytest.raises(UserError, match="symmetric"):
        hard_plan(candidates, 3, seed=0, conflicts=one_way)
