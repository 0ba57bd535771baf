"""Sizes in papers/costs.py, beside those of files that the package writes."""

import jax
import pytest

from cocondenser_jax.configs import condenser, default
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.model.condenser import init_params
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.pretrain.checkpoint import checkpoint_writer
from cocondenser_jax.pretrain.experiment import resolve_without_store
from cocondenser_jax.pretrain.step import initial_state
from cocondenser_jax.retriever.data.stored import write_texts
from papers import costs, marco, models, qa
from tests.world import TINY, change_settings, make_texts, step_of, write_store

BERT_VOCABULARY = 30_522


def size(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def network_of(config, vocab_size):
    return ModelConfig(**resolve_without_store(config, 1, vocab_size, 0).network)


def test_a_store_takes_as_many_bytes_a_token(tmp_path):
    folder = write_store(tmp_path, make_texts(60, n_sentences=80), max_length=128)
    files = [path.stat().st_size for path in folder.iterdir() if path.suffix in (".bin", ".txt")]
    assert sum(files) / open_store(folder).n_tokens == pytest.approx(costs.TOKEN_BYTES, rel=0.02)
    assert costs.store_bytes(4.5e9) == 1e9 * costs.TOKEN_BYTES


def test_a_checkpoint_takes_twelve_bytes_a_parameter(tmp_path):
    """And BERT-base with a head of two layers has 124 million of them."""
    config = default.get_config().unlock()
    change_settings(config, TINY)
    params = init_params(network_of(config, 5_000), 0)
    n_params = sum(leaf.size for leaf in jax.tree.leaves(params))
    with checkpoint_writer(tmp_path, keep=2) as save:
        save(initial_state(params, step_of(config, 6).optimizer, ()), {})
    assert size(tmp_path / "checkpoints") / n_params == pytest.approx(12, rel=0.1)

    network = network_of(condenser.get_config(), BERT_VOCABULARY)
    base = jax.eval_shape(lambda: init_params(network, 0))
    n_base = sum(leaf.size for leaf in jax.tree.leaves(base))
    assert 12 * n_base == pytest.approx(costs.CHECKPOINT_BYTES, rel=0.02)


def test_pre_training_keeps_the_last_checkpoints_and_the_best():
    keep = default.get_config().checkpoint.keep + 1
    exported = costs.CHECKPOINT_BYTES / 3
    assert keep * costs.CHECKPOINT_BYTES + exported == costs.PRETRAINING_BYTES
    step = models.condenser()
    assert (step.bytes, step.scratch) == (costs.PRETRAINING_BYTES, costs.CHECKPOINT_BYTES)


def test_fine_tuning_stores_all_passages_and_negatives(tmp_path):
    n_passages, n_queries, n_negatives = 20_000, 400, 200
    write_texts(tmp_path / "passages", ((f"{1_000_000 + i}", "x" * 380) for i in range(n_passages)))
    names = " ".join(f"{1_000_000 + i}" for i in range(n_negatives))
    write_texts(tmp_path / "pool", ((f"{q}", names) for q in range(n_queries)))
    expected = costs.stored_bytes(n_passages, 380, n_queries * n_negatives)
    assert size(tmp_path) == pytest.approx(expected, rel=0.02)


def test_what_is_stored_is_estimated():
    """docs/many_machines.md: the disk space of the corpus, and 10.5 bytes for each negative."""
    nq = qa.trained_once("nq", "bert")
    assert nq.scratch - 2 * costs.TRAINING_BYTES == pytest.approx(14.2e9, rel=0.01)
    marco_step = marco.round1("bert").step
    assert marco_step.scratch - costs.TRAINING_BYTES == pytest.approx(5.9e9, rel=0.02)
