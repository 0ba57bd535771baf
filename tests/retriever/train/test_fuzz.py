"""Whatever a file of batches holds, it is read or refused with one line; nothing in it is run."""

import numpy as np
import pytest
from hypothesis import given

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.train.hard_batches import load_batches, save_batches
from tests.mutations import Payload, assert_read_or_refused, broken_bytes, fuzz


def test_broken_batches_are_read_or_refused(tmp_path):
    path = tmp_path / "batches.npz"
    save_batches(path, np.arange(6).reshape(2, 3))
    valid = path.read_bytes()

    @fuzz()
    @given(broken_bytes(valid))
    def check(content):
        path.write_bytes(content)
        assert_read_or_refused(load_batches, path)

    check()


def test_objects_in_batches_are_not_unpickled(tmp_path):
    objects = np.array([Payload(tmp_path / "ran")], object)
    np.savez(tmp_path / "a.npz", batches=objects)
    with pytest.raises(UserError, match="cannot read the batches in "):
        load_batches(tmp_path / "a.npz")
    assert not (tmp_path / "ran").exists()
