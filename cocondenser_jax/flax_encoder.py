"""Encoding where JAX has the accelerator: a retriever whose transformer runs in Flax.

sentence-transformers still tokenizes and applies what follows the pooling, so the vectors are those
of PyTorch but for rounding.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling

from cocondenser_jax.convert.from_torch import load_encoder
from cocondenser_jax.convert.names import Params
from cocondenser_jax.corpus.same_tokens import TEXTS
from cocondenser_jax.errors import UserError
from cocondenser_jax.model.condenser import Condenser
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model_folder.folder import ModelFolder
from cocondenser_jax.pretrain.devices import Encode, mapped_encode, require_devices
from cocondenser_jax.representation import POOLINGS, Representation
from cocondenser_jax.retriever.search.embeddings import Products
from cocondenser_jax.retriever.search.models import Precision, pooling_of, towers

LENGTH_STEP = 32  # tokens; each length that occurs is compiled once
# Largest accepted difference, relative to a vector's length. Rounding causes about 1e-6, the other
# formula of GELU 1e-3.
TOLERANCE = 1e-4
_LONGEST = 96  # tokens of texts that are compared: more than ModernBERT's local attention sees


def run_in_flax(
    model: SentenceTransformer,
    folder: ModelFolder,
    batch_size: int,
    precision: Precision = "float32",
) -> Products:
    """Makes a retriever compute its transformer, or both towers', on all JAX devices of this host.

    Args:
      model: the result of `models.load`; changed in place.
      folder: its model folder.
      batch_size: maximum texts per forward pass, over all devices.
      precision: of the matrix products; auto: bfloat16 unless the devices are CPUs. Parameters and
        vectors are float32.

    Returns:
      The precision that was chosen.

    Raises:
      UserError: for a network that is none of `backbones.BACKBONES`, or another pooling.
    """
    require_devices()
    if precision == "auto":
        precision = "float32" if jax.default_backend() == "cpu" else "bfloat16"
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
        require_same_vectors(network.path, in_torch, tower.tokenizer, config, params, program)
        encode = mapped_encode(config, params, precision, batch_size)
        counts_padding = config.backbone.offset_by_padding
        tower.forward = _forward(encode, config.max_length, pad_id, counts_padding=counts_padding)
    return precision


def require_same_vectors(
    folder: Path,
    model: torch.nn.Module,
    tokenizer: Any,
    config: ModelConfig,
    params: Params,
    program: str,
) -> None:
    """Raises a UserError where the Flax network makes other vectors than PyTorch, in float32.

    Args:
      folder: the folder of both networks, for the message.
      model: maps features to a `sentence_embedding`, as sentence-transformers' modules do.
      tokenizer: the model's tokenizer, with its own padding side.
      config: the Flax network's; its representation includes the modules after the pooling.
      params: the Flax network's.
      program: the name of the Flax side in the message.
    """
    longest = min(tokenizer.model_max_length or _LONGEST, _LONGEST)
    features = tokenizer(
        [*TEXTS], padding=True, truncation=True, max_length=longest, return_tensors="pt"
    )
    device = next(model.parameters()).device
    with torch.inference_mode():
        moved = {name: value.to(device) for name, value in features.items()}
        expected_BxD = model(moved)["sentence_embedding"].float().cpu().numpy()
    ids_BxL, mask_BxL = _read(features)
    with jax.default_matmul_precision("highest"):  # else accelerators round to 16 bits
        found_BxD = np.asarray(_encode(config, params, ids_BxL, mask_BxL))
    lengths_B = np.linalg.norm(expected_BxD, axis=1)
    differences_B = np.linalg.norm(found_BxD - expected_BxD, axis=1) / np.maximum(lengths_B, 1e-12)
    worst = int(np.argmax(differences_B))
    if not (differences_B <= TOLERANCE).all():
        raise UserError(
            f"{folder} makes other vectors {program} than it is searched with: of"
            f" {TEXTS[worst][:40]!r} they are {differences_B[worst]:.1e} of their length apart,"
            f" where rounding gives less than {TOLERANCE:g}"
        )


@functools.partial(jax.jit, static_argnums=0)  # both towers of a shape are compiled once
def _encode(config: ModelConfig, params: Params, ids_BxL: Any, mask_BxL: Any) -> Any:
    return Condenser(config).apply({"params": params}, ids_BxL, mask_BxL, method="encode")


def _read(features: Mapping[str, torch.Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids and mask of texts, the padding of each behind it wherever it was.

    The network counts positions, and finds [CLS], from the first column on.
    """
    mask_BxL = features["attention_mask"].numpy() > 0
    order_BxL = np.argsort(~mask_BxL, axis=1, kind="stable")
    ids_BxL = np.take_along_axis(features["input_ids"].numpy(), order_BxL, axis=1)
    return ids_BxL.astype(np.int32), np.take_along_axis(mask_BxL, order_BxL, axis=1)


def _forward(encode: Encode, longest: int, pad_id: int, *, counts_padding: bool) -> Any:
    """Returns what replaces the `forward` of a transformer of sentence-transformers.

    Its result is a text's vector in place of its tokens', which pooling leaves as it is. With
    `counts_padding`, PyTorch numbers positions by the tokens that are not padding.
    """

    def forward(features: dict[str, torch.Tensor], **_: Any) -> dict[str, torch.Tensor]:
        ids_BxL, mask_BxL = _read(features)
        if counts_padding and ((ids_BxL == pad_id) & mask_BxL).any():
            raise UserError(
                "a text holds the token of padding, at which PyTorch counts no position: expected"
                " --backend=torch"
            )
        n_texts, n_tokens = ids_BxL.shape
        length = min(-(-n_tokens // LENGTH_STEP) * LENGTH_STEP, longest)
        padding = (0, 0), (0, length - n_tokens)
        vectors_BxD = encode(
            np.pad(ids_BxL, padding, constant_values=pad_id),
            np.pad(mask_BxL, padding),
            np.full(n_texts, features.get("prompt_length", 0), np.int32),
        )
        token_Bx1xD = torch.from_numpy(vectors_BxD[:, None].copy())
        one_Bx1 = torch.ones((n_texts, 1), dtype=torch.int64)
        vector: dict[str, Any] = {"token_embeddings": token_Bx1xD, "attention_mask": one_Bx1}
        return features | vector | {"prompt_length": 0}

    return forward
