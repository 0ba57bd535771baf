"""Whatever a plan's file holds, it is read or refused with one clear line; nothing in it is run."""

import numpy as np
import pytest
from hypothesis import given

from cocondenser_jax.errors import UserError
from cocondenser_jax.finetune.schedule import load_plan, save_plan
from tests.mutations import Payload, assert_read_or_refused, broken_bytes, fuzz


def test_a_broken_plan_is_read_or_refused(tmp_path):
    path = tmp_path / "plan.npz"
    save_plan(path, np.arange(6).reshape(2, 3))
    valid = path.read_bytes()

    @fuzz()
    @given(broken_bytes(valid))
    def check(content):
        path.write_bytes(content)
        assert_read_or_refused(load_plan, path)

    check()


def test_objects_in_a_plan_are_not_unpickled(tmp_path):
    objects = np.array([Payload(tmp_path / "ran")], object)
    np.savez(tmp_path / "a.npz", batches=objects)
    with pytest.raises(UserError, match="cannot read the plan"):
        load_plan(tmp_path / "a.npz")
    assert not (tmp_path / "ran").exists()
