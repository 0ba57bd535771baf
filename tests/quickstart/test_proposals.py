"""Proposed settings: what was measured, and what fits everywhere."""

import pytest

from cocondenser_jax.pretrain.step import check_batch
from cocondenser_jax.quickstart import adapt as adapting
from cocondenser_jax.quickstart.adapt import propose_pretraining
from cocondenser_jax.settings import check
from tests.world import batches_of


def test_a_cpu_takes_what_was_measured():
    measured = propose_pretraining(6_000, n_devices=1, on_cpu=True)
    assert (measured.data.batch_size, measured.data.length, measured.train.steps) == (32, 128, 120)
    assert (measured.optimizer.learning_rate, measured.train.dtype) == (3e-5, "float32")
    assert (measured.data.pairs, measured.train.objective) == ("sentence", "contrastive")
    assert measured.train.chunk_size == 8
    crops = propose_pretraining(6_000, "crops", n_devices=1, on_cpu=True)
    assert crops.data.pairs == "crops"


def test_an_accelerator_takes_larger_batches_where_a_corpus_has_a_hundred():
    small = propose_pretraining(204_799, n_devices=8, on_cpu=False)
    assert (small.data.batch_size, small.train.chunk_size, small.train.steps) == (32, 64, 120)
    large = propose_pretraining(204_800, n_devices=8, on_cpu=False)
    assert (large.data.batch_size, large.train.chunk_size, large.train.steps) == (2048, 64, 100)
    assert large.train.dtype == small.train.dtype == "bfloat16"


def test_a_small_corpus_is_read_eight_times_at_most():
    for n_spans, steps in ((100, 25), (480, 120), (400, 100)):
        assert propose_pretraining(n_spans, n_devices=1, on_cpu=True).train.steps == steps


@pytest.mark.parametrize(
    ("overrides", "chunk_size"),
    [
        ([], 8),
        (["--config.data.batch_size=16"], 4),  # rows of each of eight devices
        (["--config.data.batch_size=24"], 2),
        (["--config.train.chunk_size=4"], 4),
        (["--config.train.chunk_size=0"], 0),
        (["--config.train.chunk_size=6"], 6),  # which is refused
    ],
)
def test_the_chunks_fit_the_batch_unless_they_are_chosen(overrides, chunk_size):
    proposed = propose_pretraining(6_000, n_devices=8, on_cpu=True)
    assert adapting._with_overrides(proposed, overrides).train.chunk_size == chunk_size


@pytest.mark.parametrize("on_cpu", [True, False])
def test_every_proposal_is_allowed_and_fits_its_devices(on_cpu, monkeypatch):
    for n_spans in (0, 1, 9, 31, 100, 5_000, 20_001, 10_000_000):
        for n_devices in (1, 2, 3, 8, 32):
            config = propose_pretraining(n_spans, n_devices=n_devices, on_cpu=on_cpu)
            monkeypatch.setattr(adapting.jax, "device_count", lambda n=n_devices: n)
            config = adapting._with_overrides(config, [])
            check(config, complete=False)
            spec = batches_of(config)
            check_batch(spec, config.train.chunk_size, 512, n_devices)
            assert spec.batch_size <= max(n_spans, n_devices)
