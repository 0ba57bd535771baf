"""Tiny networks of the families that published models have, and the files of their weights.

Their weights are random, wide enough that every tensor matters, and the same in every run.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

HIDDEN = 32
POSITIONS = 32  # tokens that a network reads
_SIZES = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
# What older releases of transformers wrote beside the sizes.
_OLD_KEYS = {
    "position_embedding_type": "absolute",
    "gradient_checkpointing": False,
    "use_cache": True,
}
_BERT = _SIZES | {"max_position_embeddings": POSITIONS}
# Positions start after the padding id.
_ROBERTA = _SIZES | {"max_position_embeddings": POSITIONS + 2, "layer_norm_eps": 1e-5}


class Network(NamedTuple):
    """A network by its classes in transformers."""

    config: str
    model: str
    settings: Mapping[str, Any]
    in_flax: bool = False
    special: Callable[[int], dict[str, Any]] = lambda pad_id: {"pad_token_id": pad_id}
    architecture: str = ""  # that config.json names; "": the class
    old_keys: Mapping[str, Any] = {}  # of config.json, where its releases wrote others
    new_keys: tuple[str, ...] = ()  # that those releases did not write


NETWORKS = {
    "bert": Network("BertConfig", "BertModel", _BERT, in_flax=True, old_keys=_OLD_KEYS),
    # The padding id of its config.json is BERT's, whatever the tokenizer's.
    "bert, padded by 0": Network(
        "BertConfig",
        "BertModel",
        _BERT,
        in_flax=True,
        special=lambda pad_id: {"pad_token_id": 0},
        old_keys=_OLD_KEYS,
    ),
    "roberta": Network(
        "RobertaConfig",
        "RobertaModel",
        _ROBERTA | {"type_vocab_size": 1},
        in_flax=True,
        old_keys=_OLD_KEYS,
    ),
    "xlm-roberta": Network(
        "XLMRobertaConfig",
        "XLMRobertaModel",
        _ROBERTA | {"type_vocab_size": 1},
        in_flax=True,
        old_keys=_OLD_KEYS,
    ),
    "mpnet": Network(
        "MPNetConfig",
        "MPNetModel",
        _ROBERTA,
        in_flax=True,
        architecture="MPNetForMaskedLM",
        old_keys=_OLD_KEYS,
    ),
    "modernbert": Network(
        "ModernBertConfig",
        "ModernBertModel",
        _BERT | {"local_attention": 8, "global_attn_every_n_layers": 2},
        in_flax=True,
        special=lambda pad_id: {
            "pad_token_id": pad_id,
            "bos_token_id": None,
            "eos_token_id": None,
            "cls_token_id": None,
            "sep_token_id": None,
        },
        old_keys={"global_rope_theta": 160000.0, "local_rope_theta": 10000.0},
        new_keys=("layer_types", "rope_parameters"),
    ),
    "distilbert": Network(
        "DistilBertConfig",
        "DistilBertModel",
        {
            "dim": HIDDEN,
            "n_layers": 2,
            "n_heads": 2,
            "hidden_dim": 64,
            "max_position_embeddings": POSITIONS,
        },
    ),
    "nomic": Network("NomicBertConfig", "NomicBertModel", _BERT),
    "t5": Network(
        "T5Config",
        "T5EncoderModel",
        {"d_model": HIDDEN, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2},
        special=lambda pad_id: {"pad_token_id": pad_id, "eos_token_id": 1},
    ),
    "qwen3": Network(
        "Qwen3Config",
        "Qwen3Model",
        _BERT | {"num_key_value_heads": 1, "head_dim": 16},
    ),
    "gemma": Network(
        "Gemma3TextConfig",
        "Gemma3TextModel",
        _BERT
        | {
            "num_key_value_heads": 1,
            "head_dim": 16,
            "query_pre_attn_scalar": 16,
            "sliding_window": 8,
            "use_bidirectional_attention": True,
        },
        special=lambda pad_id: {"pad_token_id": pad_id, "bos_token_id": 2, "eos_token_id": 1},
    ),
}
_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def write_network(folder: Path, kind: str, n_rows: int, pad_id: int, weights: str) -> None:
    """Writes config.json and the weights of a new network.

    Args:
      folder: that exists.
      kind: of NETWORKS.
      n_rows: of the table of word embeddings.
      pad_id: of the tokenizer.
      weights: "safetensors", "shards", "bin", "gamma" (.bin with the names of 2018), "alibi" (with
        those of another network), "float16" or "bfloat16".
    """
    network = NETWORKS[kind]
    config = getattr(transformers, network.config)(
        vocab_size=n_rows, **network.settings, **network.special(pad_id)
    )
    model = getattr(transformers, network.model)(config)
    draw_weights(model)
    match weights:
        case "shards":
            model.save_pretrained(folder, max_shard_size="30KB")
        case "bin" | "gamma" | "alibi":
            model.config.save_pretrained(folder)
            rename = {"gamma": _name_of_2018, "alibi": _name_of_alibi}.get(weights, str)
            tensors = {rename(name): value for name, value in model.state_dict().items()}
            tensors["embeddings.position_ids"] = torch.arange(POSITIONS)[
                None
            ]  # as releases before 4.31
            torch.save(tensors, folder / "pytorch_model.bin")
        case _:
            model.to(_DTYPES.get(weights, torch.float32)).save_pretrained(folder)
    config_file = folder / "config.json"
    written = json.loads(config_file.read_text())
    # The name of the type of the weights before transformers 5.
    written["torch_dtype"] = written.pop("dtype", None) or "float32"
    for key in network.new_keys:
        del written[key]
    architecture = {"architectures": [network.architecture or network.model]}
    config_file.write_text(json.dumps(written | network.old_keys | architecture))


def draw_weights(module: torch.nn.Module, seed: int = 7) -> None:
    """Draws all parameters, wider than at initialization."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        is_scale = parameter.dim() == 1 and name.endswith("weight")  # of a normalization
        shift, scale = (1.0, 0.3) if is_scale else (0.0, 0.2)
        parameter.data.normal_(shift, scale, generator=generator)


def _name_of_2018(name: str) -> str:
    """Returns the name of a tensor of BERT as TensorFlow gave it."""
    name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
    return "bert." + name.replace("LayerNorm.bias", "LayerNorm.beta")


def _name_of_alibi(name: str) -> str:
    """Returns another name for what a network with ALiBi (arXiv 2108.12409) lacks or calls so."""
    return name.replace("position_embeddings", "unused").replace("intermediate.dense", "mlp.gated")
