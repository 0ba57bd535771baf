"""The network against transformers' own, layer by layer and through the Condenser head."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from transformers import MPNetConfig
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from checks.reference import open_reference
from cocondenser_jax.configs import default
from cocondenser_jax.convert.from_torch import load_folder
from cocondenser_jax.convert.names import to_tensors
from cocondenser_jax.model.condenser import Condenser
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model.encoder import RelativeBias, distance_buckets
from cocondenser_jax.pretrain.optimizer import AdamW, clip, make_optimizer
from cocondenser_jax.representation import SPELLINGS

# Far above what rounding leaves of a gradient that is zero, which AdamW would divide by itself.
EPS = 1e-4
DEPTHS = [(0, 2), (1, 1), (2, 2)]  # skip_from, n_head_layers; 2 is the last layer


def pytorch(folder, spans, skip_from, n_head_layers):
    """The reference model at another depth, and its outputs at the masked positions."""
    reference = open_reference(folder)
    reference.skip_from, reference.c_head = skip_from, reference.c_head[:n_head_layers]
    ids, mask, positions = as_torch(spans)
    output = reference(ids, mask)
    rows = torch.arange(len(ids))[:, None]
    return reference, {
        "vectors": output.vectors_BxD,
        "head_logits": output.head_logits_BxLxV[rows, positions],
        "late_logits": output.late_logits_BxLxV[rows, positions],
    }


def as_torch(spans):
    return tuple(torch.from_numpy(x.astype(bool if x.dtype == bool else np.int64)) for x in spans)


def load(folder, skip_from, n_head_layers, late_mlm=True):
    config, params = load_folder(str(folder), skip_from=skip_from)
    config = dataclasses.replace(config, late_mlm=late_mlm)
    kept = {k: v for k, v in params.items() if k != "head_1" or n_head_layers == 2}
    return dataclasses.replace(config, n_head_layers=n_head_layers), kept


def test_vectors_equal_those_of_plain_transformers(research_folder, spans):
    """And the logits of the head that reads the pooled vector those of the reference."""
    representation = SPELLINGS["mean-cosine"]
    config, params = load(research_folder, 1, 2)
    config = dataclasses.replace(config, representation=representation)
    reference = open_reference(research_folder)
    reference.representation, reference.skip_from = representation, 1
    ids, mask, positions = as_torch(spans)
    with torch.no_grad():
        hidden = reference.lm.base_model(input_ids=ids, attention_mask=mask).last_hidden_state
        theirs = reference(ids, mask)
    rows = [hidden[i][mask[i]].double() for i in range(len(ids))]
    means = [x.mean(dim=0) for x in rows]
    expected = torch.stack([x / x.norm() for x in means]).numpy()

    out = jax.jit(Condenser(config).apply)({"params": params}, *spans)

    np.testing.assert_allclose(out.vectors_BxD, expected, rtol=0, atol=1e-4)
    np.testing.assert_allclose(theirs.vectors_BxD, expected, rtol=0, atol=1e-5)
    logits = theirs.head_logits_BxLxV[torch.arange(len(ids))[:, None], positions]
    np.testing.assert_allclose(out.head_logits_BxMxV, logits.numpy(), rtol=0, atol=1e-4)


def test_distances_have_the_buckets_of_transformers():
    distances = np.arange(-700, 701)
    theirs = MPNetEncoder.relative_position_bucket(torch.from_numpy(distances)).numpy()
    np.testing.assert_array_equal(distance_buckets(distances, 32), theirs)


@pytest.mark.parametrize("length", [1, 2, 24, 300])
def test_the_relative_bias_is_that_of_transformers(length):
    """Beyond the longest span of the other tests, too: buckets of far distances."""
    config = ModelConfig(model_type="mpnet", pad_token_id=1, num_attention_heads=4)
    small = {"hidden_size": 8, "num_attention_heads": 4, "num_hidden_layers": 0, "vocab_size": 9}
    encoder = MPNetEncoder(MPNetConfig(**small))
    table = encoder.relative_attention_bias.weight.detach().numpy()
    with torch.no_grad():
        theirs = encoder.compute_position_bias(torch.zeros(1, length, 8))[0].numpy()
    ours = RelativeBias(config).apply({"params": {"table": table}}, length)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(("skip_from", "n_head_layers"), DEPTHS)
def test_forward_equals_pytorch(research_folder, spans, skip_from, n_head_layers):
    config, params = load(research_folder, skip_from, n_head_layers)
    with torch.no_grad():
        _, theirs = pytorch(research_folder, spans, skip_from, n_head_layers)
    theirs = {name: value.numpy() for name, value in theirs.items()}

    out = jax.jit(Condenser(config).apply)({"params": params}, *spans)

    assert np.abs(theirs["head_logits"]).max() > 1.0  # else the tolerance would say little
    np.testing.assert_allclose(out.vectors_BxD, theirs["vectors"], rtol=0, atol=1e-4)
    np.testing.assert_allclose(out.head_logits_BxMxV, theirs["head_logits"], rtol=0, atol=1e-4)
    np.testing.assert_allclose(out.late_logits_BxMxV, theirs["late_logits"], rtol=0, atol=1e-4)


def test_the_weak_decoder_equals_pytorch(research_folder, spans):
    """The head reads the embeddings of other tokens, and predicts in another order."""
    config, params = load(research_folder, skip_from=0, n_head_layers=1)
    ids, mask, positions = spans
    decoded = np.where(mask, 5 + ids % 70, ids), positions[:, ::-1].copy()
    reference, _ = pytorch(research_folder, spans, 0, 1)
    decoder_ids, rows = as_torch(decoded)
    with torch.no_grad():
        output = reference(*as_torch((ids, mask)), decoder_ids_BxL=decoder_ids)
    theirs = output.head_logits_BxLxV[torch.arange(len(ids))[:, None], rows].numpy()

    out = jax.jit(Condenser(config).apply)({"params": params}, *spans, decoded=decoded)

    assert np.abs(out.head_logits_BxMxV).max() > 1.0  # else the tolerance would say little
    np.testing.assert_allclose(out.head_logits_BxMxV, theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("skip_from", "n_head_layers"), [(1, 2), (2, 1)])
def test_gradients_and_a_step_of_adamw_equal_pytorch(
    research_folder, spans, skip_from, n_head_layers
):
    """Of a loss with all three outputs, for every tensor, the tied word embeddings among them."""
    config, params = load(research_folder, skip_from, n_head_layers)
    labels_BxM = np.random.default_rng(5).integers(5, 80, spans[2].shape)

    def loss(params):
        out = Condenser(config).apply({"params": params}, *spans)
        cross_entropy = optax.losses.softmax_cross_entropy_with_integer_labels
        return (
            cross_entropy(out.head_logits_BxMxV, labels_BxM).mean()
            + cross_entropy(out.late_logits_BxMxV, labels_BxM).mean()
            + jnp.square(out.vectors_BxD).sum() / 100
        )

    value, gradients = jax.jit(jax.value_and_grad(loss))(params)
    ours = to_tensors(gradients, config)

    reference, out = pytorch(research_folder, spans, skip_from, n_head_layers)
    labels = torch.from_numpy(labels_BxM).flatten()
    their_value = (
        torch.nn.functional.cross_entropy(out["head_logits"].flatten(0, 1), labels)
        + torch.nn.functional.cross_entropy(out["late_logits"].flatten(0, 1), labels)
        + out["vectors"].square().sum() / 100
    )
    their_value.backward()
    theirs = reference.gradients()

    assert value == pytest.approx(their_value.item(), rel=1e-5)
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        # Zero in exact arithmetic: softmax ignores a common shift.
        if name.endswith((".key.bias", ".k.bias")):
            np.testing.assert_allclose(ours[name], 0.0, atol=1e-5)
            continue
        error = np.linalg.norm(ours[name] - gradient) / np.linalg.norm(gradient)
        assert error <= 1e-4, f"{name}: relative error {error:.1e}"

    steps = AdamW(**default.get_config().optimizer, n_steps=1)._replace(eps=EPS)
    optimizer = make_optimizer(steps)

    @jax.jit
    def update(gradients, params):
        clipped = clip(gradients, optax.global_norm(gradients), steps.clip_norm)
        return optimizer.update(clipped, optimizer.init(params), params)[0]

    updates = update(gradients, params)
    moved, ours = torch_step(reference), to_tensors(updates, config)
    whole = np.linalg.norm([np.linalg.norm(x) for x in moved.values()])
    for name, update in ours.items():
        assert np.linalg.norm(update - moved[name]) <= 1e-4 * whole, name


def torch_step(reference):
    """How far one step of AdamW, with clipping and decay as ours, moves each tensor."""
    named = dict(reference.named_parameters(remove_duplicate=False))
    before = {name: p.detach().clone() for name, p in named.items()}
    once = dict(reference.named_parameters())
    free = {name for name, p in once.items() if p.ndim == 1 or "relative_attention_bias" in name}
    groups = [
        {"params": [p for name, p in once.items() if name not in free], "weight_decay": 0.01},
        {"params": [once[name] for name in free], "weight_decay": 0.0},
    ]
    assert torch.nn.utils.clip_grad_norm_(reference.parameters(), 1.0) > 1.0
    torch.optim.AdamW(groups, lr=1e-4, eps=EPS).step()
    moved = {name: (p.detach() - before[name]).numpy() for name, p in named.items()}
    return {name.removeprefix("lm."): x for name, x in moved.items()}
