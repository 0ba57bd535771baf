"""A Hugging Face folder or hub model → Flax parameters. No code in the folder is executed."""

import dataclasses
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
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
    ModelFolder,
    Network,
    find_weights,
    require_float_weights,
)
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.model_folder.modules import TRANSFORMER
from cocondenser_jax.representation import (
    ACTIVATIONS,
    AS_IN_PAPERS,
    POOLINGS,
    Representation,
)

logger = logging.getLogger(__name__)

_GLOBAL = "full_attention"
_LOCAL = "sliding_attention"
# The advice if a model's vectors cannot be trained: train others.
_OTHER_VECTORS = "or --config.model.representation=cls"
# Heads that a retriever does not use, and a buffer of older releases.
_IGNORED = re.compile(r"(^|\.)(pooler|seq_relationship|classifier|position_ids|decoder)(\.|$)")


def load_folder(
    model: ModelFolder | str | Path,
    *,
    n_head_layers: int | None = None,
    skip_from: int | None = None,
    representation: Representation | None = None,
    init_head_seed: int | None = None,
    trains_mlm: bool = True,
) -> tuple[ModelConfig, Params]:
    """Reads a backbone and its Condenser head.

    Args:
      model: an opened model, a folder with `config.json` and weights (safetensors or PyTorch, in
        one file or in shards), or the name of a model on the Hugging Face hub. The Condenser head
        is read from `condenser_head.safetensors` or `model.pt`, its shape from `condenser.json`.
      n_head_layers: layers of a new Condenser head, if the folder has none; None for 2, 0 for no
        head.
      skip_from: the backbone layer that the head reads, if the folder does not say; None for the
        middle.
      representation: overrides the folder's; texts are still read as the folder says. None for the
        folder's own.
      init_head_seed: the seed for a random Condenser head or MLM projection, if the folder has
        none; with None, a missing one is an error.
      trains_mlm: whether the MLM projection is trained; otherwise there is no warning about a
        random one.

    Returns:
      The model's shape and its Flax parameters (float32 NumPy arrays, no outer "params").
    """
    if not isinstance(model, ModelFolder):
        model = open_model(model, plain=AS_IN_PAPERS)
    head = _read_head(model)
    config = _shape(
        model,
        head,
        n_head_layers=n_head_layers,
        skip_from=skip_from,
        representation=representation,
    )
    tensors = _read_model(model.network, config) | _read_dense(model, config) | head
    params = with_missing_head(model.path, tensors, config, init_head_seed, trains_mlm=trains_mlm)
    others = tensors.keys() - expected_shapes(config).keys()
    if unused := sorted(name for name in others if not _IGNORED.search(name)):
        shown = first_three(unused)
        logger.warning("%s: %d tensors are not used: %s", model.path, len(unused), shown)
    return config, params


def load_encoder(network: Network, representation: Representation) -> tuple[ModelConfig, Params]:
    """Reads the backbone that makes a vector without dense layers, with zeros as MLM projection.

    Errors are those of `load_folder`. Nothing is initialized at random, which would need a
    compilation.
    """
    config = _config(network, {"representation": representation, "n_head_layers": 0})
    tensors = _read_model(network, config)
    return config, with_missing_head(network.path, _zeros_of_mlm(config) | tensors, config, None)


def load_vectors(model: ModelFolder) -> tuple[ModelConfig, Params]:
    """Reads all that makes a model's vectors, with zeros as MLM projection; see `load_encoder`."""
    config = _shape(model, {}, n_head_layers=0)
    tensors = _read_model(model.network, config) | _read_dense(model, config)
    return config, with_missing_head(model.path, _zeros_of_mlm(config) | tensors, config, None)


def read_shape(model: ModelFolder) -> ModelConfig:
    """Reads the shape of a model, and of its Condenser head if it has one, without the weights.

    Raises:
      UnsupportedError: if the Flax network cannot compute the model.
    """
    return _shape(model, _read_head(model), n_head_layers=0)


def _require_trainable(model: ModelFolder) -> None:
    """Raises an UnsupportedError for a representation that the Flax network cannot compute."""
    published = model.representation
    for layer in published.dense:
        if layer.activation_name not in ACTIVATIONS:
            expected = ", ".join(ACTIVATIONS)
            raise UnsupportedError(
                model.path,
                f"has a Dense layer that ends in {layer.activation};"
                f" expected {expected} of torch.nn",
                _OTHER_VECTORS,
            )
    if published.pooling not in POOLINGS:
        reason = f"pools by {published.pooling}; expected cls or mean"
        raise UnsupportedError(model.path, reason, _OTHER_VECTORS)
    if published.scaled_before_dense:
        reason = "scales vectors before a dense layer, which the Flax network does not"
        raise UnsupportedError(model.path, reason, _OTHER_VECTORS)


def _shape(
    model: ModelFolder,
    head: Mapping[str, np.ndarray],
    *,
    n_head_layers: int | None,
    skip_from: int | None = None,
    representation: Representation | None = None,
) -> ModelConfig:
    """Returns a model's shape; `n_head_layers` and `skip_from` are for a head that it lacks."""
    if others := model.network.read_otherwise:
        reason = f"has settings in {TRANSFORMER} that only PyTorch reads ({first_three(others)})"
        raise UnsupportedError(model.path, f"{reason}; expected none")
    fields: dict[str, Any] = {"representation": model.representation}
    if representation is None:
        _require_trainable(model)
    else:
        fields["representation"] = representation.reading_as(model.representation)
    if skip_from is not None:
        fields["skip_from"] = skip_from
    if n_head_layers is not None:
        fields["n_head_layers"] = n_head_layers
    if n_found := len({name.split(".")[1] for name in head}):
        fields["n_head_layers"] = n_found
        fields |= read_object(model.path / "condenser.json", {})
    return _config(model.network, fields)


def _config(network: Network, fields: Mapping[str, Any]) -> ModelConfig:
    """Returns the shape of a network, with fields that config.json does not have."""
    require_float_weights(network)
    if (network.path / "adapter_config.json").is_file():
        raise UserError(
            f"{network.path} has an adapter beside its weights, which only PyTorch would apply:"
            " merge it into them (PEFT's merge_and_unload)"
        )
    own = _read_backbone_config(network)
    own["skip_from"] = own["num_hidden_layers"] // 2
    try:
        config = ModelConfig(**{**own, **fields})
    except (TypeError, UserError) as error:
        raise UserError(f"{network.path}: {error}") from error
    if (config.representation.max_length or 0) < config.max_length:
        return config
    no_limit = config.representation._replace(max_length=None)
    return dataclasses.replace(config, representation=no_limit)


def with_missing_head(
    origin: object,
    tensors: dict[str, np.ndarray],
    config: ModelConfig,
    seed: int | None,
    *,
    trains_mlm: bool = True,
) -> Params:
    """Returns the Flax parameters of a model from its tensors by PyTorch name.

    A completely missing Condenser head or MLM projection is initialized from the seed; None forbids
    it. A warning names it, unless it is an MLM projection that will not be trained. Tensors that
    the model does not use are left out.
    """
    shapes = expected_shapes(config)
    head = {name for name in shapes if name.startswith(HEAD_PREFIX)}
    mlm = _names_of_mlm(shapes, config)
    for part, names in (("Condenser head", head), ("MLM projection", mlm)):
        if names & tensors.keys() or not names:
            continue
        if seed is None:
            raise UserError(
                f"{origin} has no {part}; --config.init_head=true starts with a new, random one"
            )
        if trains_mlm or names is not mlm:
            logger.warning("%s has no %s: starting with a random one (seed %d)", origin, part, seed)
        new = to_tensors(init_params(config, seed), config)
        tensors = tensors | {name: new[name] for name in names}
    if missing := [name for name in shapes if name not in tensors]:
        raise UserError(f"{origin}: {len(missing)} tensors are missing: {first_three(missing)}")
    if codes := [name for name in shapes if tensors[name].dtype.kind in "biu"]:
        raise UserError(
            f"{origin}: {len(codes)} tensors hold integers, like quantized weights:"
            f" {first_three(codes)}; expected the unquantized model"
        )
    if wrong := [
        f"{name} is {tensors[name].shape}, expected {shape}"
        for name, shape in shapes.items()
        if tensors[name].shape != shape
    ]:
        raise UserError(f"{origin}: {len(wrong)} tensors have another shape: {first_three(wrong)}")
    if broken := [name for name in shapes if not np.isfinite(tensors[name]).all()]:
        raise UserError(f"{origin}: {len(broken)} tensors are not finite: {first_three(broken)}")
    return from_tensors(tensors, config)


def _zeros_of_mlm(config: ModelConfig) -> dict[str, np.ndarray]:
    shapes = expected_shapes(config)
    return {name: np.zeros(shapes[name], np.float32) for name in _names_of_mlm(shapes, config)}


def _names_of_mlm(names: Iterable[str], config: ModelConfig) -> set[str]:
    """Returns the tensors of a model's MLM projection."""
    others = (HEAD_PREFIX, DENSE_PREFIX, NAMES[config.model_type].backbone)
    return {name for name in names if not name.startswith(others)}


def _read_backbone_config(network: Network) -> dict[str, Any]:
    """Returns the fields of `ModelConfig` that config.json holds."""
    path = network.path / "config.json"
    values = network.config
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
    # As in transformers, if config.json names none.
    default_pad_id = 1 if backbone.offset_by_padding else 0
    return {"pad_token_id": default_pad_id, **fields}


def _rotary_values(values: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Returns config.json as transformers reads it, with our names for layers and rotations.

    Older and newer releases of transformers write these in different forms.
    """
    from transformers import AutoConfig

    try:
        read = AutoConfig.for_model(**values).to_dict()
    except Exception as error:  # differs between releases
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


def _read_model(network: Network, config: ModelConfig) -> dict[str, np.ndarray]:
    """Reads all tensors of a network, by their current names."""
    tensors = read_weights(network.weights, network.path)
    return _canonical(tensors, NAMES[config.model_type], network.path)


def read_weights(files: Sequence[Path], folder: Path) -> dict[str, np.ndarray]:
    """Reads all tensors of the files of a folder's weights."""
    if not files:
        raise UserError(f"{folder}: no weights; expected model.safetensors or pytorch_model.bin")
    return {name: value for path in files for name, value in _read_tensors(path).items()}


def _read_dense(model: ModelFolder, config: ModelConfig) -> dict[str, np.ndarray]:
    """Reads the dense layers that are trained, by the names of `tensor_names`."""
    folders = model.dense if config.representation.dense else ()
    return {
        f"{DENSE_PREFIX}{number}.{name}": value
        for number, folder in enumerate(folders)
        for name, value in read_weights(find_weights(folder), folder).items()
    }


def _read_head(model: ModelFolder) -> dict[str, np.ndarray]:
    """Reads the Condenser head; empty if the folder has none."""
    tensors = _read_tensors(model.head) if model.head else {}
    return {key: value for key, value in tensors.items() if key.startswith(HEAD_PREFIX)}


def _read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Reads a file of tensors by name; anything else in it is an error."""
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (OSError, SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
            raise UserError(f"cannot read {path}: {error}") from error
    import torch  # slow to import, and needed only for this format

    try:
        # weights_only: otherwise a pickle can run arbitrary code.
        state = torch.load(path, map_location="cpu", weights_only=True)
        return {
            str(name): (value.float() if value.is_floating_point() else value).detach().numpy()
            for name, value in state.items()
        }
    except Exception as error:  # a damaged pickle can raise any exception
        raise UserError(
            f"cannot read {path} as a file of tensors: {whole_message(error)}"
        ) from error


def _canonical(
    tensors: Mapping[str, np.ndarray], names: Names, folder: Path
) -> dict[str, np.ndarray]:
    """Renames tensors of older files, and of models without an MLM projection, to current names.

    Raises:
      UserError: for a tensor with two values, or an MLM projection that is not tied to the word
        embeddings, or has two biases.
    """
    renamed: dict[str, np.ndarray] = {}
    for name, value in tensors.items():
        name = re.sub(r"(?<=LayerNorm\.)gamma$", "weight", name)
        name = re.sub(r"(?<=LayerNorm\.)beta$", "bias", name)
        if name.startswith(("embeddings.", "encoder.", "pooler.", "layers.", "final_norm.")):
            name = names.backbone + name
        if name in renamed and not np.array_equal(renamed[name], value):
            raise UserError(f"{folder}: its weights have {name} under two names, with other values")
        renamed[name] = value
    words = renamed.get(f"{names.backbone}embeddings.{names.embeddings['word']}.weight")
    for prefix in ("cls.predictions.", "lm_head.", ""):
        decoder = renamed.get(f"{prefix}decoder.weight")
        if decoder is not None and words is not None and not np.array_equal(decoder, words):
            raise UserError(
                f"{folder}: {prefix}decoder.weight differs from the word embeddings;"
                " only tied MLM projections are supported"
            )
        bias = renamed.get(f"{prefix}decoder.bias")
        if not prefix or bias is None:
            continue
        if not np.array_equal(renamed.setdefault(f"{prefix}bias", bias), bias):
            raise UserError(
                f"{folder}: {prefix}decoder.bias differs from {prefix}bias; only one bias of the"
                " MLM projection is supported"
            )
    return renamed
