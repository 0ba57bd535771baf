"""Proposed settings: what was measured, and what fits everywhere."""

import re

import numpy as np
import pytest

from cocondenser_jax.corpus.batches import held_out_documents
from cocondenser_jax.corpus.build import build_store
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.corpus.tokenizer import load_tokenizer
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import write_json
from cocondenser_jax.model_folder.modules import to_files
from cocondenser_jax.pipelines.backends import BACKENDS
from cocondenser_jax.pipelines.proposals import (
    check_given,
    propose_pairs,
    propose_pretraining,
    propose_training,
    with_overrides,
)
from cocondenser_jax.pretrain.step import check_batch
from cocondenser_jax.representation import Representation
from cocondenser_jax.settings import check
from tests.retrieval_data import LETTERS
from tests.world import as_flags, batches_of, write_records

JAX = BACKENDS["jax"]  # of eight devices


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
        # Those are refused: nothing that is given is changed.
        (["--config.train.chunk_size=6"], 6),
        (["--config.train.chunk_size=8", "--config.data.batch_size=16"], 8),
        # A batch of 16 spans has no second row for each.
        (["--config.train.objective=mlm", "--config.data.batch_size=16"], 2),
    ],
)
def test_the_chunks_fit_the_batch_unless_they_are_chosen(overrides, chunk_size):
    proposed = propose_pretraining(6_000, n_devices=8, on_cpu=True)
    assert with_overrides(proposed, overrides, n_devices=8).train.chunk_size == chunk_size


@pytest.mark.parametrize("on_cpu", [True, False])
def test_every_proposal_is_allowed_and_fits_its_devices(on_cpu):
    for n_spans in (0, 1, 9, 31, 100, 5_000, 20_001, 10_000_000):
        for n_devices in (1, 2, 3, 8, 32):
            config = propose_pretraining(n_spans, n_devices=n_devices, on_cpu=on_cpu)
            config = with_overrides(config, [], n_devices)
            check(config, complete=False)
            spec = batches_of(config)
            check_batch(spec, config.train.chunk_size, 512, n_devices)
            assert spec.batch_size <= max(n_spans, n_devices)


@pytest.fixture(scope="module")
def start(make_model):
    return make_model()  # of 64 positions, without an MLM projection


def read(folder, name="jax"):
    return BACKENDS[name].read(folder, load_tokenizer(str(folder)))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            {"train.chunk_size": 8, "data.batch_size": 16},
            "chunk_size 8 does not divide the 4 spans",
        ),
        ({"data.batch_size": 12}, "batch_size 12 is not a multiple of 8 devices"),
        ({"data.length": 65}, "length 65 is longer than the 64 tokens that the model"),
        ({"train.objective": "retromae", "train.chunk_size": 3}, "chunk_size 3 is odd"),
        ({"train.step": 3}, "did you mean config.train.steps"),
        ({"train.steps": "many"}, "config.train.steps is 'many'; expected a whole number"),
        ({"data.store": "other"}, "config.data.store cannot be given"),
        ({"warm_start": "other"}, "config.warm_start cannot be given"),
        ({"probe.every": 0}, "config.probe.every is 0 and config.probe.documents is 300; expected"),
        ({"probe.documents": 1}, "config.probe.documents is 1; expected 1 or more and 2 or more"),
        ({"probe.data": "nowhere"}, "nowhere does not exist: expected a folder of passages"),
        ({"init_head": False}, "has no MLM projection"),
    ],
)
def test_what_needs_no_store_is_refused_without_one(start, overrides, said):
    with pytest.raises(UserError, match=re.escape(said)):
        check_given(as_flags({"data.length": 64} | overrides), start, JAX, read(start))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"vocab_size": 80}, "token ids up to 148, but the model has 80 word embeddings"),
        ({"kind": "Roberta", "pad_token_id": 1}, "pads with 0, but pad_token_id of the model is 1"),
    ],
)
def test_another_models_tokenizer_is_refused_without_a_store(make_model, settings, said):
    start = make_model(**settings)
    with pytest.raises(UserError, match=said):
        check_given(["--config.data.length=32"], start, JAX, read(start))


def test_a_chunk_size_waits_for_the_batch_that_the_corpus_decides_on(start):
    config = check_given(
        ["--config.data.length=64", "--config.train.chunk_size=6"], start, JAX, read(start)
    )
    assert (config.data.length, config.train.chunk_size) == (64, 6)


@pytest.fixture(scope="module")
def store(tmp_path_factory, start, words):
    """A store of 40 documents of one span."""
    folder = tmp_path_factory.mktemp("proposals")
    rng = np.random.default_rng(0)
    texts = ({"text": " ".join(rng.choice(words, 12))} for _ in range(40))
    write_records(folder / "texts.jsonl", texts)
    build_store(str(folder / "texts.jsonl"), str(start), folder / "store", max_tokens=64)
    return open_store(folder / "store")


def train(store, start, overrides):
    return propose_training(
        store, start, as_flags({"data.length": 64} | overrides), JAX, read(start)
    )


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"train.chunk_size": 6}, "chunk_size 6 does not divide the 8 spans of a device"),
        ({"data.batch_size": 40}, "batch_size 40 takes 40 spans of"),
        ({"data.pairs": "spans"}, "documents of two spans"),
    ],
)
def test_what_does_not_fit_the_corpus_is_refused(store, start, overrides, said):
    with pytest.raises(UserError, match=re.escape(said)):
        train(store, start, overrides)


def test_a_training_has_what_was_given_and_what_fits(store, start):
    training = train(store, start, {"train.steps": 7})
    config = training.config
    assert (config.data.store, config.warm_start) == (str(store.path), str(start))
    assert (config.data.batch_size, config.data.pairs, config.train.chunk_size) == (32, "crops", 8)
    assert training.experiment.n_steps == 7
    expected = held_out_documents(store, 300, of_one_span=True)
    assert training.documents_H.tolist() == expected.tolist()
    assert len(expected) == 4


@pytest.mark.parametrize(("n_sentences", "pairs"), [(1, "crops"), (2, "sentence"), (3, "sentence")])
def test_what_is_a_pair_follows_from_the_sentences_of_a_span(
    tmp_path, start, words, n_sentences, pairs
):
    rng = np.random.default_rng(0)
    texts = []
    for number in range(12):
        sentences = [" ".join(rng.choice(words, 12 // n_sentences)) for _ in range(n_sentences)]
        text = ". ".join(sentence.capitalize() for sentence in sentences)
        texts.append({"id": str(number), "text": text})
    write_records(tmp_path / "texts.jsonl", texts)
    build_store(str(tmp_path / "texts.jsonl"), str(start), tmp_path / "store")
    assert propose_pairs(open_store(tmp_path / "store")) == pairs


def test_rows_are_no_longer_than_the_texts_that_the_model_reads(make_model, tmp_path):
    start = make_model(max_position_embeddings=200)
    assert check_given([], start, JAX, read(start)).data.length == 128
    published = Representation("mean", prompts=(("query", "ab: "),), max_length=40)
    for name, content in to_files(published, 32, 200, {}).items():
        write_json(start / name, content)
    assert check_given([], start, JAX, read(start)).data.length == 40
    assert check_given(["--config.data.length=13"], start, JAX, read(start)).data.length == 13
    for length, said in (
        (41, "longer than the 40 tokens that the model"),
        (11, "prompt 'ab: ', of 2"),
    ):
        with pytest.raises(UserError, match=said):
            check_given([f"--config.data.length={length}"], start, JAX, read(start))

    pairs = [first + second for first in LETTERS for second in LETTERS]
    texts = ({"text": " ".join(["ab", *LETTERS, pair])} for pair in pairs[:40])
    write_records(tmp_path / "texts.jsonl", texts)
    build_store(str(tmp_path / "texts.jsonl"), str(start), tmp_path / "store", max_tokens=40)
    training = propose_training(open_store(tmp_path / "store"), start, [], JAX, read(start))
    assert training.experiment.batches.length == 40


def test_adapters_take_ten_times_the_steps_of_weights(store, start):
    rates = {}
    for name in ("jax", "torch", "lora"):
        overrides = as_flags({"data.length": 64})
        config = propose_training(store, start, overrides, BACKENDS[name], read(start, name)).config
        rates[name] = config.optimizer.learning_rate
    assert rates == {"jax": 3e-5, "torch": 3e-5, "lora": pytest.approx(3e-4)}
