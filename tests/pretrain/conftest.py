"""A tiny store and a tiny experiment."""

import json
import random

import pytest

from cocondenser_jax.configs import default
from cocondenser_jax.corpus.build import build_store
from cocondenser_jax.corpus.tokenizer import save_tokenizer, train_tokenizer

WORDS = "red green blue stone river cloud tree house bird fish salt iron wind snow fire".split()


@pytest.fixture(scope="session")
def store_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretrain")
    rng = random.Random(0)
    texts = [
        ". ".join(" ".join(rng.choices(WORDS, k=rng.randint(7, 11))) for _ in range(6)) + "."
        for _ in range(48)
    ]
    lines = (json.dumps({"text": text}) + "\n" for text in texts)
    (folder / "text.jsonl").write_text("".join(lines))
    (folder / "tokenizer").mkdir()
    save_tokenizer(train_tokenizer(texts, 80), folder / "tokenizer")
    build_store(
        str(folder / "text.jsonl"), str(folder / "tokenizer"), folder / "store", max_tokens=16
    )
    return folder / "store"


@pytest.fixture(scope="session")
def config(store_folder):
    """16 documents a step: 4 spans on each of 8 devices."""
    config = default.get_config().unlock()
    config.data.store = str(store_folder)
    config.data.batch_size = 16
    config.data.length = 16
    config.model.hidden_size = 16
    config.model.num_hidden_layers = 2
    config.model.num_attention_heads = 2
    config.model.intermediate_size = 32
    config.model.max_position_embeddings = 16
    config.model.skip_from = 1
    config.model.n_head_layers = 1
    config.model.hidden_dropout_prob = 0.0
    config.model.attention_probs_dropout_prob = 0.0
    config.train.steps = 6
    config.train.dtype = "float32"
    config.train.chunk_size = 2
    config.optimizer.learning_rate = 1e-3
    # AdamW divides by the gradient's size: where that is rounding alone, so would be the update.
    config.optimizer.eps = 1e-3
    config.checkpoint.every = 2
    config.probe.every = 0
    config.log_every = 1
    return config.lock()
