"""Shapes of models: which sizes are refused."""

import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.model.config import ModelConfig


@pytest.mark.parametrize(
    ("name", "most"), [("num_hidden_layers", 1_000), ("intermediate_size", 10_000_000)]
)
def test_a_size_that_would_fill_the_memory_is_refused(name, most):
    assert getattr(ModelConfig(**{name: most}), name) == most
    with pytest.raises(UserError, match=f"{name} is {most + 1}"):
        ModelConfig(**{name: most + 1})
    with pytest.raises(UserError, match=f"{name} is 0"):
        ModelConfig(**{name: 0})
