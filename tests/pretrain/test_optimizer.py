"""Schedule and decay mask."""

import jax
import numpy as np
import optax
import pytest
import torch

from cocondenser_jax.configs import default
from cocondenser_jax.model.condenser import init_params
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.pretrain.optimizer import (
    AdamW,
    clip,
    decay_mask,
    learning_rate_schedule,
    make_optimizer,
)
from cocondenser_jax.representation import Dense, Representation


def test_linear_warm_up_then_linear_decay():
    schedule = learning_rate_schedule(AdamW(**default.get_config().optimizer, n_steps=100))
    rates = np.array([schedule(step) for step in range(101)])
    assert rates[0] == pytest.approx(1e-5)
    assert rates[9] == pytest.approx(1e-4)
    assert rates.argmax() in (9, 10)
    np.testing.assert_allclose(np.diff(rates[:10]), 1e-5, rtol=1e-4)
    np.testing.assert_allclose(np.diff(rates[10:]), -1e-4 / 90, rtol=1e-3)
    assert rates[100] == pytest.approx(0.0, abs=1e-9)


def test_without_warm_up_the_first_step_has_the_peak():
    settings = AdamW(**default.get_config().optimizer, n_steps=100)._replace(warmup_ratio=0.0)
    schedule = learning_rate_schedule(settings)
    rates = [schedule(step) for step in range(101)]
    np.testing.assert_allclose(rates, 1e-4 * np.linspace(1, 0, 101), rtol=1e-5, atol=1e-12)


def test_decay_spares_biases_and_layer_norm():
    sizes = {"vocab_size": 20, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}
    representation = Representation(dense=(Dense(8, 4),))
    config = ModelConfig(**sizes, num_hidden_layers=2, skip_from=1, representation=representation)
    params = init_params(config, 0)
    assert "dense_0" in params
    for path, decays in jax.tree_util.tree_leaves_with_path(decay_mask(params)):
        leaf = dict(jax.tree_util.tree_leaves_with_path(params))[path]
        assert decays == (leaf.ndim == 2), path


def test_steps_are_those_of_torch_adamw():
    """Clipping by the global norm, AdamW, and the decay of matrices only, over three steps."""
    settings = AdamW(**default.get_config().optimizer, n_steps=20)
    settings = settings._replace(learning_rate=1e-2, weight_decay=0.1)
    rng = np.random.default_rng(0)
    shapes = {"kernel": (5, 4), "bias": (4,), "scale": (4,)}
    params = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    gradients = [
        {name: scale * rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
        for scale in (5.0, 0.01, 1.0)  # clipped, not clipped, clipped
    ]

    theirs = {name: torch.nn.Parameter(torch.tensor(value)) for name, value in params.items()}
    optimizer = torch.optim.AdamW(
        [
            {"params": [theirs["kernel"]], "weight_decay": 0.1},
            {"params": [theirs["bias"], theirs["scale"]], "weight_decay": 0.0},
        ]
    )
    schedule = learning_rate_schedule(settings)
    ours, ours_optimizer = params, make_optimizer(settings)
    state = ours_optimizer.init(ours)
    for step, gradient in enumerate(gradients):
        for name, parameter in theirs.items():
            parameter.grad = torch.tensor(gradient[name])
        torch.nn.utils.clip_grad_norm_(theirs.values(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = float(schedule(step))
        optimizer.step()
        clipped = clip(gradient, optax.global_norm(gradient), settings.clip_norm)
        updates, state = ours_optimizer.update(clipped, state, ours)
        ours = optax.apply_updates(ours, updates)

    for name, parameter in theirs.items():
        moved = parameter.detach().numpy() - params[name]
        assert np.linalg.norm(ours[name] - params[name] - moved) <= 1e-4 * np.linalg.norm(moved)
