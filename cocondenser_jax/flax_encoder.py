"""Encoding where JAX has the accelerator: a retriever whose transformer runs in Flax.

sentence-transformers still tokenizes and applies what follows the pooling, so the vectors are those
of PyTorch but for rounding.
"""

import functools
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling

from cocondenser_jax.convert.from_torch import load_encoder
from cocondenser_jax.convert.names import Params
from cocondenser_jax.errors import UserError
from cocondenser_jax.model.condenser import Condenser
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model_folder.folder import ModelFolder
from cocondenser_jax.pretrain.devices import Encode, mapped_encode, require_devices
from cocondenser_jax.representation import POOLINGS, Representation
from cocondenser_jax.retriever.search.models import pooling_of, towers
from cocondenser_jax.retriever.search.same_vectors import require_same_vectors

LENGTH_STEP = 32  # tokens; each length that occurs is compiled once


def run_in_flax(
    model: SentenceTransformer, folder: ModelFolder, batch_size: int, dtype: str = "float32"
) -> None:
    """Makes a retriever compute its transformer, or both towers', on all JAX devices of this host.

    Args:
      model: as `models.load` returns it.
      folder: what it was loaded from.
      batch_size: texts per forward pass at most, over all devices.
      dtype: of the matrix products; parameters and vectors are float32.

    Raises:
      UserError: for a network that is none of `backbones.BACKBONES`, or another pooling.
    """
    require_devices()
    pooling = pooling_of(model)
    if pooling is None or pooling not in POOLINGS:
        raise UserError(f"{folder.path} pools by {pooling}: with jax, expected cls or mean")
    model.to("cpu")  # what stays in PyTorch: tokens and vectors, that JAX reads and writes there
    pools_prompts = all(getattr(layer, "include_prompt", True) for layer in model.modules())
    pooled = Representation(pooling, include_prompt=pools_prompts)
    transformers: dict[str, Any] = dict(towers(model))
    for name, tower in transformers.items():
        network = folder.networks[name]
        config, params = load_encoder(network, pooled)
        pad_id = tower.tokenizer.pad_token_id
        config.require_tokenizer(
            network.path, max(tower.tokenizer.get_vocab().values()) + 1, pad_id
        )
        in_torch = torch.nn.Sequential(tower, Pooling(config.hidden_size, pooling))
        program = "in JAX (expected --backend=torch)"
        compare_with_flax(network.path, in_torch, tower.tokenizer, config, params, program)
        encode = mapped_encode(config, params, dtype, batch_size)
        tower.forward = _forward(encode, config.max_length, pad_id)


def compare_with_flax(
    folder: Path,
    model: torch.nn.Module,
    tokenizer: Any,
    config: ModelConfig,
    params: Params,
    program: str,
) -> None:
    """Raises a UserError where the Flax network makes other vectors than PyTorch, in float32.

    Args:
      folder: that both were read from.
      model: see `same_vectors.require_same_vectors`.
      tokenizer: see `same_vectors.require_same_vectors`.
      config: of the Flax network, with all that follows the pooling in `model`.
      params: of the Flax network.
      program: what the message calls it.
    """

    def encode(ids_BxL: np.ndarray, mask_BxL: np.ndarray) -> np.ndarray:
        with jax.default_matmul_precision("highest"):  # else accelerators round to 16 bits
            return np.asarray(_encode(config, params, ids_BxL.astype(np.int32), mask_BxL))

    require_same_vectors(folder, model, tokenizer, encode, program)


@functools.partial(jax.jit, static_argnums=0)  # both towers of a shape are compiled once
def _encode(config: ModelConfig, params: Params, ids_BxL: Any, mask_BxL: Any) -> Any:
    return Condenser(config).apply({"params": params}, ids_BxL, mask_BxL, method="encode")


def _forward(encode: Encode, longest: int, pad_id: int) -> Any:
    """Returns what replaces the `forward` of a transformer of sentence-transformers.

    Its result is a text's vector in place of its tokens', which pooling leaves as it is.
    """

    def forward(features: dict[str, torch.Tensor], **_: Any) -> dict[str, torch.Tensor]:
        ids_BxL = features["input_ids"].numpy()
        mask_BxL = features["attention_mask"].numpy()
        n_texts, n_tokens = ids_BxL.shape
        length = min(-(-n_tokens // LENGTH_STEP) * LENGTH_STEP, longest)
        padding = (0, 0), (0, length - n_tokens)
        vectors_BxD = encode(
            np.pad(ids_BxL, padding, constant_values=pad_id).astype(np.int32),
            np.pad(mask_BxL, padding).astype(bool),
            np.full(n_texts, features.get("prompt_length", 0), np.int32),
        )
        token_Bx1xD = torch.from_numpy(vectors_BxD[:, None].copy())
        one_Bx1 = torch.ones((n_texts, 1), dtype=torch.int64)
        vector: dict[str, Any] = {"token_embeddings": token_Bx1xD, "attention_mask": one_Bx1}
        return features | vector | {"prompt_length": 0}

    return forward
