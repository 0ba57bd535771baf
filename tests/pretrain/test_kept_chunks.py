"""Chunks whose activations are kept for their gradient: the step is the same."""

import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.pretrain import step
from cocondenser_jax.pretrain.step import check_batch
from tests.pretrain.test_step import assert_same, changed, steps
from tests.world import batches_of


@pytest.mark.effect("pretrain train.kept_chunks")
@pytest.mark.parametrize(
    ("n_devices", "chunk_size", "n_kept", "rate"), [(1, 8, 3, 0.1), (8, 2, 1, 0.0)]
)
def test_kept_chunks_change_no_step(config, monkeypatch, n_devices, chunk_size, n_kept, rate):
    # Half of the programs to compile. Chunks of one length are the same in both ways.
    monkeypatch.setattr(step, "LENGTH_FRACTIONS", (1,))
    config = changed(
        config,
        model__hidden_dropout_prob=rate,
        model__attention_probs_dropout_prob=rate,
        train__chunk_size=chunk_size,
    )
    twice = steps(config, n_devices)
    assert_same(steps(changed(config, train__kept_chunks=n_kept), n_devices), twice)


def test_more_kept_chunks_than_there_are_are_refused(config):
    spec = batches_of(config)  # 4 spans on each of 8 devices
    check_batch(spec, 2, 16, 8, kept_chunks=2)
    with pytest.raises(UserError, match="kept_chunks is 3, but a device has 2 chunks"):
        check_batch(spec, 2, 16, 8, kept_chunks=3)
