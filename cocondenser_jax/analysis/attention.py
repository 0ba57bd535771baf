"""How widely the CLS position of an encoder looks, layer by layer.

Shape legend: B texts of a batch, N heads, L tokens of the longest text.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from cocondenser_jax.analysis.plots import Curve, Panel
from cocondenser_jax.errors import UserError

# Attention weights per head of a batch: 300 MB for all 12 layers and heads of a BERT-base.
_MAX_WEIGHTS = 1 << 19


class LayerEntropies(NamedTuple):
    """Entropies (nats), averaged over heads and texts.

    Attributes:
      layers: one for each layer, the first above the embeddings first, [layers].
      uniform: what they would be if CLS looked at all tokens of a text alike: the mean of
        log(number of tokens). No layer can exceed it.
    """

    layers: np.ndarray
    uniform: float


def cls_entropy(weights_BxNxLxL: torch.Tensor) -> torch.Tensor:
    """Returns H_bn = -Σ_l a_l log a_l (nats) of what the first position attends to, [B, N].

    A weight of 0, as padding has it, adds nothing.
    """
    return torch.special.entr(weights_BxNxLxL[:, :, 0]).sum(-1)


def layer_entropies(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    max_tokens: int,
) -> LayerEntropies:
    """Measures how broad the attention of CLS is, per layer, averaged over heads and texts.

    The measure is of Clark et al., *What does BERT look at?* (arXiv 1906.04341); Gao and Callan,
    *Condenser* (arXiv 2104.08253), plot it for models before and after fine-tuning.

    Args:
      model: a BERT or RoBERTa. It is left in single precision, without dropout, and with the
        attention that shows its weights.
      tokenizer: its tokenizer.
      texts: at least one.
      max_tokens: kept of a text, CLS and SEP among them; the distribution is over these.

    Raises:
      UserError: if the tokenizer does not put a CLS token first.
    """
    rows = tokenizer(list(texts), truncation=True, max_length=max_tokens)["input_ids"]
    if any(row[:1] != [tokenizer.cls_token_id] for row in rows):
        raise UserError(
            f"the tokenizer of {model.name_or_path} puts no CLS token first: "
            "expected a BERT or RoBERTa"
        )
    model.set_attn_implementation("eager")
    model.float().eval()
    total = torch.zeros(model.config.num_hidden_layers, dtype=torch.float64)
    with tqdm(total=len(rows), desc="attention", unit=" texts") as progress, torch.inference_mode():
        for batch in _batches(rows):
            ids_BxL, mask_BxL = _pad(batch, model.config.pad_token_id, model.device)
            attentions = model(ids_BxL, mask_BxL, output_attentions=True).attentions
            sums = [cls_entropy(weights).double().mean(1).sum() for weights in attentions]
            total += torch.stack(sums).cpu()
            progress.update(len(batch))
    uniform = np.mean([math.log(len(row)) for row in rows])
    return LayerEntropies((total / len(rows)).numpy(), float(uniform))


def entropy_panel(entropies: Mapping[str, LayerEntropies]) -> Panel:
    """Plots the entropies of several models by layer, counted from 1: a line for each name.

    Where the models cut the texts into as many tokens, as with one tokenizer, the entropy of
    uniform attention is drawn too.
    """
    lines = [
        Curve(name, np.arange(1, len(found.layers) + 1), found.layers)
        for name, found in entropies.items()
    ]
    uniform = {found.uniform for found in entropies.values()}
    return Panel(
        "Entropy of the attention of CLS (nats)",
        lines,
        from_zero=True,
        reference=(uniform.pop(), "uniform attention") if len(uniform) == 1 else None,
        x_label="layer",
    )


def _batches(rows: Sequence[list[int]]) -> Iterator[list[list[int]]]:
    """Cuts the rows, the longest first, into batches whose attention takes about as much memory."""
    rest = sorted(rows, key=len, reverse=True)
    while rest:
        size = max(1, _MAX_WEIGHTS // len(rest[0]) ** 2)
        yield rest[:size]
        rest = rest[size:]


def _pad(
    rows: Sequence[list[int]], pad_token_id: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns ids and mask, [B, L] each, padded on the right: CLS stays in the first column."""
    ids_BxL = torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(row) for row in rows], batch_first=True, padding_value=pad_token_id
    )
    lengths_B = torch.tensor([len(row) for row in rows])
    mask_BxL = torch.arange(ids_BxL.shape[1]) < lengths_B[:, None]
    return ids_BxL.to(device), mask_BxL.to(device)
