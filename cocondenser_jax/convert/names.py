"""Flax ↔ Hugging Face parameter names: one table, read in both directions.

`tensor_names` pairs every parameter of a Condenser with the tensor that holds it in a PyTorch
checkpoint. Both libraries store the same values, except that matrices of linear maps are transposed
(Flax `[in, out]`, PyTorch `[out, in]`), and ModernBERT stacks those of queries, keys and values.
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from cocondenser_jax.backbones import BACKBONES
from cocondenser_jax.model.condenser import init_params
from cocondenser_jax.model.config import ModelConfig

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
_MPNET_LAYER = _LAYER | {
    "query": "attention.attn.q",
    "key": "attention.attn.k",
    "value": "attention.attn.v",
    "output": "attention.attn.o",
    "attention_norm": "attention.LayerNorm",
}
_MODERN_LAYER = {
    "query": "attn.Wqkv",
    "key": "attn.Wqkv",
    "value": "attn.Wqkv",
    "output": "attn.Wo",
    "attention_norm": "attn_norm",
    "mlp_in": "mlp.Wi",
    "mlp_out": "mlp.Wo",
    "mlp_norm": "mlp_norm",
}
_STACKED = ["query", "key", "value"]  # in this order
_MODERN_SETTINGS = (
    "local_attention",
    "global_attn_every_n_layers",
    "global_rope_theta",
    "local_rope_theta",
)
_BERT_SETTINGS = {"hidden_act": "gelu", "position_embedding_type": "absolute"}
_NONE: Mapping[str, str] = {}


class Names(NamedTuple):
    """A model family's names for its parts, and for the settings in its config.json."""

    architecture: str  # transformers' class, with the MLM projection
    backbone: str
    mlm: Mapping[str, str]  # "": where the bias is
    layers: str = "encoder.layer."
    layer: Mapping[str, str] = _LAYER
    embeddings: Mapping[str, str] = _EMBEDDINGS
    # In config.json: fields of `ModelConfig` that it lacks, fields under another name, further
    # names for the value of a field, and constants that all folders share.
    lacks: tuple[str, ...] = _MODERN_SETTINGS
    renamed: Mapping[str, str] = _NONE
    copied: Mapping[str, str] = _NONE
    constant: Mapping[str, Any] = _BERT_SETTINGS


_BERT_MLM = {
    "": "cls.predictions",
    "dense": "cls.predictions.transform.dense",
    "norm": "cls.predictions.transform.LayerNorm",
}
_ROBERTA_MLM = {"": "lm_head", "dense": "lm_head.dense", "norm": "lm_head.layer_norm"}
NAMES = {
    "bert": Names("BertForMaskedLM", "bert.", _BERT_MLM),
    "roberta": Names("RobertaForMaskedLM", "roberta.", _ROBERTA_MLM),
    "xlm-roberta": Names("XLMRobertaForMaskedLM", "roberta.", _ROBERTA_MLM),
    "modernbert": Names(
        "ModernBertForMaskedLM",
        "model.",
        {"": "decoder", "dense": "head.dense", "norm": "head.norm"},
        layers="layers.",
        layer=_MODERN_LAYER,
        embeddings={"word": "tok_embeddings", "norm": "norm"},
        lacks=("type_vocab_size",),
        renamed={
            "layer_norm_eps": "norm_eps",
            "hidden_dropout_prob": "mlp_dropout",
            "attention_probs_dropout_prob": "attention_dropout",
        },
        copied={"embedding_dropout": "hidden_dropout_prob"},
        # Otherwise transformers takes the published model's, which may be outside the vocabulary.
        constant={
            "bos_token_id": None,
            "eos_token_id": None,
            "cls_token_id": None,
            "sep_token_id": None,
        },
    ),
    "mpnet": Names(
        "MPNetForMaskedLM",
        "mpnet.",
        _ROBERTA_MLM,
        layer=_MPNET_LAYER,
        lacks=(*_MODERN_SETTINGS, "type_vocab_size"),
        constant={
            "hidden_act": "gelu",
            "relative_attention_num_buckets": BACKBONES["mpnet"].relative_bias,
        },
    ),
}
# Accepted values of other fields of config.json; any other value means a different network.
SUPPORTED = {
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "relative_attention_num_buckets": BACKBONES["mpnet"].relative_bias,  # fixed in transformers
    # ModernBERT's
    "hidden_activation": "gelu",
    "decoder_bias": True,
    "norm_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "classifier_activation": "gelu",
    "classifier_bias": False,
}
_LEAVES = {
    "kernel": "weight",
    "embedding": "weight",
    "scale": "weight",
    "table": "weight",
    "bias": "bias",
}
# The fields of `ModelConfig` that Hugging Face's config.json does not have: those of
# condenser.json, and what modules.json says.
HEAD_FIELDS = ("n_head_layers", "skip_from", "late_mlm")
OWN_FIELDS = (*HEAD_FIELDS, "representation")
HEAD_PREFIX = "c_head."  # of the Condenser head, as in the published research checkpoints
# The prefix of dense layers after the pooling, before their number. Each has its own file, with the
# names that sentence-transformers' Dense module gives its matrix and bias.
DENSE_PREFIX = "dense."
DENSE_MODULE = "linear"


def tensor_names(config: ModelConfig) -> dict[str, str]:
    """Returns {Flax path, joined by slashes: name of the PyTorch tensor} for a whole Condenser.

    If several paths share a name, that tensor stacks them.
    """
    names = NAMES[config.model_type]
    found = {}
    for path in _shapes(config):
        block, *module, leaf = path.split("/")
        kind, _, index = block.partition("_")
        prefix, modules = {
            "embeddings": (f"{names.backbone}embeddings.", names.embeddings),
            "layers": (f"{names.backbone}{names.layers}{index}.", names.layer),
            "head": (f"{HEAD_PREFIX}{index}.", names.layer),
            "final": (names.backbone, {"": "final_norm"}),
            "relative": (names.backbone, {"": "encoder.relative_attention_bias"}),
            "mlm": ("", names.mlm),
            "dense": (f"{DENSE_PREFIX}{index}.", {"": DENSE_MODULE}),
        }[kind]
        found[path] = f"{prefix}{modules['/'.join(module)]}.{_LEAVES[leaf]}"
    return found


def to_tensors(params: Mapping[str, Any], config: ModelConfig) -> dict[str, np.ndarray]:
    """Returns the PyTorch tensors of a Flax parameter tree, float32, by their PyTorch names."""
    flat = flatten_dict(params, sep="/")
    shapes = {path: tuple(leaf.shape) for path, leaf in flat.items()}
    expected = _shapes(config)
    if shapes != expected:
        wrong = sorted(path for path, _ in shapes.items() ^ expected.items())
        raise ValueError(f"the parameters are not those of the model's config: {wrong}")
    return {
        name: np.concatenate([_transpose_kernel(path, flat[path]) for path in paths])
        for name, paths in _paths(config).items()
    }


def from_tensors(tensors: Mapping[str, np.ndarray], config: ModelConfig) -> Params:
    """Returns the float32 Flax parameter tree of the tensors that `expected_shapes` names."""
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
    shapes = _shapes(config)

    def stacked(paths: list[str]) -> tuple[int, ...]:
        shape = shapes[paths[0]]
        if _is_kernel(paths[0]):
            shape = shape[::-1]
        return len(paths) * shape[0], *shape[1:]

    return {name: stacked(paths) for name, paths in _paths(config).items()}


def _paths(config: ModelConfig) -> dict[str, list[str]]:
    """Returns {name of the PyTorch tensor: Flax paths of its parts, in order}."""
    paths: dict[str, list[str]] = {}
    for path, name in tensor_names(config).items():
        paths.setdefault(name, []).append(path)
    for parts in paths.values():
        if len(parts) > 1:
            parts.sort(key=lambda path: _STACKED.index(path.split("/")[1]))
    return paths


def _is_kernel(path: str) -> bool:
    return path.endswith("/kernel")


def _transpose_kernel(path: str, value: Any) -> np.ndarray:
    """Transposes the matrix of a linear map; float32 and contiguous, as file formats require."""
    value = np.asarray(value, np.float32)
    return np.ascontiguousarray(value.T) if _is_kernel(path) else value


@functools.cache
def _shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    params = jax.eval_shape(lambda: init_params(config, 0))
    return {path: leaf.shape for path, leaf in flatten_dict(params, sep="/").items()}
