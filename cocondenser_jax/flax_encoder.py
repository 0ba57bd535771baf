"""Encoding where JAX has the accelerator: a retriever whose transformer runs in Flax.

sentence-transformers still tokenizes and applies what follows the pooling, so the vectors are those
of PyTorch but for rounding.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from cocondenser_jax.convert.from_torch import load_folder
from cocondenser_jax.errors import UserError
from cocondenser_jax.pretrain.devices import mapped_encode
from cocondenser_jax.representation import POOLINGS, Representation
from cocondenser_jax.retrieval.models import pooling_of, tower_folder, towers

LENGTH_STEP = 32  # tokens; each length that occurs is compiled once


def run_in_flax(
    model: SentenceTransformer, folder: Path, batch_size: int, dtype: str = "float32"
) -> None:
    """Makes a retriever compute its transformer, or both towers', on all JAX devices of this host.

    Args:
      model: as `models.load_retriever` returns it.
      folder: that it was loaded from.
      batch_size: texts per forward pass at most, over all devices.
      dtype: of the matrix products; parameters and vectors are float32.

    Raises:
      UserError: for a network that is none of `backbones.BACKBONES`, or another pooling.
    """
    pooling = pooling_of(model)
    if pooling is None or pooling not in POOLINGS:
        raise UserError(f"{folder} pools by {pooling}: with jax, expected cls or mean")
    if any(not getattr(layer, "include_prompt", True) for layer in model.modules()):
        raise UserError(f"{folder} pools without its prompt: with jax, expected all tokens")
    transformers: dict[str, Any] = dict(towers(model))
    for name, tower in transformers.items():
        of_tower = tower_folder(folder, name)
        tower.forward = _forward(of_tower, tower.tokenizer, pooling, batch_size, dtype)


def _forward(folder: Path, tokenizer: Any, pooling: str, batch_size: int, dtype: str) -> Any:
    """Returns what replaces the `forward` of a transformer of sentence-transformers.

    Its result is a text's vector in place of its tokens', which pooling leaves as it is.
    """
    config, params = load_folder(
        str(folder),
        n_head_layers=0,
        representation=Representation(pooling),
        init_head_seed=0,
    )
    pad_id = tokenizer.pad_token_id
    config.require_tokenizer(folder, max(tokenizer.get_vocab().values()) + 1, pad_id)
    encode = mapped_encode(config, params, dtype, batch_size)

    def forward(features: dict[str, torch.Tensor], **_: Any) -> dict[str, torch.Tensor]:
        ids_BxL = features["input_ids"].numpy()
        mask_BxL = features["attention_mask"].numpy()
        n_texts, n_tokens = ids_BxL.shape
        length = min(-(-n_tokens // LENGTH_STEP) * LENGTH_STEP, config.max_length)
        padding = (0, 0), (0, length - n_tokens)
        vectors_BxD = encode(
            np.pad(ids_BxL, padding, constant_values=pad_id).astype(np.int32),
            np.pad(mask_BxL, padding).astype(bool),
        )
        token_Bx1xD = torch.from_numpy(vectors_BxD[:, None].copy())
        one_Bx1 = torch.ones((n_texts, 1), dtype=torch.int64)
        vector: dict[str, Any] = {"token_embeddings": token_Bx1xD, "attention_mask": one_Bx1}
        return features | vector

    return forward
