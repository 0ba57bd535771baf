"""What settings become: lengths, batches, networks."""

from pathlib import Path

import numpy as np
import pytest

from cocondenser_jax.configs import cocondenser, condenser, default, small
from cocondenser_jax.corpus.examples import BatchSpec
from cocondenser_jax.corpus.store import WeightedCorpus, open_store
from cocondenser_jax.errors import UserError
from cocondenser_jax.pretrain.experiment import (
    OWN_VECTORS,
    VectorSettings,
    new_network,
    resolve,
    resolve_without_store,
    with_texts_as,
)
from cocondenser_jax.pretrain.objectives import OBJECTIVES
from cocondenser_jax.pretrain.step import LossSettings
from cocondenser_jax.representation import Representation
from tests.lines import whole
from tests.world import batches_of


class MSMARCO:
    """As many documents of two spans as MS MARCO's document collection has documents."""

    documents_of_pairs = np.arange(3_213_835)
    corpora = (WeightedCorpus(Path("marco"), 1.0, 0, 3_213_835),)
    path = Path("marco")
    vocab_size = 30_522
    pad_id = 0


def test_stage_two_on_ms_marco_has_the_papers_steps():
    config = cocondenser.get_config()
    config.probe.documents = 0  # 512 would change nothing but need the documents' tokens
    assert resolve(config, MSMARCO).n_steps == 12_552


@pytest.mark.parametrize(
    ("changes", "n_steps"),
    [
        ({"epochs": 3.0}, 9),  # 48 documents, 16 a step
        ({"epochs": 0.5}, 2),
        ({"epochs": 0.01}, 1),
        ({"epochs": 3.0, "steps": 7}, 7),
        ({"epochs": 3.0, "least_steps": 20}, 20),
        ({"epochs": 3.0, "least_steps": 8}, 9),
        ({"epochs": 3.0, "least_steps": 20, "steps": 7}, 7),
    ],
)
@pytest.mark.effect("pretrain train.epochs", "pretrain train.least_steps")
def test_a_run_is_as_long_as_its_steps_or_epochs(config, changes, n_steps):
    config = config.copy_and_resolve_references().unlock()
    config.train.steps = 0
    config.train.update(changes)
    assert resolve(config, open_store(Path(config.data.store))).n_steps == n_steps


def test_texts_are_read_as_those_of_the_vectors_that_are_trained(config):
    prompts = {"query": "q: ", "document": "d: ", "title_separator": "|"}
    vectors = Representation(prompts=(*prompts.items(),), query_length=9, passage_length=12)
    read = with_texts_as(resolve_without_store(config, 1, 100, 0), vectors)
    (query, passage), separator = read.batches.pair_specs, read.title_separator
    assert (*query, *passage, separator) == ("q: ", 9, "d: ", 12, "|")


def test_what_is_said_of_the_vectors_stands_in_place_of_their_own():
    own = Representation("mean", scale=100.0, sizes=(8,), max_length=9)
    assert OWN_VECTORS.instead_of(own) == own
    said = VectorSettings(Representation(), scale=3.0, sizes=(4, 2))
    assert said.instead_of(own) == Representation(scale=3.0, sizes=(4, 2), max_length=9)


def test_the_small_experiment_reads_its_corpus_and_has_a_floor(config):
    """Of 48 documents; a store of three spans each has as many times more spans."""
    store = open_store(Path(config.data.store))
    for argument, examples, epochs in (("condenser", store.n_spans, 1), ("cocondenser", 48, 8)):
        small_config = small.get_config(argument).unlock()
        assert resolve(small_config, store).n_steps == 300
        small_config.train.least_steps = 0
        small_config.data.batch_size = 4
        small_config.probe.every = 0
        assert resolve(small_config, store).n_steps == epochs * (examples // 4)


def test_an_epoch_of_stage_one_is_every_span(config):
    config = config.copy_and_resolve_references().unlock()
    config.train.update({"objective": "condenser", "steps": 0, "epochs": 2.0})
    store = open_store(Path(config.data.store))
    assert resolve(config, store).n_steps == 2 * (store.n_spans // 16)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_objective_decides_batches_and_head(objective):
    config = default.get_config().unlock()
    config.train.objective = objective
    experiment = resolve_without_store(config, 6, 80, 0)
    spec = experiment.batches
    sizes = experiment.network
    expected = {
        "mlm": ("span", True, 0),
        "condenser": ("span", True, 2),
        "retromae": ("copies", True, 2),
        "bow": ("span", True, 0),
        "cocondenser": ("spans", True, 2),
        "cobow": ("spans", True, 0),
        "contrastive": ("spans", False, 0),
        "ict": ("cloze", False, 0),
    }
    assert (spec.example, spec.masked, sizes["n_head_layers"]) == expected[objective]
    assert spec.n_rows == 2048 * (1 if spec.example == "span" else 2)
    assert sizes["hidden_size"] == 768


def test_the_settings_of_batches_and_loss_arrive():
    config = default.get_config().unlock()
    config.seed = 7
    config.data.update(batch_size=12, length=48, mask_probability=0.2, decoder_mask_probability=0.6)
    config.probe.update(every=5, documents=30)
    config.train.update(
        objective="retromae", mlm_weight=0.3, mlm_reduction="span_sum", chunk_size=4,
        dtype="bfloat16", kept_chunks=2, attention="xla",
    )  # fmt: skip
    experiment = resolve_without_store(config, 6, 80, 0)
    assert experiment.batches == BatchSpec(
        seed=7, batch_size=12, length=48, example="copies", masked=True, mask_probability=0.2,
        decoder_mask_probability=0.6, held_out=30,
    )  # fmt: skip
    assert experiment.step.loss == LossSettings(
        seed=7, objective="retromae", mlm_weight=0.3, mlm_reduction="span_sum", chunk_size=4,
        dtype="bfloat16", kept_chunks=2, attention="xla",
    )  # fmt: skip
    config.probe.every = 0
    assert resolve_without_store(config, 6, 80, 0).batches.held_out == 0


def test_the_papers_batches():
    first, second = batches_of(condenser.get_config()), batches_of(cocondenser.get_config())
    assert (first.n_rows, first.length) == (1024, 128)
    assert (second.n_rows, second.length) == (4096, 128)


def test_settings_of_a_network_that_do_not_go_together_are_named_as_such():
    config = default.get_config().unlock()
    config.model.hidden_size = 100
    network = resolve_without_store(config, 6, 80, 0).network
    with pytest.raises(
        UserError,
        match=whole("config.model: hidden_size 100 is not a multiple of num_attention_heads 12"),
    ):
        new_network(network)


@pytest.mark.parametrize(("objective", "skip_from"), [("condenser", 6), ("retromae", 0)])
def test_the_head_of_retromae_reads_embeddings(objective, skip_from):
    config = default.get_config().unlock()
    config.train.objective = objective
    assert resolve_without_store(config, 6, 80, 0).network["skip_from"] == skip_from
