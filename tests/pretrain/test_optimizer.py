"""Schedule and decay mask."""

import jax
import numpy as np
import pytest

from cocondenser_jax.configs import default
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.pretrain.optimizer import decay_mask, learning_rate_schedule
from cocondenser_jax.pretrain.step import initial_params


def test_linear_warm_up_then_linear_decay() -> None:
    config = default.get_config().optimizer
    rates = np.array([learning_rate_schedule(config, 100)(step) for step in range(101)])
    assert rates[0] == pytest.approx(1e-5)
    assert rates[9] == pytest.approx(1e-4)
    assert rates.argmax() in (9, 10)
    np.testing.assert_allclose(np.diff(rates[:10]), 1e-5, rtol=1e-4)
    np.testing.assert_allclose(np.diff(rates[10:]), -1e-4 / 90, rtol=1e-3)
    assert rates[100] == pytest.approx(0.0, abs=1e-9)


def test_decay_spares_biases_and_layer_norm() -> None:
    sizes = {"vocab_size": 20, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}
    params = initial_params(ModelConfig(**sizes, num_hidden_layers=2, skip_from=1), 0)
    for path, decays in jax.tree_util.tree_leaves_with_path(decay_mask(params)):
        leaf = dict(jax.tree_util.tree_leaves_with_path(params))[path]
        assert decays == (leaf.ndim == 2), path
