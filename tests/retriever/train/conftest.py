"""A tiny fine-tuning of a bi-encoder, which a test changes."""

import pytest

from cocondenser_jax.configs import finetune as finetune_config
from cocondenser_jax.retriever.data.trec import write_run
from tests.world import change_settings


@pytest.fixture
def config(model_folder, beir):
    config = finetune_config.get_config()
    change_settings(
        config,
        {
            "model.folder": str(model_folder),
            "data.folder": str(beir),
            "data.negatives_per_query": 0,
            "data.batch_size": 4,
            "model.query_length": 8,
            "model.passage_length": 16,
            "log_every": 1,
        },
    )
    return config


@pytest.fixture(scope="module")
def run_file(beir, tmp_path_factory):
    """Ten passages for each query, its positive first."""
    path = tmp_path_factory.mktemp("runs") / "bm25.trec"
    run = {f"q{i}": {f"d{(i + j) % 60}": 10.0 - j for j in range(10)} for i in range(24)}
    write_run(path, run)
    return path
