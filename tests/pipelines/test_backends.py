"""The same training by JAX and by PyTorch, step by step."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from cocondenser_jax.configs import adapt as adapting
from cocondenser_jax.corpus.build import build_store
from cocondenser_jax.corpus.tokenizer import load_tokenizer
from cocondenser_jax.errors import UserError
from cocondenser_jax.pipelines import backends
from cocondenser_jax.pipelines.backends import BACKENDS
from cocondenser_jax.representation import Given
from cocondenser_jax.retriever.search.models import load_retriever
from tests.world import change_settings, make_texts, read_metrics, write_records

N_STEPS = 8
SETTINGS = {
    "data.length": 48,
    "data.batch_size": 16,
    "train.steps": N_STEPS,
    "model.hidden_dropout_prob": 0.0,
    "model.attention_probs_dropout_prob": 0.0,
    "optimizer.learning_rate": 1e-3,
    "optimizer.warmup_ratio": 0.3,
    "optimizer.weight_decay": 0.1,
    "optimizer.clip_norm": 0.5,
    "probe.every": 4,
    "log_every": 1,
}


@pytest.fixture(scope="module")
def start(make_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("start") / "model"
    model = load_retriever(
        make_model(initializer_range=0.1), given=Given("mean", "cosine", "ab: ", "cd ef: ")
    )
    model.save_pretrained(str(folder), create_model_card=False)
    return folder


@pytest.fixture(scope="module")
def store(start, words, tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    rng = np.random.default_rng(0)
    texts = []
    for _ in range(100):
        own = rng.choice(words, 12)
        texts.append(". ".join(" ".join(rng.choice(own, 7)).capitalize() for _ in range(3)) + ".")
    # Two documents of the same spans, in another order: no negatives of each other.
    texts += [f"{texts[0]}\n\n{texts[1]}", f"{texts[1]}\n\n{texts[0]}"]
    write_records(folder / "texts.jsonl", ({"text": text} for text in texts))
    build_store(str(folder / "texts.jsonl"), str(start), folder / "store", max_tokens=48)
    return folder / "store"


@pytest.fixture(scope="module")
def train(start, store, tmp_path_factory):
    """Gives a function that trains by a backend, and returns the logged lines and the model."""

    def run(name, **changes):
        config = adapting.get_config().unlock()
        own = {"warm_start": str(start), "data.store": str(store)}
        change_settings(config, SETTINGS | own | changes)
        folder = tmp_path_factory.mktemp(name)
        BACKENDS[name].train(config.lock(), folder / "run", folder / "model")
        return read_metrics(folder / "run"), folder / "model"

    return run


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_no_more_of_a_text_is_trained_on_than_its_folder_says(start, tmp_path, backend):
    folder = Path(shutil.copytree(start, tmp_path / "model"))
    settings = folder / "sentence_bert_config.json"
    for longest in (20, 64):  # the network reads 64
        change = {"max_seq_length": longest}
        settings.write_text(json.dumps(json.loads(settings.read_text()) | change))
        reading = BACKENDS[backend].read(folder, load_tokenizer(str(folder)))
        assert reading.longest_text == longest
        assert SentenceTransformer(str(folder)).max_seq_length == longest


def column(lines, name):
    return [line[name] for line in lines if name in line]


@pytest.mark.parametrize(
    "changes",
    [
        {"train.chunk_size": 4},
        {"train.chunk_size": 0, "train.objective": "ict"},
        {"train.chunk_size": 2, "model.sizes": (32, 20, 7)},
        {"train.chunk_size": 4, "model.sizes": (24, 8)},
        {"train.chunk_size": 0, "model.scale": 5.0, "data.pairs": "crops"},
    ],
    ids=str,
)
def test_pytorch_trains_as_jax_does(train, changes):
    (of_jax, jax_model), (of_torch, torch_model) = (train(n, **changes) for n in ("jax", "torch"))
    for name in ("loss", "learning_rate"):
        found = column(of_torch, name)
        assert len(found) == N_STEPS
        np.testing.assert_allclose(found, column(of_jax, name), rtol=1e-4, err_msg=name)
    norms = column(of_jax, "gradient_norm")
    np.testing.assert_allclose(column(of_torch, "grad_norm"), norms, rtol=1e-3)
    assert max(norms) > 0.5  # some are clipped
    assert len(column(of_torch, "probe/positive_mrr")) == 2
    for name in ("probe/positive_mrr", "probe/uniformity", "probe/mean_cosine"):
        np.testing.assert_allclose(column(of_torch, name), column(of_jax, name), atol=1e-4)
    texts = make_texts(8)
    jax_vectors, torch_vectors = (
        SentenceTransformer(str(folder)).encode(texts, normalize_embeddings=True)
        for folder in (jax_model, torch_model)
    )
    np.testing.assert_allclose(torch_vectors, jax_vectors, atol=1e-4)


def test_other_settings_than_the_defaults_arrive_in_pytorch(train, monkeypatch):
    seen = []

    def note(settings, store):
        seen.append(settings)
        raise KeyError("no training")

    monkeypatch.setattr(backends, "train_pairs", note)
    changes = {
        "seed": 5,
        "log_every": 3,
        "train.dtype": "bfloat16",
        "model.hidden_dropout_prob": 0.3,
        "model.attention_probs_dropout_prob": 0.2,
        "checkpoint.every": 7,
        "checkpoint.keep": 4,
        "probe.every": 2,
    }
    for name, rank in (("torch", 0), ("lora", backends.LORA_RANK)):
        with pytest.raises(KeyError, match="no training"):
            train(name, **changes)
        settings = seen.pop()
        assert settings.trainer.precision == "bfloat16"
        assert (settings.trainer.seed, settings.trainer.log_every) == (5, 3)
        assert (settings.trainer.checkpoint_every, settings.keep) == (7, 4)
        assert settings.probe.every == 2
        network = settings.network
        assert (network.hidden_dropout, network.attention_dropout) == (0.3, 0.2)
        assert network.lora_rank == settings.trainer.record["lora_rank"] == rank


@pytest.mark.parametrize("name", ["jax", "torch"])
def test_texts_are_compared_behind_both_prompts(start, monkeypatch, name):
    seen = []
    monkeypatch.setattr(backends, "require_same_tokens", lambda *given: seen.append(given))
    backend, reading = backends.open_model(start, name)
    backends.require_same_reading(backend, reading, start, load_retriever(start))
    ((_, tokenizer, _, prompts, longest),) = seen
    assert tokenizer is reading.tokenizer
    assert prompts == ["", "ab: ", "cd ef: "]
    assert longest == reading.longest_text == 64


def test_a_tokenizer_that_jax_does_not_know_is_for_pytorch(model_folder, monkeypatch):
    backend, _ = backends.open_model(model_folder)
    assert backend.name == "jax"
    monkeypatch.setattr(backends, "load_tokenizer", lambda folder: SimpleNamespace(kind=""))
    backend, _ = backends.open_model(model_folder)
    assert backend.name == "torch"
    with pytest.raises(UserError, match="has a tokenizer without a mask"):
        backends.open_model(model_folder, "jax")
