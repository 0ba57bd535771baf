"""The reference: a Condenser in plain PyTorch, built from Hugging Face's modules.

It is written for clarity, not for speed: full sequences through every layer, logits at every
position, and losses as in the papers' equations.
"""

import copy
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sentence_transformers.sentence_transformer.modules import Dense
from transformers import AutoModelForMaskedLM, PreTrainedModel

from cocondenser_jax.convert.from_torch import load_folder
from cocondenser_jax.convert.names import DENSE_PREFIX, HEAD_PREFIX, to_tensors
from cocondenser_jax.corpus.batches import Batch
from cocondenser_jax.representation import Representation

_TIED = re.compile(r"\.decoder\.|^decoder\.weight$")  # to the word embeddings and their bias
IGNORED = -100  # the label of positions that are not predicted


class TorchOutput(NamedTuple):
    """Like `CondenserOutput`, for all positions."""

    late_BxLxD: torch.Tensor
    vectors_BxD: torch.Tensor
    head_logits_BxLxV: torch.Tensor | None
    late_logits_BxLxV: torch.Tensor | None


class TorchCondenser(torch.nn.Module):
    """A masked language model of transformers with an optional Condenser head.

    Dense layers after the pooling, if any, are newly initialized.
    """

    def __init__(
        self,
        lm: PreTrainedModel,
        head: torch.nn.ModuleList,
        skip_from: int,
        representation: Representation,
    ) -> None:
        super().__init__()
        self.lm = lm
        self.c_head = head
        self.skip_from = skip_from
        self.representation = representation
        self.dense = torch.nn.ModuleList(
            Dense(
                layer.in_features,
                layer.out_features,
                bias=layer.bias,
                activation_function=getattr(torch.nn, layer.activation_name)(),
            )
            for layer in representation.dense
        )

    def project(self, hidden_BxLxD: torch.Tensor) -> torch.Tensor:
        """Returns the logits of the MLM projection, which backbone and head share."""
        lm: Any = self.lm
        if hasattr(lm, "decoder"):  # ModernBERT
            return lm.decoder(lm.head(hidden_BxLxD))
        return lm.cls(hidden_BxLxD) if hasattr(lm, "cls") else lm.lm_head(hidden_BxLxD)

    def forward(
        self,
        ids_BxL: torch.Tensor,
        mask_BxL: torch.Tensor,
        late_mlm: bool = True,
        decoder_ids_BxL: torch.Tensor | None = None,
    ) -> TorchOutput:
        """Computes all outputs; `mask_BxL` is boolean, true at tokens.

        With `decoder_ids_BxL`, the head reads their embeddings.
        """
        backbone: Any = self.lm.base_model
        states = backbone(
            input_ids=ids_BxL, attention_mask=mask_BxL, output_hidden_states=True
        ).hidden_states
        early = states[self.skip_from]
        late = states[-1]
        if decoder_ids_BxL is not None:
            early = backbone.embeddings(decoder_ids_BxL)
        options = {}
        is_modern = self.lm.config.model_type == "modernbert"
        if is_modern:
            early = late if self.skip_from == len(states) - 1 else backbone.final_norm(early)
            positions_1xL = torch.arange(ids_BxL.shape[1])[None]
            rotary = backbone.rotary_emb(late, positions_1xL, "full_attention")
            options = {"position_embeddings": rotary}
        if self.lm.config.model_type == "mpnet":
            options = {"position_bias": backbone.encoder.compute_position_bias(late)}
        pooled = self._pool(late, mask_BxL)
        hidden = torch.cat([pooled[:, None], early[:, 1:]], dim=1)
        blocked = torch.where(mask_BxL, 0.0, torch.finfo(late.dtype).min)[:, None, None, :]
        for layer in self.c_head:
            out = layer(hidden, blocked.to(late.dtype), **options)
            hidden = out[0] if isinstance(out, tuple) else out  # MPNet's returns a tuple
        if is_modern:
            hidden = backbone.final_norm(hidden)
        late_logits = self.project(late) if late_mlm else None
        head_logits = self.project(hidden) if self.c_head else None
        return TorchOutput(late, self._finish(pooled), head_logits, late_logits)

    def encode(self, ids_BxL: torch.Tensor, mask_BxL: torch.Tensor) -> torch.Tensor:
        """Returns `vectors_BxD`, in float32."""
        output = self.lm.base_model(input_ids=ids_BxL, attention_mask=mask_BxL)
        return self._finish(self._pool(output.last_hidden_state.float(), mask_BxL))

    def _pool(self, late_BxLxD: torch.Tensor, mask_BxL: torch.Tensor) -> torch.Tensor:
        if self.representation.pooling == "cls":
            return late_BxLxD[:, 0]
        mask_BxLx1 = mask_BxL[:, :, None].to(late_BxLxD.dtype)
        return (late_BxLxD * mask_BxLx1).sum(dim=1) / mask_BxLx1.sum(dim=1)

    def _finish(self, pooled_BxD: torch.Tensor) -> torch.Tensor:
        name = "sentence_embedding"
        features = {name: pooled_BxD}
        for layer in self.dense:
            features = layer(features)
        vectors_BxE = features[name]
        if self.representation.is_cosine:
            vectors_BxE = torch.nn.functional.normalize(vectors_BxE)
        return cut(vectors_BxE, self.representation, self.representation.sizes[:1])[0]

    def gradients(self) -> dict[str, np.ndarray]:
        """Returns the gradient of each tensor by its name in a checkpoint; tied tensors once."""
        parameters = self.named_parameters(remove_duplicate=False)
        named = {name.removeprefix("lm."): value.grad for name, value in parameters}
        return {
            name: grad.numpy()
            for name, grad in named.items()
            if grad is not None and not _TIED.search(name)
        }


def open_reference(folder: Path, *, attention: str = "eager") -> TorchCondenser:
    """Loads an exported folder, with its Condenser head, into transformers' modules.

    Args:
      folder: a folder of either layout, or a published research checkpoint.
      attention: transformers' `attn_implementation`.
    """
    config, params = load_folder(str(folder), n_head_layers=0)
    lm = AutoModelForMaskedLM.from_pretrained(
        folder, attn_implementation=attention, trust_remote_code=False
    )
    head = torch.nn.ModuleList(_head_layer(lm.base_model) for _ in range(config.n_head_layers))
    model = TorchCondenser(lm, head, config.skip_from, config.representation)
    ours = (HEAD_PREFIX, DENSE_PREFIX)
    tensors = to_tensors(params, config).items()
    state = {name: torch.from_numpy(x) for name, x in tensors if name.startswith(ours)}
    parts = {"c_head": head, "dense": model.dense}
    torch.nn.ModuleDict(parts).load_state_dict(state)
    return model.eval()


def _head_layer(backbone: Any) -> torch.nn.Module:
    """Returns a new layer of the backbone's kind.

    For ModernBERT, it attends to the whole span and has the LayerNorm that the backbone's first
    layer lacks.
    """
    if hasattr(backbone, "encoder"):
        return type(backbone.encoder.layer[0])(backbone.config)
    config = copy.deepcopy(backbone.config)
    config.layer_types = ["full_attention"] * 2
    return type(backbone.layers[0])(config, 1)


def cut(
    vectors_SxD: torch.Tensor, representation: Representation, sizes: Sequence[int]
) -> list[torch.Tensor]:
    """Returns vectors truncated to each size, normalized for cosine; unchanged without sizes."""
    parts = [vectors_SxD[:, :size] for size in sizes] or [vectors_SxD]
    if representation.similarity == "cosine":
        return [torch.nn.functional.normalize(part) for part in parts]
    return parts


def full_labels(batch: Batch) -> torch.Tensor:
    """Returns the labels of all positions, `labels_SxL`, `IGNORED` where nothing is predicted."""
    labels_SxL = np.full(batch.input_ids_SxL.shape, IGNORED, np.int64)
    span_N, slot_N = np.nonzero(batch.weights_SxM)
    position_N = batch.masked_positions_SxM[span_N, slot_N]
    labels_SxL[span_N, position_N] = batch.labels_SxM[span_N, slot_N]
    return torch.from_numpy(labels_SxL)


def mlm_sum(logits_BxLxV: torch.Tensor, labels_BxL: torch.Tensor) -> torch.Tensor:
    """Returns the sum of the cross-entropy over all positions with a label other than `IGNORED`."""
    logits_NxV = logits_BxLxV.flatten(0, 1).float()
    labels_N = labels_BxL.flatten()
    return torch.nn.functional.cross_entropy(
        logits_NxV, labels_N, ignore_index=IGNORED, reduction="sum"
    )


def contrastive_loss(vectors_SxD: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """Returns the mean over spans of equation 6 of arXiv 2108.05540; rows 2i, 2i + 1 are pairs."""
    logits_SxS = (scale * vectors_SxD @ vectors_SxD.T).fill_diagonal_(-torch.inf)
    positive_S = torch.arange(len(vectors_SxD), device=vectors_SxD.device) ^ 1
    return torch.nn.functional.cross_entropy(logits_SxS, positive_S)
