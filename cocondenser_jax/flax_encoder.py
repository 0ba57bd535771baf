"""Encoding where JAX has the accelerator: a retriever whose transformer runs in Flax.

sentence-transformers still tokenizes and applies what follows the pooling, so the vectors are those
of PyTorch but for rounding.
"""

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.sharding import NamedSharding, PartitionSpec
from sentence_transformers import SentenceTransformer

from cocondenser_jax.convert.from_torch import load_folder
from cocondenser_jax.errors import UserError
from cocondenser_jax.model.condenser import Condenser
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
      UserError: for a network that is none of `model.config.MODEL_TYPES`, or another pooling.
    """
    pooling = pooling_of(model)
    if pooling not in ("cls", "mean"):
        raise UserError(f"{folder} pools by {pooling}: with jax, expected cls or mean")
    n_rows = -(-batch_size // jax.local_device_count())
    if any(not getattr(layer, "include_prompt", True) for layer in model.modules()):
        raise UserError(f"{folder} pools without its prompt: with jax, expected all tokens")
    transformers: dict[str, Any] = dict(towers(model))
    for name, tower in transformers.items():
        tower.forward = _forward(tower_folder(folder, name), pooling, n_rows, dtype)


def _forward(folder: Path, pooling: str, n_rows: int, dtype: str) -> Any:
    """Returns what replaces the `forward` of a transformer of sentence-transformers.

    Its result is a text's vector in place of its tokens', which pooling leaves as it is.
    """
    config, params = load_folder(
        str(folder), n_head_layers=0, representation=pooling, init_head_seed=0
    )
    network = Condenser(config, jnp.dtype(dtype))
    n_devices = jax.local_device_count()
    mesh = jax.make_mesh((n_devices,), ("rows",), devices=jax.local_devices())
    replicated = NamedSharding(mesh, PartitionSpec())
    by_row = NamedSharding(mesh, PartitionSpec("rows"))
    params = jax.device_put(params, replicated)

    @functools.partial(jax.jit, in_shardings=(replicated, by_row, by_row), out_shardings=by_row)
    def encode(params: Any, ids_BxL: jax.Array, mask_BxL: jax.Array) -> Any:
        return network.apply({"params": params}, ids_BxL, mask_BxL, method="encode")

    def forward(features: dict[str, torch.Tensor], **_: Any) -> dict[str, torch.Tensor]:
        ids_BxL = features["input_ids"].numpy()
        mask_BxL = features["attention_mask"].numpy()
        n_texts, n_tokens = ids_BxL.shape
        length = min(-(-n_tokens // LENGTH_STEP) * LENGTH_STEP, config.max_length)
        shape = (n_devices * n_rows, length)
        ids_SxL = np.full(shape, config.pad_token_id, np.int32)
        mask_SxL = np.zeros(shape, bool)
        ids_SxL[:n_texts, :n_tokens] = ids_BxL
        mask_SxL[:n_texts, :n_tokens] = mask_BxL
        vectors_SxD = np.asarray(encode(params, ids_SxL, mask_SxL))
        token_BxLxD = torch.from_numpy(vectors_SxD[:n_texts, None].copy())
        one_Bx1 = torch.ones((n_texts, 1), dtype=torch.int64)
        done: dict[str, Any] = {"token_embeddings": token_BxLxD, "attention_mask": one_Bx1}
        return features | done

    return forward
