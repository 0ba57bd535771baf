"""Compares our two-pass step, our direct pass and plain PyTorch, for a checkpoint and a real batch.

All three compute the losses and the gradient of every tensor, in float32, without dropout and with
the same masks. PyTorch computes with transformers' modules; our code only reads the folder's
settings, and the tensors of the head and of dense layers.

  python -m checks.verify --run_dir=runs/cocondenser --pytorch_folder=runs/model

The exit status is 1 if they differ.
"""

import argparse
import dataclasses
import functools
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from ml_collections import ConfigDict

from checks.reference import (
    IGNORED,
    TorchCondenser,
    contrastive_loss,
    cut,
    full_labels,
    mlm_sum,
    open_reference,
)
from cocondenser_jax.cli.output import print_table
from cocondenser_jax.convert.from_torch import load_folder
from cocondenser_jax.convert.names import to_tensors
from cocondenser_jax.convert.to_torch import export_folder
from cocondenser_jax.corpus.batches import Batch, BatchSpec, make_batch
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import write_json
from cocondenser_jax.model.condenser import Condenser
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model_folder.hub import find_folder
from cocondenser_jax.model_folder.modules import to_files
from cocondenser_jax.pretrain.checkpoint import load_run
from cocondenser_jax.pretrain.devices import batch_gradient, prepare_libtpu
from cocondenser_jax.pretrain.experiment import resolve
from cocondenser_jax.pretrain.step import LossSettings, check_batch

TWO_PASS_TOLERANCE = 1e-5  # two passes against one, relative
TORCH_TOLERANCE = 1e-4  # Flax against PyTorch, relative

Quantities = dict[str, np.ndarray]  # losses, CLS vectors and gradients by tensor


class Row(NamedTuple):
    """One quantity by all three implementations, and differences from the direct pass.

    Differences are relative to the quantity; for a single tensor, to the whole gradient, since a
    tensor's gradient may be close to zero, as a sum of terms that cancel.
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


def main(argv: list[str] | None = None) -> int:
    """Prints the comparison; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run_dir", type=Path, required=True, help="a run folder of pretrain")
    parser.add_argument("--step", type=int, help="step of the checkpoint (default: the latest)")
    parser.add_argument(
        "--pytorch_folder",
        type=Path,
        help="the same checkpoint, already converted (default: convert it)",
    )
    parser.add_argument("--store", type=Path, help="token store (default: where the run had it)")
    parser.add_argument("--documents", type=int, default=8, help="in the batch")
    parser.add_argument("--json_out", type=Path, help="also write the results to this JSON file")
    arguments = parser.parse_args(argv)
    prepare_libtpu()
    try:
        rows = verify_checkpoint(
            arguments.run_dir,
            step=arguments.step,
            pytorch_folder=arguments.pytorch_folder,
            store=arguments.store,
            n_documents=arguments.documents,
        )
    except UserError as error:
        print(f"verify: {error}", file=sys.stderr)
        return 2
    forms = (".6g", ".6g", ".6g", ".1e", ".1e")
    cells = ((*map(format, row[1:], forms), "" if row.passes else "TOO LARGE") for row in rows)
    head = ("", "two-pass", "direct", "PyTorch", "two-pass differs", "PyTorch differs", "")
    print_table(head, [(row.name, *shown) for row, shown in zip(rows, cells, strict=True)])
    if arguments.json_out:
        write_json(arguments.json_out, [row._asdict() for row in rows])
    return int(not all(row.passes for row in rows))


def verify_checkpoint(
    checkpoint: Path,
    *,
    step: int | None = None,
    pytorch_folder: Path | None = None,
    store: Path | None = None,
    n_documents: int = 8,
) -> list[Row]:
    """Compares the three implementations for a checkpoint of a run.

    Args:
      checkpoint: the run folder.
      step: the step of the checkpoint; None: the latest.
      pytorch_folder: the same checkpoint, exported; None: export it to a temporary folder.
      store: a token store; None: the run's.
      n_documents: the first documents of the store; the batch has two spans of each.

    Returns:
      Rows for the losses, the vectors, the whole gradient, and the tensor that differs most from
      PyTorch. For vectors, the row shows the norm, but all values are compared.
    """
    model_config, params, run = load_run(checkpoint, step)
    config = ConfigDict(run["config"])
    model_config = dataclasses.replace(
        model_config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    tokens = open_store(store or Path(config.data.store))
    n_largest = len(tokens.documents_of_pairs)
    if not 2 <= n_documents <= n_largest:
        raise UserError(f"{n_documents} documents: expected 2 to {n_largest}, those with two spans")
    spec = BatchSpec(seed=config.seed, batch_size=n_documents, length=config.data.length)
    # Two chunks of n_documents spans each.
    settings = resolve(config, tokens).step.loss._replace(
        objective="cocondenser", dtype="float32", chunk_size=n_documents
    )
    check_batch(spec, settings.chunk_size, model_config.longest_text, n_devices=1, kept_chunks=0)
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
    pytorch = _torch_side(reference, model_config, settings, batch)
    return _compare(two_pass, direct, pytorch)


def _require_same_model(folder: Path, checkpoint: Path, expected: ModelConfig) -> None:
    config = _as_exported(load_folder(str(folder))[0])
    for name, value in _as_exported(expected).items():
        if config[name] != value and not name.endswith("dropout_prob"):
            raise UserError(f"{folder}: {name} is {config[name]}, but {value} in {checkpoint}")


def _as_exported(config: ModelConfig) -> dict[str, Any]:
    """Returns the fields, with the representation replaced by its files, as in a folder."""
    vectors = config.representation.as_exported
    files = to_files(vectors, config.hidden_size, config.max_length, has_pooler=False)
    return {**config.to_dict(), "representation": files}


def _flax_side(
    model_config: ModelConfig, settings: LossSettings, params: Any, batch: Batch
) -> Quantities:
    """Computes our quantities; with chunks, in two passes, with the first pass's vectors."""
    losses, grads = batch_gradient(model_config, settings, params, batch)
    model = Condenser(model_config)
    inputs = {"params": params}, batch.input_ids_SxL, batch.attention_mask_SxL
    if settings.chunk_size:
        vectors_SxD = jax.jit(functools.partial(model.apply, method="encode"))(*inputs)
    else:
        vectors_SxD = jax.jit(model.apply)(*inputs, batch.masked_positions_SxM).vectors_BxD
    return {**losses, "vectors": vectors_SxD, **to_tensors(grads, model_config)}


def _torch_side(
    model: TorchCondenser, model_config: ModelConfig, settings: LossSettings, batch: Batch
) -> Quantities:
    ids = torch.from_numpy(batch.input_ids_SxL)
    mask = torch.from_numpy(batch.attention_mask_SxL)
    labels = full_labels(batch)
    n_masked = (labels != IGNORED).sum()
    output = model(ids, mask, model_config.late_mlm)
    vectors_SxD = output.vectors_BxD
    logits = {"head_mlm_loss": output.head_logits_BxLxV, "late_mlm_loss": output.late_logits_BxLxV}
    losses = {
        name: mlm_sum(logits_BxLxV, labels) / n_masked
        for name, logits_BxLxV in logits.items()
        if logits_BxLxV is not None
    }
    mlm = settings.mlm_weight * sum(losses.values())
    if settings.mlm_reduction == "span_sum":
        mlm = mlm * n_masked / len(labels)
    representation = model_config.representation
    losses["contrastive_loss"] = torch.stack(
        [
            contrastive_loss(part_SxD, representation.score_scale)
            for part_SxD in cut(vectors_SxD, representation, representation.sizes)
        ]
    ).sum()
    losses["loss"] = mlm + losses["contrastive_loss"]
    losses["loss"].backward()
    computed = {name: value.detach().numpy() for name, value in losses.items()}
    return {**computed, "vectors": vectors_SxD.detach().numpy(), **model.gradients()}


def _compare(two_pass: Quantities, direct: Quantities, pytorch: Quantities) -> list[Row]:
    """Returns the rows that compare two passes, the direct pass and PyTorch."""
    sides = [
        {name: np.asarray(x, np.float64).ravel() for name, x in side.items()}
        for side in (two_pass, direct, pytorch)
    ]
    plain = [name for name in sides[1] if name.endswith("loss") or name == "vectors"]
    tensors = sorted(sides[1].keys() - set(plain))

    def row(shown: str, names: list[str], relative_to: list[str]) -> Row:
        vectors = [np.concatenate([side[name] for name in names]) for side in sides]
        norms = [float(np.linalg.norm(vector)) for vector in vectors]
        size = np.linalg.norm(np.concatenate([sides[1][name] for name in relative_to]))
        errors = [float(np.linalg.norm(vectors[1] - vectors[i]) / size) for i in (0, 2)]
        return Row(shown, *norms, *errors)

    rows = [row(name.replace("_", " "), [name], [name]) for name in sorted(plain, reverse=True)]
    by_tensor = [row(f"gradient, worst: {name}", [name], tensors) for name in tensors]
    worst = max(by_tensor, key=lambda row: max(row.two_pass_error, row.pytorch_error))
    return [*rows, row("gradient", tensors, tensors), worst]


if __name__ == "__main__":
    sys.exit(main())
