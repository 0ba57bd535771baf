"""A checkpoint compared on a real batch: our two-pass step, our direct pass, and plain PyTorch.

All three compute the same losses and the gradient of every tensor, in float32, without dropout and
with the same masks. PyTorch's are computed by transformers' modules, and share no code with ours.
"""

import dataclasses
import functools
import re
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from ml_collections import ConfigDict

from cocondenser_jax.convert.from_torch import load_folder
from cocondenser_jax.convert.names import to_tensors
from cocondenser_jax.convert.reference import (
    IGNORED,
    TorchCondenser,
    contrastive_loss,
    full_labels,
    mlm_sum,
    open_reference,
)
from cocondenser_jax.convert.to_torch import export_folder
from cocondenser_jax.corpus.batches import Batch, BatchSpec, make_batch
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.errors import UserError
from cocondenser_jax.model.condenser import Condenser
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.pretrain.checkpoint import load_run
from cocondenser_jax.pretrain.experiment import step_settings
from cocondenser_jax.pretrain.step import LossSettings, batch_gradient, check_batch
from cocondenser_jax.storage.files import new_file
from cocondenser_jax.storage.hub import find_folder

TWO_PASS_TOLERANCE = 1e-5  # two passes against one, relative
TORCH_TOLERANCE = 1e-4  # Flax against PyTorch, relative
GRADIENT = "gradient"

Tensors = dict[str, np.ndarray]  # by their names in a Hugging Face checkpoint


class Computed(NamedTuple):
    """What one of the three implementations computes."""

    losses: dict[str, float]
    cls_SxD: np.ndarray
    gradients: Tensors


class Row(NamedTuple):
    """One quantity by all three implementations, and how far two are from the direct pass.

    The differences are relative to the quantity, those of a part of the gradient to the whole
    gradient: a part can be next to nothing, a sum of terms that cancel.
    """

    name: str
    two_pass: float
    direct: float
    pytorch: float
    two_pass_error: float
    pytorch_error: float

    @property
    def passes(self) -> bool:
        """Whether both differences are within tolerance."""
        within = self.two_pass_error <= TWO_PASS_TOLERANCE
        return within and self.pytorch_error <= TORCH_TOLERANCE


def verify_checkpoint(
    checkpoint: Path,
    *,
    step: int | None = None,
    pytorch_folder: Path | None = None,
    store: Path | None = None,
    n_documents: int = 8,
    batch_out: Path | None = None,
) -> list[Row]:
    """Compares the three implementations, for a checkpoint of a run: the latest, or that of a step.

    Without `pytorch_folder`, the same checkpoint exported, it is exported to a temporary folder.
    The batch has two spans of each of the first `n_documents` of the run's store, or of another; it
    is written to `batch_out`, an .npz file, with our results.

    Returns:
      The losses, the CLS vectors, and the gradient, as a whole and by part of the network. Of
      vectors the norm is shown, but all numbers are compared.
    """
    model_config, params, run = load_run(checkpoint, step)
    if "config" not in run:
        raise UserError(f"{checkpoint} was converted, not trained: it says nothing about its data")
    config = ConfigDict(run["config"])
    model_config = dataclasses.replace(
        model_config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    tokens = open_store(store or Path(config.data.store))
    n_largest = len(tokens.documents_of_pairs)
    if not 2 <= n_documents <= n_largest:
        raise UserError(f"{n_documents} documents: expected 2 to {n_largest}, those with two spans")
    spec = BatchSpec(config.seed, n_documents, config.data.length)
    # Of 2 * n_documents spans: two chunks.
    settings = step_settings(config, n_steps=1).loss._replace(
        objective="cocondenser", dtype="float32", chunk_size=n_documents
    )
    check_batch(spec, settings.chunk_size, model_config.max_length, n_devices=1)
    batch = make_batch(tokens, spec, step=0)
    two_pass = _flax_side(model_config, settings, params, batch)
    direct = _flax_side(model_config, settings._replace(chunk_size=0), params, batch)
    with tempfile.TemporaryDirectory() as temporary:
        folder = find_folder(pytorch_folder) if pytorch_folder else Path(temporary) / "model"
        if pytorch_folder is None:
            export_folder(params, model_config, checkpoint / "tokenizer", folder, {})
        else:
            _require_same_model(folder, checkpoint, model_config)
        reference = open_reference(folder)
    pytorch = _torch_side(reference, model_config.late_mlm, settings, batch)
    if batch_out:
        _write(batch_out, batch, direct)
    return _compare(two_pass, direct, pytorch)


def _require_same_model(folder: Path, checkpoint: Path, expected: ModelConfig) -> None:
    found = load_folder(str(folder))[0].to_dict()
    for name, value in expected.to_dict().items():
        if found[name] != value and not name.endswith("dropout_prob"):
            raise UserError(f"{folder}: {name} is {found[name]}, but {value} in {checkpoint}")


def _flax_side(
    model_config: ModelConfig, settings: LossSettings, params: Any, batch: Batch
) -> Computed:
    """Computes ours; with chunks in two passes, whose CLS vectors are those of the first."""
    losses, grads = batch_gradient(model_config, settings, params, batch)
    model, variables = Condenser(model_config), {"params": params}
    ids, mask = batch.input_ids_SxL, batch.attention_mask_SxL
    if settings.chunk_size:
        cls_SxD = jax.jit(functools.partial(model.apply, method="encode"))(variables, ids, mask)
    else:
        cls_SxD = jax.jit(model.apply)(variables, ids, mask, batch.masked_positions_SxM).cls_BxD
    return Computed(
        {name: float(value) for name, value in losses.items()},
        np.asarray(cls_SxD),
        to_tensors(grads, model_config),
    )


def _torch_side(
    model: TorchCondenser, late_mlm: bool, settings: LossSettings, batch: Batch
) -> Computed:
    ids, mask = torch.from_numpy(batch.input_ids_SxL), torch.from_numpy(batch.attention_mask_SxL)
    labels = full_labels(batch)
    n_masked = (labels != IGNORED).sum()
    output = model(ids, mask, late_mlm)
    cls_SxD = output.late_BxLxD[:, 0]
    logits = {"head_mlm_loss": output.head_logits_BxLxV, "late_mlm_loss": output.late_logits_BxLxV}
    losses = {
        name: mlm_sum(logits_BxLxV, labels) / n_masked
        for name, logits_BxLxV in logits.items()
        if logits_BxLxV is not None
    }
    mlm = settings.mlm_weight * sum(losses.values())
    if settings.mlm_reduction == "span_sum":
        mlm = mlm * n_masked / len(labels)
    losses["contrastive_loss"] = contrastive_loss(cls_SxD)
    losses["loss"] = mlm + losses["contrastive_loss"]
    losses["loss"].backward()
    return Computed(
        {name: value.item() for name, value in losses.items()},
        cls_SxD.detach().numpy(),
        model.gradients(),
    )


def _compare(*computed: Computed) -> list[Row]:
    """Returns the rows for what the two passes, the direct pass and PyTorch computed."""
    sides = [_quantities(each) for each in computed]

    def row(name: str) -> Row:
        two_pass, one_pass, pytorch = (side[name] for side in sides)
        norms = [float(np.linalg.norm(x)) for x in (two_pass, one_pass, pytorch)]
        size = float(np.linalg.norm(sides[1][GRADIENT if name.startswith(GRADIENT) else name]))
        errors = [float(np.linalg.norm(one_pass - x)) / size for x in (two_pass, pytorch)]
        return Row(name, *norms, *errors)

    return [row(name) for name in sides[1]]


def _quantities(side: Computed) -> Tensors:
    """Returns what is compared, each as one vector: losses, CLS vectors, gradients by part."""
    parts: dict[str, list[np.ndarray]] = {}
    for name, gradient in sorted(side.gradients.items()):
        for part in (GRADIENT, f"{GRADIENT}, {_part(name)}"):
            parts.setdefault(part, []).append(gradient.ravel().astype(np.float64))
    return {
        **{name.replace("_", " "): np.array(side.losses[name]) for name in sorted(side.losses)},
        "CLS vectors": side.cls_SxD.ravel(),
        **{part: np.concatenate(vectors) for part, vectors in parts.items()},
    }


def _part(tensor_name: str) -> str:
    """Names the part of the network: the embeddings, a layer, the head, the MLM projection."""
    words = tensor_name.split(".")
    if words[0] == "c_head":
        return f"head layer {words[1]}"
    if layer := re.search(r"\.layers?\.(\d+)\.", tensor_name):
        return f"layer {layer[1]}"
    return "embeddings" if "embeddings" in words else "MLM projection"


def _write(path: Path, batch: Batch, side: Computed) -> None:
    names = sorted(side.gradients)
    arrays: dict[str, Any] = {
        "input_ids": batch.input_ids_SxL,
        "attention_mask": batch.attention_mask_SxL,
        "labels": full_labels(batch).numpy(),
        "cls": side.cls_SxD,
        "tensor_names": np.array(names),
        "gradient_norms": np.array([np.linalg.norm(side.gradients[name]) for name in names]),
        **side.losses,
    }
    with new_file(path) as partial, partial.open("wb") as file:
        np.savez_compressed(file, **arrays)
