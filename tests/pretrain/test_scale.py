"""The scale of the scores in a contrastive loss."""

import functools
from pathlib import Path

import jax
import numpy as np
import pytest

from cocondenser_jax.corpus.batches import make_batch
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.model.condenser import Condenser, init_params
from cocondenser_jax.pretrain.devices import batch_gradient
from tests.world import batches_of, model_of, step_of

pytestmark = pytest.mark.usefixtures("one_length")


@pytest.mark.effect("pretrain model.scale")
@pytest.mark.parametrize(
    ("spelling", "scale", "expected"),
    [
        ("mean", 0.5, 0.5),
        ("mean-cosine", 100.0, 100.0),  # the temperature 0.01 of E5 (arXiv 2212.03533)
    ],
)
def test_scores_are_multiplied_by_the_scale(config, spelling, scale, expected):
    config = config.copy_and_resolve_references().unlock()
    config.train.objective = "contrastive"
    config.model.representation = spelling
    config.model.scale = scale
    store = open_store(Path(config.data.store))
    model_config = model_of(config, store)
    params = init_params(model_config, 0)
    batch = make_batch(store, batches_of(config), 0)
    losses, _ = batch_gradient(model_config, step_of(config, 1).loss, params, batch)

    encode = functools.partial(Condenser(model_config).apply, method="encode")
    inputs = batch.input_ids_SxL, batch.attention_mask_SxL
    vectors_SxD = np.asarray(jax.jit(encode)({"params": params}, *inputs), np.float64)
    logits_SxS = expected * vectors_SxD @ vectors_SxD.T
    np.fill_diagonal(logits_SxS, -np.inf)
    rows_S = np.arange(len(vectors_SxD))
    own_S = logits_SxS[rows_S, rows_S ^ 1]
    loss = np.mean(np.logaddexp.reduce(logits_SxS, axis=1) - own_S)
    assert float(losses["contrastive_loss"]) == pytest.approx(loss, rel=1e-5)
