"""Flax ↔ Hugging Face parameter names: one table, read in both directions.

`tensor_names` pairs every parameter of a Condenser with the tensor that holds it in a PyTorch
checkpoint. Both libraries store the same numbers; only the matrices of linear maps are transposed
(Flax `[in, out]`, PyTorch `[out, in]`).
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.pretrain.step import initial_params

Params = dict[str, Any]  # the nested dict under "params" of a Flax checkpoint

# Module by module; the last part of a name is that of `_LEAVES`.
_EMBEDDINGS = {
    "word": "word_embeddings",
    "position": "position_embeddings",
    "token_type": "token_type_embeddings",
    "norm": "LayerNorm",
}
_LAYER = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "mlp_in": "intermediate.dense",
    "mlp_out": "output.dense",
    "mlp_norm": "output.LayerNorm",
}
_MLM = {
    "bert": {
        "": "cls.predictions",  # a bias of its own
        "dense": "cls.predictions.transform.dense",
        "norm": "cls.predictions.transform.LayerNorm",
    },
    "roberta": {"": "lm_head", "dense": "lm_head.dense", "norm": "lm_head.layer_norm"},
}
_LEAVES = {"kernel": "weight", "embedding": "weight", "scale": "weight", "bias": "bias"}
# The fields of `ModelConfig` that Hugging Face's config.json does not have.
HEAD_FIELDS = ("n_head_layers", "skip_from", "late_mlm")
HEAD_PREFIX = "c_head."  # of the Condenser head, as in the published research checkpoints


def tensor_names(config: ModelConfig) -> dict[str, str]:
    """Returns {Flax path, joined by slashes: name of the PyTorch tensor} for a whole Condenser."""
    return {path: _tensor_name(path, config.model_type) for path in _shapes(config)}


def _tensor_name(path: str, backbone: str) -> str:
    block, *module, leaf = path.split("/")
    kind, _, index = block.partition("_")
    prefix, modules = {
        "embeddings": (f"{backbone}.embeddings.", _EMBEDDINGS),
        "layers": (f"{backbone}.encoder.layer.{index}.", _LAYER),
        "head": (f"{HEAD_PREFIX}{index}.", _LAYER),
        "mlm": ("", _MLM[backbone]),
    }[kind]
    return f"{prefix}{modules['/'.join(module)]}.{_LEAVES[leaf]}"


def to_tensors(params: Mapping[str, Any], config: ModelConfig) -> dict[str, np.ndarray]:
    """Returns the PyTorch tensors of a Flax parameter tree, float32, by their PyTorch names."""
    flat = flatten_dict(params, sep="/")
    shapes, expected = {path: tuple(leaf.shape) for path, leaf in flat.items()}, _shapes(config)
    if shapes != expected:
        wrong = sorted(path for path, _ in shapes.items() ^ expected.items())
        raise ValueError(f"the parameters are not those of the model's config: {wrong}")
    return {
        name: _transpose_kernel(path, np.asarray(flat[path], np.float32))
        for path, name in tensor_names(config).items()
    }


def from_tensors(tensors: Mapping[str, np.ndarray], config: ModelConfig) -> Params:
    """Returns the Flax parameter tree, float32, of the tensors that `expected_shapes` names."""
    return unflatten_dict(
        {
            path: _transpose_kernel(path, np.asarray(tensors[name], np.float32))
            for path, name in tensor_names(config).items()
        },
        sep="/",
    )


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns {name: shape} of the PyTorch tensors that `from_tensors` reads."""
    shapes = _shapes(config)
    return {
        name: shapes[path][::-1] if path.endswith("/kernel") else shapes[path]
        for path, name in tensor_names(config).items()
    }


def _transpose_kernel(path: str, value: np.ndarray) -> np.ndarray:
    """Transposes the matrix of a linear map; contiguous, as the file formats ask for."""
    return np.ascontiguousarray(value.T) if path.endswith("/kernel") else value


@functools.cache
def _shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    params = jax.eval_shape(lambda: initial_params(config, 0))
    return {path: leaf.shape for path, leaf in flatten_dict(params, sep="/").items()}
