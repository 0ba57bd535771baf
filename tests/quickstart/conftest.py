"""What tests of `adapt` share."""

import pytest

from cocondenser_jax.quickstart import adapt as adapting
from cocondenser_jax.quickstart.backends import BACKENDS


@pytest.fixture
def train_by(monkeypatch):
    """Makes `adapt` train by a function of settings, workdir and folder of the result."""

    def replace(function):
        backend = BACKENDS["jax"]._replace(train=function)
        monkeypatch.setattr(adapting, "choose_backend", lambda start, wanted: backend)

    return replace
