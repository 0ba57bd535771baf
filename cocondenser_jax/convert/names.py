"""Flax ↔ Hugging Face parameter names: one table, read in both directions.

`tensor_names` pairs every parameter of a Condenser with the tensor that holds it in a PyTorch
checkpoint. Both libraries store the same numbers; only the matrices of linear maps are transposed
(Flax `[in, out]`, PyTorch `[out, in]`).
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.pretrain.step import initial_params

Params = dict[str, Any]  # the nested dict under "params" of a Flax checkpoint

_EMBEDDINGS = {
    "word/embedding": "word_embeddings.weight",
    "position/embedding": "position_embeddings.weight",
    "token_type/embedding": "token_type_embeddings.weight",
    "norm/scale": "LayerNorm.weight",
    "norm/bias": "LayerNorm.bias",
}
_LAYER = {
    "query/kernel": "attention.self.query.weight",
    "query/bias": "attention.self.query.bias",
    "key/kernel": "attention.self.key.weight",
    "key/bias": "attention.self.key.bias",
    "value/kernel": "attention.self.value.weight",
    "value/bias": "attention.self.value.bias",
    "output/kernel": "attention.output.dense.weight",
    "output/bias": "attention.output.dense.bias",
    "attention_norm/scale": "attention.output.LayerNorm.weight",
    "attention_norm/bias": "attention.output.LayerNorm.bias",
    "mlp_in/kernel": "intermediate.dense.weight",
    "mlp_in/bias": "intermediate.dense.bias",
    "mlp_out/kernel": "output.dense.weight",
    "mlp_out/bias": "output.dense.bias",
    "mlp_norm/scale": "output.LayerNorm.weight",
    "mlp_norm/bias": "output.LayerNorm.bias",
}
_MLM = {
    "bert": {
        "dense/kernel": "cls.predictions.transform.dense.weight",
        "dense/bias": "cls.predictions.transform.dense.bias",
        "norm/scale": "cls.predictions.transform.LayerNorm.weight",
        "norm/bias": "cls.predictions.transform.LayerNorm.bias",
        "bias": "cls.predictions.bias",
    },
    "roberta": {
        "dense/kernel": "lm_head.dense.weight",
        "dense/bias": "lm_head.dense.bias",
        "norm/scale": "lm_head.layer_norm.weight",
        "norm/bias": "lm_head.layer_norm.bias",
        "bias": "lm_head.bias",
    },
}
HEAD_PREFIX = "c_head."  # of the Condenser head, as in the published research checkpoints


def tensor_names(config: ModelConfig) -> dict[str, str]:
    """Returns {Flax path, joined by slashes: name of the PyTorch tensor} for a whole Condenser."""
    backbone = config.model_type
    blocks = {
        "embeddings": (f"{backbone}.embeddings.", _EMBEDDINGS),
        "mlm": ("", _MLM[backbone]),
    }
    for index in range(config.num_hidden_layers):
        blocks[f"layers_{index}"] = (f"{backbone}.encoder.layer.{index}.", _LAYER)
    for index in range(config.n_head_layers):
        blocks[f"head_{index}"] = (f"{HEAD_PREFIX}{index}.", _LAYER)
    return {
        f"{block}/{path}": prefix + name
        for block, (prefix, table) in blocks.items()
        for path, name in table.items()
    }


def to_tensors(params: Mapping[str, Any], config: ModelConfig) -> dict[str, np.ndarray]:
    """Returns the PyTorch tensors of a Flax parameter tree, float32, by their PyTorch names."""
    flat = flatten_dict(params, sep="/")
    shapes = {path: tuple(leaf.shape) for path, leaf in flat.items()}
    expected = {path: tuple(leaf.shape) for path, leaf in _flat_shapes(config).items()}
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
    shapes = _flat_shapes(config)
    return {
        name: shapes[path].shape[::-1] if path.endswith("/kernel") else shapes[path].shape
        for path, name in tensor_names(config).items()
    }


def _transpose_kernel(path: str, value: np.ndarray) -> np.ndarray:
    """Transposes the matrix of a linear map; contiguous, as the file formats ask for."""
    return np.ascontiguousarray(value.T) if path.endswith("/kernel") else value


def _flat_shapes(config: ModelConfig) -> dict[str, jax.ShapeDtypeStruct]:
    return flatten_dict(jax.eval_shape(lambda: initial_params(config, 0)), sep="/")
