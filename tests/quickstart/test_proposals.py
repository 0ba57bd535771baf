"""Proposed settings: what was measured, what the papers have, and what fits everywhere."""

import pytest

from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.pretrain.step import check_batch
from cocondenser_jax.quickstart.adapt import propose_finetuning, propose_pretraining
from cocondenser_jax.settings import check
from tests.world import batches_of

PLAIN = ModelConfig(n_head_layers=0, skip_from=6)


def test_pretraining_is_what_was_measured_and_what_the_papers_have():
    measured = propose_pretraining(PLAIN, 14_296, 2, on_cpu=True)
    assert (measured.data.batch_size, measured.data.length) == (32, 64)
    assert measured.optimizer.learning_rate == 5e-5
    assert measured.train.epochs * 14_296 / 32 == pytest.approx(450, rel=0.01)
    assert measured.train.dtype == "float32"
    papers = propose_pretraining(PLAIN, 3_213_835, 8, on_cpu=False)
    assert (papers.data.batch_size, papers.train.chunk_size) == (2048, 64)
    assert (papers.optimizer.learning_rate, papers.train.dtype) == (1e-4, "bfloat16")


def test_a_corpus_is_read_at_least_once_and_at_most_eight_times():
    epochs = [
        propose_pretraining(PLAIN, n, 1, on_cpu=True).train.epochs
        for n in (100, 1_800, 3_600, 14_400, 1_000_000)
    ]
    assert epochs == [8.0, 8.0, 4.0, 1.0, 1.0]


def test_a_head_goes_on_and_a_new_one_reads_the_middle():
    new = propose_pretraining(PLAIN, 1_000, 1, on_cpu=True).model
    assert (new.n_head_layers, new.skip_from) == (2, 6)
    headed = ModelConfig(n_head_layers=1, skip_from=3)
    own = propose_pretraining(headed, 1_000, 1, on_cpu=True).model
    assert (own.n_head_layers, own.skip_from) == (1, 3)


def test_finetuning_is_what_was_measured():
    few, many = (propose_finetuning(n, 512) for n in (809, 2000))
    assert (few.epochs, many.epochs, many.learning_rate) == (3, 1, 2e-5)
    assert (many.batch_size, many.query_length, many.passage_length) == (32, 64, 256)
    short = propose_finetuning(5, 48)
    assert (short.batch_size, short.query_length, short.passage_length) == (5, 48, 48)


@pytest.mark.parametrize("on_cpu", [True, False])
def test_every_proposal_is_allowed_and_fits_its_devices(on_cpu):
    for n_documents in (0, 1, 9, 31, 100, 5_000, 20_001, 10_000_000):
        for n_devices in (1, 2, 3, 8, 32):
            config = propose_pretraining(PLAIN, n_documents, n_devices, on_cpu)
            check(config, complete=False)
            spec = batches_of(config)
            check_batch(spec, config.train.chunk_size, 512, n_devices)
            assert spec.batch_size <= max(n_documents, n_devices)
    for n_queries in (0, 1, 5, 10_000):
        check(propose_finetuning(n_queries, 24), complete=False)
