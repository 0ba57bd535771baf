"""Flax ↔ Hugging Face parameter names: one table, read in both directions.

`tensor_names` pairs every parameter of a Condenser with the tensor that holds it in a PyTorch
checkpoint. Both libraries store the same numbers; only the matrices of linear maps are transposed
(Flax `[in, out]`, PyTorch `[out, in]`), and ModernBERT stacks those of queries, keys and values.
"""

from collections.abc import Mapping, Sequence
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
_MODERN_EMBEDDINGS = {"word/embedding": "tok_embeddings.weight", "norm/scale": "norm.weight"}
_MODERN_LAYER = {
    "attention_norm/scale": "attn_norm.weight",
    "query/kernel": "attn.Wqkv.weight",
    "key/kernel": "attn.Wqkv.weight",
    "value/kernel": "attn.Wqkv.weight",
    "output/kernel": "attn.Wo.weight",
    "mlp_norm/scale": "mlp_norm.weight",
    "mlp_in/kernel": "mlp.Wi.weight",
    "mlp_out/kernel": "mlp.Wo.weight",
}
_MODERN_MLM = {
    "dense/kernel": "head.dense.weight",
    "norm/scale": "head.norm.weight",
    "bias": "decoder.bias",
}
# ModelConfig's names -> those of ModernBERT's config.json
MODERN_CONFIG = {
    "layer_norm_eps": "norm_eps",
    "hidden_dropout_prob": "mlp_dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}
BACKBONES = {"bert": "bert", "roberta": "roberta", "xlm-roberta": "roberta", "modernbert": "model"}
HEAD_PREFIX = "c_head."  # of the Condenser head, as in the published research checkpoints


def tensor_names(config: ModelConfig) -> dict[str, str]:
    """Returns {Flax path, joined by slashes: name of the PyTorch tensor} for a whole Condenser.

    Where several paths have one name, the tensor is theirs, stacked in that order.
    """
    backbone, layer = BACKBONES[config.model_type], _LAYER
    encoder = f"{backbone}.encoder.layer."
    blocks = {
        "embeddings": (f"{backbone}.embeddings.", _EMBEDDINGS),
        "mlm": ("", _MLM.get(backbone, _MODERN_MLM)),
    }
    if config.is_modern:
        encoder, layer = f"{backbone}.layers.", _MODERN_LAYER
        blocks["embeddings"] = (f"{backbone}.embeddings.", _MODERN_EMBEDDINGS)
        blocks["final_norm"] = (f"{backbone}.", {"scale": "final_norm.weight"})
    for index in range(config.num_hidden_layers):
        blocks[f"layers_{index}"] = (f"{encoder}{index}.", layer)
    for index in range(config.n_head_layers):
        blocks[f"head_{index}"] = (f"{HEAD_PREFIX}{index}.", layer)
    names = {
        f"{block}/{path}": prefix + name
        for block, (prefix, table) in blocks.items()
        for path, name in table.items()
    }
    if config.is_modern:
        del names["layers_0/attention_norm/scale"]  # it reads the embeddings' own
    return names


def to_tensors(params: Mapping[str, Any], config: ModelConfig) -> dict[str, np.ndarray]:
    """Returns the PyTorch tensors of a Flax parameter tree, float32, by their PyTorch names."""
    flat = flatten_dict(params, sep="/")
    shapes = {path: tuple(leaf.shape) for path, leaf in flat.items()}
    expected = {path: tuple(leaf.shape) for path, leaf in _flat_shapes(config).items()}
    if shapes != expected:
        wrong = sorted(path for path, _ in shapes.items() ^ expected.items())
        raise ValueError(f"the parameters are not those of the model's config: {wrong}")
    return {
        name: np.concatenate([_transpose_kernel(path, flat[path]) for path in paths])
        for name, paths in _paths(config).items()
    }


def from_tensors(tensors: Mapping[str, np.ndarray], config: ModelConfig) -> Params:
    """Returns the Flax parameter tree, float32, of the tensors that `expected_shapes` names."""
    return unflatten_dict(
        {
            path: _transpose_kernel(path, part)
            for name, paths in _paths(config).items()
            for path, part in zip(paths, np.split(tensors[name], len(paths)), strict=True)
        },
        sep="/",
    )


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns {name: shape} of the PyTorch tensors that `from_tensors` reads."""
    flat = _flat_shapes(config)

    def shape(paths: Sequence[str]) -> tuple[int, ...]:
        rows, *others = flat[paths[0]].shape[:: -1 if paths[0].endswith("/kernel") else 1]
        return len(paths) * rows, *others

    return {name: shape(paths) for name, paths in _paths(config).items()}


def _paths(config: ModelConfig) -> dict[str, list[str]]:
    """Returns {name of the PyTorch tensor: Flax paths of its parts}."""
    parts: dict[str, list[str]] = {}
    for path, name in tensor_names(config).items():
        parts.setdefault(name, []).append(path)
    return parts


def _transpose_kernel(path: str, value: Any) -> np.ndarray:
    """Transposes the matrix of a linear map; float32, contiguous, as the file formats ask for."""
    value = np.asarray(value, np.float32)
    return np.ascontiguousarray(value.T) if path.endswith("/kernel") else value


def _flat_shapes(config: ModelConfig) -> dict[str, jax.ShapeDtypeStruct]:
    return flatten_dict(jax.eval_shape(lambda: initial_params(config, 0)), sep="/")
