"""Arrays on disk are mapped, and nothing in them is unpickled."""

import numpy as np

from cocondenser_jax.retrieval.shards import map_array
from tests.mutations import Payload


def test_objects_in_arrays_are_not_unpickled(tmp_path):
    objects = np.array([Payload(tmp_path / "ran")], object)
    np.save(tmp_path / "a.npy", objects, allow_pickle=True)
    assert map_array(tmp_path / "a.npy", (1,), "object") is None
    assert not (tmp_path / "ran").exists()


def test_an_archive_is_not_an_array(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(2))
    assert map_array((tmp_path / "a.npz").rename(tmp_path / "a.npy"), (2,), "float64") is None
