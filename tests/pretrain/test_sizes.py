"""Vectors of several sizes: the step beside sentence-transformers' MatryoshkaLoss."""

from pathlib import Path

import jax
import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import (
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
)

from cocondenser_jax.cli import main
from cocondenser_jax.convert.names import to_tensors
from cocondenser_jax.convert.to_torch import export_folder
from cocondenser_jax.corpus.batches import make_batch
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.model.condenser import init_params
from cocondenser_jax.pretrain.checkpoint import load_run
from cocondenser_jax.pretrain.devices import batch_gradient
from tests.world import as_flags, batches_of, model_of, relative_error, step_of

pytestmark = pytest.mark.usefixtures("one_length")


def changed(config, **settings):
    config = config.copy_and_resolve_references().unlock()
    config.update_from_flattened_dict(
        {name.replace("__", "."): value for name, value in settings.items()}
    )
    return config.lock()


def first_batch(config):
    """A new network with wide weights, a batch of 16 pairs, and the settings of its loss."""
    store = open_store(Path(config.data.store))
    model_config = model_of(config, store)
    params = init_params(model_config, 0)
    params = jax.tree.map(lambda x: 8 * x if x.ndim == 2 else x, params)
    batch = make_batch(store, batches_of(config), 0)
    return model_config, params, batch, step_of(config, 1).loss


@pytest.mark.effect("pretrain model.sizes")
@pytest.mark.parametrize("sizes", [(16, 8, 3), (12, 5)])
def test_the_loss_and_its_gradient_are_those_of_matryoshka_loss(config, tmp_path, sizes):
    """Of queries against passages, as MultipleNegativesRankingLoss has them, for every tensor."""
    config = changed(
        config,
        train__objective="ict",
        train__chunk_size=0,
        model__representation="mean-cosine",
        model__sizes=sizes,
    )
    model_config, params, batch, settings = first_batch(config)
    rows = np.arange(len(batch.origins_Sx2))
    # All texts are of different documents: there, every other passage is a negative.
    batch = batch._replace(origins_Sx2=np.stack([rows // 2, rows], axis=1))
    losses, gradients = batch_gradient(model_config, settings, params, batch)
    found = to_tensors(gradients, model_config)

    tokenizer = open_store(Path(config.data.store)).tokenizer_folder
    export_folder(params, model_config, tokenizer, tmp_path / "model", {})
    model = SentenceTransformer(str(tmp_path / "model")).eval()
    assert model.truncate_dim == (None if sizes[0] == 16 else sizes[0])
    model.truncate_dim = None  # else the loss would know of no larger size
    loss = MatryoshkaLoss(model, MultipleNegativesRankingLoss(model, scale=20.0), sizes)
    features = [
        {
            "input_ids": torch.from_numpy(batch.input_ids_SxL[first::2]),
            "attention_mask": torch.from_numpy(batch.attention_mask_SxL[first::2]).long(),
        }
        for first in (0, 1)
    ]
    theirs = loss(features, None)
    theirs.backward()

    assert float(losses["loss"]) == pytest.approx(theirs.item(), rel=1e-5)
    for name, parameter in model[0].auto_model.named_parameters():
        if name.endswith(".key.bias"):  # zero in exact arithmetic
            continue
        gradient = parameter.grad.numpy()
        error = np.linalg.norm(found[f"bert.{name}"] - gradient) / np.linalg.norm(gradient)
        assert error <= 1e-4, f"{name}: relative error {error:.1e}"


@pytest.mark.parametrize("objective", ["cocondenser", "contrastive"])
def test_the_two_passes_are_one_for_vectors_of_several_sizes(config, objective):
    config = changed(
        config,
        train__objective=objective,
        model__representation="cls-cosine",
        model__sizes=(12, 8, 3),
    )
    model_config, params, batch, settings = first_batch(config)
    whole = batch_gradient(model_config, settings._replace(chunk_size=0), params, batch)
    parts = batch_gradient(model_config, settings._replace(chunk_size=4), params, batch)
    assert float(parts[0]["loss"]) == pytest.approx(float(whole[0]["loss"]), rel=1e-5)
    assert relative_error(parts[1], whole[1]) <= 1e-5


def test_inner_products_are_of_the_cut_vectors_as_they_are(config):
    """The sum over sizes of the loss of a network whose vectors have that size."""
    config = changed(config, train__objective="contrastive", model__representation="mean")
    sizes = (16, 8, 3)
    whole = changed(config, model__sizes=sizes)
    model_config, params, batch, settings = first_batch(whole)
    losses, _ = batch_gradient(model_config, settings, params, batch)
    alone = []
    for size in sizes:
        model_config, *_ = first_batch(changed(config, model__sizes=(size,)))
        alone.append(float(batch_gradient(model_config, settings, params, batch)[0]["loss"]))
    assert len(set(alone)) == 3
    assert float(losses["loss"]) == pytest.approx(sum(alone), rel=1e-5)


@pytest.mark.parametrize("given", ["[32,8]", "[8,16]", "[8,8]", "[]8", "[0]"])
def test_sizes_that_cannot_be_are_refused_before_anything_is_written(
    config, tmp_path, capsys, given
):
    flags = [*as_flags({"data.store": config.data.store, "model.hidden_size": 16})]
    flags += as_flags({"model.num_attention_heads": 2, "data.length": 16})
    command = ["pretrain", "--config=configs/default.py", *flags]
    run = tmp_path / "run"
    assert main([*command, f"--workdir={run}", f"--config.model.sizes={given}"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "sizes" in error
    assert not run.exists()


def test_a_run_with_sizes_resumes(config, tmp_path, capsys):
    settings = {"model.sizes": "[16,8]", "train.objective": "contrastive", "train.steps": 2}
    run = tmp_path / "run"
    store = config.data.store
    tiny = as_flags({"data.store": store, "data.batch_size": 16, "data.length": 16, **settings})
    sizes = ("hidden_size", "intermediate_size", "max_position_embeddings")
    tiny += as_flags({f"model.{name}": config.model[name] for name in sizes})
    tiny += as_flags({"model.num_attention_heads": 2, "model.num_hidden_layers": 2})
    tiny += as_flags({"model.skip_from": 1, "probe.every": 0, "train.chunk_size": 0})
    command = ["pretrain", "--config=configs/default.py", f"--workdir={run}", *tiny]
    assert main(command) == 0, capsys.readouterr().err
    assert main(command) == 0  # nothing is left to do, and nothing differs
    capsys.readouterr()
    assert load_run(run)[0].representation.sizes == (16, 8)
