"""What tests of `adapt` share."""

import pytest

from cocondenser_jax.corpus.tokenizer import load_tokenizer
from cocondenser_jax.pipelines import adapt as adapting
from cocondenser_jax.pipelines.backends import BACKENDS


@pytest.fixture
def train_by(monkeypatch):
    """Makes `adapt` train by a function of settings, workdir and folder of the result."""

    def replace(function):
        backend = BACKENDS["jax"]._replace(train=function)

        def open_model(folder, wanted):
            return backend, backend.read(folder, load_tokenizer(str(folder)))

        monkeypatch.setattr(adapting, "open_model", open_model)

    return replace
