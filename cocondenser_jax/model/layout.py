"""The parameters as a device multiplies them, which differs from a checkpoint's layout.

A layout is chosen for a machine and a batch. `lay_out` is linear: its transpose, applied once a
step, turns a gradient in this layout into one of the checkpoint's parameters.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cocondenser_jax.model.condenser import whole_layers
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model.kernels import GPU_HEADS, TPU_LENGTH, fills_lanes

_JOINED = ("query", "key", "value")


class Layout(NamedTuple):
    """How parameters are laid out; the default is a checkpoint's layout."""

    attention: str = "xla"  #: or the kernel of a `gpu` or a `tpu`: its layers join three matrices
    vocabulary: int = 1  #: the word embeddings are padded to a multiple of this
    rounds_once: bool = False  #: the layers' linear maps are rounded to bfloat16 before all chunks


def why_no_kernel(config: ModelConfig, platform: str, length: int) -> str:
    """Returns why no kernel of a platform can compute a model's attention; "" if one can."""
    size = config.hidden_size // config.num_attention_heads
    backbone = config.backbone
    if platform not in ("gpu", "tpu"):
        return (
            "there is none for this device, only for NVIDIA GPUs since Ampere and for TPUs since v4"
        )
    if backbone.relative_bias or (backbone.rotary and platform == "tpu"):
        return f"there is none for the positions of {config.model_type}"
    if platform == "tpu" and length > TPU_LENGTH:
        return f"on a TPU it takes up to {TPU_LENGTH} tokens, not {length}"
    if platform == "gpu" and size not in GPU_HEADS:
        return f"on a GPU it takes heads of {', '.join(map(str, GPU_HEADS))} numbers, not {size}"
    if platform == "tpu" and not fills_lanes(config.num_attention_heads, size):
        return f"on a TPU, {config.num_attention_heads} heads of {size} do not fill its lanes"
    return ""


def laid_out(config: ModelConfig, layout: Layout) -> ModelConfig:
    """Returns the config of the network that reads the parameters in a layout."""
    n_words = -(-config.vocab_size // layout.vocabulary) * layout.vocabulary
    return dataclasses.replace(config, vocab_size=n_words)


def lay_out(config: ModelConfig, layout: Layout, params: Any) -> Any:
    """Returns the parameters in a layout.

    The logits of words that pad the vocabulary are -inf, so that neither the loss nor a gradient
    changes.
    """
    params = dict(params)
    if n_more := laid_out(config, layout).vocab_size - config.vocab_size:
        embeddings, mlm = params["embeddings"], params["mlm"]
        words_VxD = jnp.pad(embeddings["word"]["embedding"], ((0, n_more), (0, 0)))
        bias_V = jnp.pad(mlm["bias"], (0, n_more), constant_values=-jnp.inf)
        params["embeddings"] = {**embeddings, "word": {"embedding": words_VxD}}
        params["mlm"] = {**mlm, "bias": bias_V}
    if layout.attention != "xla":
        params |= {name: _join(params[name]) for name in whole_layers(config)}
    return params


def _join(layer: Any) -> Any:
    """Returns a layer's parameters with one matrix for queries, keys and values, and one bias."""
    parts = [layer[name] for name in _JOINED]
    kernel_Dx3D = jnp.concatenate([part["kernel"] for part in parts], axis=1)
    joined = {"kernel": kernel_Dx3D}
    if "bias" in parts[0]:
        joined["bias"] = jnp.concatenate([part["bias"] for part in parts])
    others = {name: x for name, x in layer.items() if name not in _JOINED}
    return {**others, "joined": joined}


def round_maps(params: Any, dtype: str) -> Any:
    """Returns the layers' matrices and biases in a dtype, and None for all other parameters.

    Each is used once in a forward pass, so the float32 sums of gradients stay what they are.
    """

    def rounded(path: Any, x: jax.Array) -> jax.Array | None:
        is_layer = path[0].key.startswith(("layers_", "head_"))
        is_map = not path[-2].key.endswith("norm")
        return x.astype(dtype) if is_layer and is_map else None

    return jax.tree_util.tree_map_with_path(rounded, params)


def with_rounded(params: Any, rounded: Any) -> Any:
    """Returns parameters whose linear maps are those of `round_maps`; gradients are float32."""
    return jax.tree.map(
        lambda x, in_dtype: x if in_dtype is None else _instead(x, in_dtype), params, rounded
    )


@jax.custom_vjp
def _instead(x: jax.Array, rounded: jax.Array) -> jax.Array:
    return rounded


def _instead_forward(x: jax.Array, rounded: jax.Array) -> tuple[jax.Array, None]:
    return rounded, None


def _instead_backward(_: None, cotangent: jax.Array) -> tuple[jax.Array, None]:
    return cotangent.astype(jnp.float32), None


_instead.defvjp(_instead_forward, _instead_backward)
