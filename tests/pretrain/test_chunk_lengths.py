"""The length at which a chunk of the step is computed."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cocondenser_jax.corpus.batches import Batch, make_batch
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.model.condenser import init_params
from cocondenser_jax.pretrain.devices import batch_gradient
from cocondenser_jax.pretrain.step import LENGTH_FRACTIONS, at_shortest_length
from tests.world import batches_of, model_of, step_of


@pytest.mark.parametrize(
    ("longest", "most_masked", "length"),
    [(4, 2, 14), (13, 3, 14), (14, 2, 14), (15, 2, 16), (16, 1, 16), (5, 4, 16)],
)
def test_a_chunk_is_computed_at_the_shortest_length_that_holds_it(longest, most_masked, length):
    """Of 16, and 4 slots: 14 and 16 tokens with 3 and 4 slots."""
    lengths_S = np.array([3, longest, 4])
    masked_S = np.array([1, most_masked, 1])
    batch = Batch(
        input_ids_SxL=np.zeros((3, 16), np.int32),
        attention_mask_SxL=np.arange(16) < lengths_S[:, None],
        masked_positions_SxM=np.zeros((3, 4), np.int32),
        labels_SxM=np.zeros((3, 4), np.int32),
        weights_SxM=(np.arange(4) < masked_S[:, None]).astype(np.float32),
        origins_Sx2=np.zeros((3, 2), np.int32),
        prompt_lengths_S=np.zeros(3, np.int32),
    )

    def shape(chunk):
        return jnp.array([chunk[0].input_ids_SxL.shape[1], chunk[0].weights_SxM.shape[1]])

    sizes = at_shortest_length(shape, (batch, None), fractions=LENGTH_FRACTIONS).tolist()
    assert sizes == [length, {14: 3, 16: 4}[length]]
    halves = at_shortest_length(shape, (batch, None), fractions=(1 / 2, 1)).tolist()
    fits_half = longest <= 8 and most_masked <= 2
    assert halves == ([8, 2] if fits_half else [16, 4])


@pytest.mark.parametrize(("objective", "between"), [("mlm", {14}), ("contrastive", {8, 12})])
def test_chunks_have_more_lengths_to_choose_from_where_no_tokens_are_predicted(
    config, objective, between
):
    """Of 16 tokens: 7/8, or a half and three quarters."""
    config = config.copy_and_resolve_references().unlock()
    config.train.update({"objective": objective, "chunk_size": 2})
    store = open_store(Path(config.data.store))
    model_config = model_of(config, store)
    settings = step_of(config, config.train.steps).loss
    batch = make_batch(store, batches_of(config), 0)
    params = init_params(model_config, 0)
    program = jax.make_jaxpr(lambda: batch_gradient(model_config, settings, params, batch))()
    assert {n for n in (8, 12, 14) if f"bool[2,{n}]" in str(program)} == between
