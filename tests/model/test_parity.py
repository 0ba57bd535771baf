"""The network against transformers' own, layer by layer and through the Condenser head."""

import dataclasses
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from transformers import AutoModelForMaskedLM
from transformers.models.bert.modeling_bert import BertLayer
from transformers.models.roberta.modeling_roberta import RobertaLayer

from cocondenser_jax.convert.from_torch import load_folder
from cocondenser_jax.convert.names import to_tensors
from cocondenser_jax.model.condenser import Condenser

DEPTHS = [(0, 2), (1, 1), (2, 2)]  # skip_from, n_head_layers; 2 is the last layer


class TorchCondenser(torch.nn.Module):
    """Written from the paper's figure 2 with the layers of transformers, full sequences."""

    def __init__(self, folder: Path, skip_from: int, n_head_layers: int) -> None:
        super().__init__()
        self.lm = AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="eager").eval()
        layer = BertLayer if self.lm.config.model_type == "bert" else RobertaLayer
        self.c_head = torch.nn.ModuleList(layer(self.lm.config) for _ in range(2)).eval()
        state = torch.load(folder / "model.pt", weights_only=True)
        self.c_head.load_state_dict({k.removeprefix("c_head."): v for k, v in state.items()})
        self.c_head = self.c_head[:n_head_layers]
        self.skip_from = skip_from
        self.project = self.lm.cls if self.lm.config.model_type == "bert" else self.lm.lm_head

    def forward(self, ids, mask, positions):
        states = self.lm.base_model(
            input_ids=ids, attention_mask=mask, output_hidden_states=True
        ).hidden_states
        late = states[-1]
        hidden = torch.cat([late[:, :1], states[self.skip_from][:, 1:]], dim=1)
        blocked = torch.where(mask, 0.0, torch.finfo(torch.float32).min)[:, None, None, :]
        for layer in self.c_head:
            hidden = layer(hidden, blocked)
        rows = torch.arange(len(ids))[:, None]
        return {
            "hidden": late,
            "cls": late[:, 0],
            "head_logits": self.project(hidden)[rows, positions],
            "late_logits": self.project(late)[rows, positions],
        }


def as_torch(spans):
    return tuple(torch.from_numpy(x.astype(bool if x.dtype == bool else np.int64)) for x in spans)


def load(folder: Path, skip_from: int, n_head_layers: int, late_mlm: bool = True):
    config, params = load_folder(str(folder), skip_from=skip_from, late_mlm=late_mlm)
    kept = {k: v for k, v in params.items() if k != "head_1" or n_head_layers == 2}
    return dataclasses.replace(config, n_head_layers=n_head_layers), kept


def test_hidden_states_equal_pytorch(research_folder, spans):
    config, params = load(research_folder, 1, 2)
    with torch.no_grad():
        theirs = TorchCondenser(research_folder, 1, 2)(*as_torch(spans))["hidden"].numpy()

    ids, mask, _ = spans
    apply = functools.partial(Condenser(config).apply, method="hidden_states")
    ours = jax.jit(apply)({"params": params}, ids, mask)

    np.testing.assert_allclose(ours[mask], theirs[mask], rtol=0, atol=1e-4)


@pytest.mark.parametrize(("skip_from", "n_head_layers"), DEPTHS)
def test_forward_equals_pytorch(research_folder, spans, skip_from, n_head_layers):
    config, params = load(research_folder, skip_from, n_head_layers)
    with torch.no_grad():
        theirs = TorchCondenser(research_folder, skip_from, n_head_layers)(*as_torch(spans))
    theirs = {name: value.numpy() for name, value in theirs.items()}

    out = jax.jit(Condenser(config).apply)({"params": params}, *spans)

    assert np.abs(theirs["head_logits"]).max() > 1.0  # else the tolerance would say little
    np.testing.assert_allclose(out.cls_BxD, theirs["cls"], rtol=0, atol=1e-4)
    np.testing.assert_allclose(out.head_logits_BxMxV, theirs["head_logits"], rtol=0, atol=1e-4)
    np.testing.assert_allclose(out.late_logits_BxMxV, theirs["late_logits"], rtol=0, atol=1e-4)


@pytest.mark.parametrize(("skip_from", "n_head_layers"), [(1, 2), (2, 1)])
def test_gradients_equal_pytorch(research_folder, spans, skip_from, n_head_layers):
    """Of a loss with all three outputs, for every tensor, the tied word embeddings among them."""
    config, params = load(research_folder, skip_from, n_head_layers)
    labels_BxM = np.random.default_rng(5).integers(5, 80, spans[2].shape)

    def loss(params):
        out = Condenser(config).apply({"params": params}, *spans)
        cross_entropy = optax.losses.softmax_cross_entropy_with_integer_labels
        return (
            cross_entropy(out.head_logits_BxMxV, labels_BxM).mean()
            + cross_entropy(out.late_logits_BxMxV, labels_BxM).mean()
            + jnp.square(out.cls_BxD).sum() / 100
        )

    value, gradients = jax.jit(jax.value_and_grad(loss))(params)
    ours = to_tensors(gradients, config)

    reference = TorchCondenser(research_folder, skip_from, n_head_layers)
    out = reference(*as_torch(spans))
    labels = torch.from_numpy(labels_BxM).flatten()
    their_value = (
        torch.nn.functional.cross_entropy(out["head_logits"].flatten(0, 1), labels)
        + torch.nn.functional.cross_entropy(out["late_logits"].flatten(0, 1), labels)
        + out["cls"].square().sum() / 100
    )
    their_value.backward()
    theirs = {
        name.removeprefix("lm."): parameter.grad.numpy()
        for name, parameter in reference.named_parameters()
        if parameter.grad is not None and not name.startswith("project.")
    }

    assert value == pytest.approx(their_value.item(), rel=1e-5)
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        if name.endswith("key.bias"):  # zero in exact arithmetic: softmax ignores a common shift
            np.testing.assert_allclose(ours[name], 0.0, atol=1e-5)
            continue
        error = np.linalg.norm(ours[name] - gradient) / np.linalg.norm(gradient)
        assert error <= 1e-4, f"{name}: relative error {error:.1e}"
