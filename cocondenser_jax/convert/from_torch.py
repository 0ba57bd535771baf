"""A Hugging Face folder or hub model → Flax parameters. Nothing in it is executed."""

import contextlib
import dataclasses
import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from cocondenser_jax.backbones import BACKBONES, find_backbone
from cocondenser_jax.convert.names import (
    DENSE_PREFIX,
    HEAD_PREFIX,
    NAMES,
    OWN_FIELDS,
    SUPPORTED,
    Names,
    Params,
    expected_shapes,
    from_tensors,
    to_tensors,
)
from cocondenser_jax.errors import UnsupportedError, UserError, first_three, whole_message
from cocondenser_jax.files.whole import read_object
from cocondenser_jax.model.condenser import init_params
from cocondenser_jax.model.config import SIZES, ModelConfig
from cocondenser_jax.model_folder.folder import (
    HEADS,
    find_dense,
    find_weights,
    read_representation,
)
from cocondenser_jax.model_folder.hub import find_folder
from cocondenser_jax.representation import (
    ACTIVATIONS,
    AS_IN_PAPERS,
    POOLINGS,
    Representation,
)

logger = logging.getLogger(__name__)

_GLOBAL = "full_attention"
_LOCAL = "sliding_attention"
# What to do about vectors that cannot be trained: train others.
_OTHER_VECTORS = "or --config.model.representation=cls"
# Heads that a retriever never uses, and a buffer of older releases.
_IGNORED = re.compile(r"(^|\.)(pooler|seq_relationship|classifier|position_ids|decoder)(\.|$)")


def load_folder(
    name_or_folder: str | Path,
    *,
    n_head_layers: int | None = None,
    skip_from: int | None = None,
    representation: Representation | None = None,
    init_head_seed: int | None = None,
    trains_mlm: bool = True,
) -> tuple[ModelConfig, Params]:
    """Reads a backbone and its Condenser head.

    Args:
      name_or_folder: a folder with `config.json` and weights (safetensors or PyTorch, in one file
        or in shards), or the name of a model on the Hugging Face hub. The Condenser head is read
        from `condenser_head.safetensors` or `model.pt`, its shape from `condenser.json`.
      n_head_layers: layers of a new Condenser head, where the folder has none; None for 2, 0 for no
        head.
      skip_from: the backbone layer that a new head reads, or a head that does not say which; None
        for the middle.
      representation: of the vectors, whose texts are read as the folder says; None for the folder's
        own.
      init_head_seed: the seed of a random Condenser head or MLM projection, where the folder has
        none; with None, that is an error.
      trains_mlm: whether the MLM projection is trained; a random one is not warned of otherwise.

    Returns:
      The model's shape and its Flax parameters (float32 NumPy arrays, no outer "params").
    """
    folder = find_folder(name_or_folder)
    head = _read_head(folder)
    config = _shape(
        folder,
        head,
        n_head_layers=n_head_layers,
        skip_from=skip_from,
        representation=representation,
    )
    tensors = _read_model(folder, config) | head
    params = with_missing_head(folder, tensors, config, init_head_seed, trains_mlm=trains_mlm)
    others = tensors.keys() - expected_shapes(config).keys()
    if unused := sorted(name for name in others if not _IGNORED.search(name)):
        logger.warning("%s: %d tensors are not used: %s", folder, len(unused), first_three(unused))
    return config, params


def load_encoder(
    folder: Path, representation: Representation | None = None
) -> tuple[ModelConfig, Params]:
    """Reads what makes vectors: the backbone and what follows it, with zeros as MLM projection.

    Args and errors are those of `load_folder`; nothing is drawn, which takes a compilation.
    """
    config = _shape(folder, {}, n_head_layers=0, representation=representation)
    tensors = _read_model(folder, config)
    shapes = expected_shapes(config)
    zeros = {name: np.zeros(shapes[name], np.float32) for name in _names_of_mlm(shapes, config)}
    return config, with_missing_head(folder, zeros | tensors, config, None)


def read_shape(folder: Path) -> ModelConfig:
    """Reads a model's shape, and its Condenser head's if it has one, without its weights.

    Raises:
      UnsupportedError: for what the Flax network does not compute.
    """
    return _shape(folder, _read_head(folder), n_head_layers=0)


def _trained_representation(folder: Path) -> Representation:
    """Returns what is trained of a folder's representation."""
    try:
        published = read_representation(folder, plain=AS_IN_PAPERS)
    except UserError as error:
        raise UserError(f"{error} ({_OTHER_VECTORS})") from error
    for layer in published.dense:
        if layer.activation_name not in ACTIVATIONS:
            expected = ", ".join(ACTIVATIONS)
            raise UnsupportedError(
                folder,
                f"has a Dense layer that ends in {layer.activation};"
                f" expected {expected} of torch.nn",
                _OTHER_VECTORS,
            )
    if published.pooling not in POOLINGS:
        reason = f"pools by {published.pooling}; expected cls or mean"
        raise UnsupportedError(folder, reason, _OTHER_VECTORS)
    if published.scaled_before_dense:
        reason = "scales vectors before a dense layer, which the Flax network does not"
        raise UnsupportedError(folder, reason, _OTHER_VECTORS)
    return published


def _shape(
    folder: Path,
    head: Mapping[str, np.ndarray],
    *,
    n_head_layers: int | None,
    skip_from: int | None = None,
    representation: Representation | None = None,
) -> ModelConfig:
    """Returns a model's shape, with `n_head_layers` and `skip_from` for a head that it lacks."""
    fields = _read_backbone_config(folder)
    fields["skip_from"] = fields["num_hidden_layers"] // 2
    if representation is None:
        fields["representation"] = _trained_representation(folder)
    else:
        with contextlib.suppress(UserError):  # modules that are not used
            own = read_representation(folder, plain=AS_IN_PAPERS)
            representation = representation.reading_as(own)
        fields["representation"] = representation
    if skip_from is not None:
        fields["skip_from"] = skip_from
    if n_head_layers is not None:
        fields["n_head_layers"] = n_head_layers
    if n_found := len({name.split(".")[1] for name in head}):
        fields["n_head_layers"] = n_found
        fields |= read_object(folder / "condenser.json", {})
    try:
        config = ModelConfig(**fields)
    except (TypeError, UserError) as error:
        raise UserError(f"{folder}: {error}") from error
    if (config.representation.max_length or 0) < config.max_length:
        return config
    no_limit = config.representation._replace(max_length=None)
    return dataclasses.replace(config, representation=no_limit)


def with_missing_head(
    source: object,
    tensors: dict[str, np.ndarray],
    config: ModelConfig,
    seed: int | None,
    *,
    trains_mlm: bool = True,
) -> Params:
    """Returns the Flax parameters of a model, of tensors by their PyTorch names.

    A Condenser head or an MLM projection that is missing altogether is drawn from the seed; None
    forbids it. A warning names it, but not an MLM projection that will not be trained. What the
    model does not have is left out.
    """
    shapes = expected_shapes(config)
    head = {name for name in shapes if name.startswith(HEAD_PREFIX)}
    mlm = _names_of_mlm(shapes, config)
    for part, names in (("Condenser head", head), ("MLM projection", mlm)):
        if names & tensors.keys() or not names:
            continue
        if seed is None:
            raise UserError(
                f"{source} has no {part}; --config.init_head=true starts with a new, random one"
            )
        if trains_mlm or names is not mlm:
            logger.warning("%s has no %s: starting with a random one (seed %d)", source, part, seed)
        new = to_tensors(init_params(config, seed), config)
        tensors = tensors | {name: new[name] for name in names}
    if missing := [name for name in shapes if name not in tensors]:
        raise UserError(f"{source}: {len(missing)} tensors are missing: {first_three(missing)}")
    if wrong := [
        f"{name} is {tensors[name].shape}, expected {shape}"
        for name, shape in shapes.items()
        if tensors[name].shape != shape
    ]:
        raise UserError(f"{source}: {len(wrong)} tensors have another shape: {first_three(wrong)}")
    return from_tensors(tensors, config)


def _names_of_mlm(names: Iterable[str], config: ModelConfig) -> set[str]:
    """Returns those of a model's tensors that are its MLM projection's."""
    others = (HEAD_PREFIX, DENSE_PREFIX, NAMES[config.model_type].backbone)
    return {name for name in names if not name.startswith(others)}


def _read_backbone_config(folder: Path) -> dict[str, Any]:
    """Returns the fields of `ModelConfig` that config.json holds."""
    path = folder / "config.json"
    values = read_object(path)
    model_type = values.get("model_type")
    backbone = find_backbone(model_type)
    if backbone is None:
        expected = " or ".join(BACKBONES)
        raise UnsupportedError(f"{path}:", f"model_type is {model_type!r}; expected {expected}")
    for key, supported in SUPPORTED.items():
        if values.get(key, supported) != supported:
            raise UnsupportedError(
                f"{path}:", f"{key} is {values[key]!r}; only {supported!r} is supported"
            )
    for key in SIZES:
        if type(values.get(key)) is not int:
            raise UserError(f"{path}: {key} is {values.get(key)!r}; expected a whole number")
    if backbone.rotary:
        values = _rotary_values(values, path)
    names = NAMES[values["model_type"]]
    keys = {
        field.name: names.renamed.get(field.name, field.name)
        for field in dataclasses.fields(ModelConfig)
        if field.name not in (*OWN_FIELDS, *names.lacks)
    }
    fields = {name: values[key] for name, key in keys.items() if values.get(key) is not None}
    # As in transformers, where config.json names none.
    default_pad_id = 1 if backbone.offset_by_padding else 0
    return {"pad_token_id": default_pad_id, **fields}


def _rotary_values(values: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Returns config.json as transformers reads it, with our names for layers and rotations.

    Older and newer releases of transformers write these in different forms.
    """
    from transformers import AutoConfig

    try:
        read = AutoConfig.for_model(**values).to_dict()
    except Exception as error:  # of each release another
        raise UserError(f"{path}: {whole_message(error)}") from error
    kinds = read["layer_types"]
    ropes = read["rope_parameters"]
    every = [*kinds[1:], _GLOBAL].index(_GLOBAL) + 1
    if kinds != [_LOCAL if i % every else _GLOBAL for i in range(len(kinds))]:
        raise UserError(f"{path}: layer_types is {kinds}; expected {_GLOBAL} in every n-th from 0")
    for rope in ropes.values():
        if rope["rope_type"] != "default":
            raise UserError(f"{path}: rope_type is {rope['rope_type']!r}; expected 'default'")
    return {
        **read,
        "global_attn_every_n_layers": every,
        "global_rope_theta": ropes[_GLOBAL]["rope_theta"],
        "local_rope_theta": ropes[_LOCAL]["rope_theta"],
    }


def _read_model(folder: Path, config: ModelConfig) -> dict[str, np.ndarray]:
    """Reads all tensors of a model but those of a Condenser head, by today's names."""
    tensors = _canonical(_read_weights(folder), NAMES[config.model_type], folder)
    return tensors | _read_dense(folder) if config.representation.dense else tensors


def _read_weights(folder: Path) -> dict[str, np.ndarray]:
    """Reads all tensors of a model."""
    tensors: dict[str, np.ndarray] = {}
    for path in find_weights(folder):
        tensors |= _read_tensors(path)
    if not tensors:
        raise UserError(f"{folder}: no weights; expected model.safetensors or pytorch_model.bin")
    return tensors


def _read_dense(folder: Path) -> dict[str, np.ndarray]:
    """Reads the dense layers after the pooling, by the names of `tensor_names`."""
    return {
        f"{DENSE_PREFIX}{number}.{name}": value
        for number, path in enumerate(find_dense(folder))
        for name, value in _read_weights(path).items()
    }


def _read_head(folder: Path) -> dict[str, np.ndarray]:
    """Reads the Condenser head, or nothing where the folder has none."""
    for name in HEADS:
        if (folder / name).is_file():
            tensors = _read_tensors(folder / name)
            return {key: value for key, value in tensors.items() if key.startswith(HEAD_PREFIX)}
    return {}


def _read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Reads a file of tensors by name; anything in it that is not a tensor is an error."""
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
            raise UserError(f"cannot read {path}: {error}") from error
    import torch  # slow to import, and only this format needs it

    try:
        # weights_only: a pickle may otherwise run any code.
        state = torch.load(path, map_location="cpu", weights_only=True)
        return {str(name): value.detach().float().numpy() for name, value in state.items()}
    except Exception as error:  # a damaged pickle may raise anything
        raise UserError(
            f"cannot read {path} as a file of tensors: {whole_message(error)}"
        ) from error


def _canonical(
    tensors: Mapping[str, np.ndarray], names: Names, folder: Path
) -> dict[str, np.ndarray]:
    """Gives tensors of older files, and of models without an MLM projection, today's names."""
    renamed: dict[str, np.ndarray] = {}
    for name, value in tensors.items():
        name = re.sub(r"(?<=LayerNorm\.)gamma$", "weight", name)
        name = re.sub(r"(?<=LayerNorm\.)beta$", "bias", name)
        if name.startswith(("embeddings.", "encoder.", "pooler.", "layers.", "final_norm.")):
            name = names.backbone + name
        renamed[name] = value
    words = renamed.get(f"{names.backbone}embeddings.{names.embeddings['word']}.weight")
    for prefix in ("cls.predictions.", "lm_head.", ""):
        decoder = renamed.get(f"{prefix}decoder.weight")
        if decoder is not None and words is not None and not np.array_equal(decoder, words):
            raise UserError(
                f"{folder}: {prefix}decoder.weight differs from the word embeddings;"
                " only tied MLM projections are supported"
            )
        if prefix and f"{prefix}decoder.bias" in renamed:
            renamed.setdefault(f"{prefix}bias", renamed[f"{prefix}decoder.bias"])
    return renamed
