"""A tiny store and a tiny experiment."""

import functools

import pytest

from cocondenser_jax.configs import default
from cocondenser_jax.pretrain import loop
from cocondenser_jax.pretrain.devices import mapped_step
from tests.world import TINY, make_texts, write_store


@pytest.fixture(scope="session")
def store_folder(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("pretrain"), make_texts(48))


@pytest.fixture(scope="session")
def config(store_folder):
    """16 documents a step: 4 spans on each of 8 devices."""
    config = default.get_config().unlock()
    config.data.store = str(store_folder)
    config.update_from_flattened_dict(TINY)
    config.model.max_position_embeddings = 16
    config.model.n_head_layers = 1
    config.model.hidden_dropout_prob = 0.0
    config.model.attention_probs_dropout_prob = 0.0
    config.train.steps = 6
    config.train.dtype = "float32"
    config.train.chunk_size = 2
    config.optimizer.learning_rate = 1e-3
    # AdamW divides by the gradient's size: where that is rounding alone, so would be the update.
    config.optimizer.eps = 1e-3
    config.checkpoint.every = 2
    config.probe.every = 0
    config.log_every = 1
    return config.lock()


@pytest.fixture(scope="module")
def _mapped_once():
    return functools.cache(mapped_step)


@pytest.fixture
def shared_steps(_mapped_once, monkeypatch):
    """Lets runs of a file whose steps have the same settings share what JAX traced and compiled.

    A test that changes what a step computes needs settings of its own.
    """
    monkeypatch.setattr(loop, "mapped_step", _mapped_once)
