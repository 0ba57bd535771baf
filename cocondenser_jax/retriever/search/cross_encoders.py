"""Loads cross-encoders with sentence-transformers."""

from typing import Any

import numpy as np
import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.sentence_transformer.modules import Transformer

from cocondenser_jax.errors import UserError
from cocondenser_jax.model_folder.folder import Network, is_cross_encoder
from cocondenser_jax.model_folder.library import (
    NO_CODE,
    NO_OTHER_CODE,
    loading,
    max_tokens,
    require_loadable,
    require_rows,
    require_within,
)
from cocondenser_jax.retriever.search.models import DTYPE, new_parameters, without_model_card

SHORTEST_PAIR = 8  # tokens, special tokens included


def load_cross_encoder(
    network: Network, max_length: int | None = None, head_seed: int | None = None
) -> CrossEncoder:
    """Loads a cross-encoder: a transformer with a head that computes one logit for a pair of texts.

    Scores are logits, without an activation. In a pair that is too long, the longer text is
    truncated, so that a query of up to half of `max_length` stays whole.

    Args:
      network: the result of `open_network`.
      max_length: maximum tokens of a pair, separators included; None: the folder's limit.
      head_seed: the seed of a random head if the folder has none; None: such a folder is refused.

    Raises:
      UserError: also for a model with several scores, a prompt, or scores that are not finite.
    """
    folder = network.path
    if is_cross_encoder(network.config):
        model = _open_cross_encoder(network)
    elif head_seed is not None:
        model = _new_cross_encoder(network, head_seed)
    else:
        raise UserError(
            f"{folder} is not a cross-encoder: expected a model for sequence classification,"
            " such as cocondenser finetune makes with configs/cross_encoder.py"
        )
    backbone: Any = model[0]
    if backbone.config.num_labels != 1:
        raise UserError(
            f"{folder} gives a pair of texts {backbone.config.num_labels} scores: expected 1"
        )
    require_rows(backbone, folder)
    limit = max_tokens(backbone.config)
    require_within("max_length", max_length, (SHORTEST_PAIR, limit), folder)
    backbone.max_seq_length = max_length or min(backbone.max_seq_length or limit, limit)
    backbone.config_keys = [*backbone.config_keys, "do_lower_case"]  # as of a bi-encoder
    # Near 8, adjacent bfloat16 numbers differ by 1/32: too coarse for logits under autocast.
    model.set_keep_in_fp32_modules(
        [name for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)][-1:]
    )
    with loading(folder, "cross-encoder"):
        scores_1 = model.predict([("a word", "another")], show_progress_bar=False)
    if not np.isfinite(scores_1).all():
        raise UserError(f"{folder} scores a pair with NaN or infinity: its weights are damaged")
    without_model_card(model)
    return model


def _open_cross_encoder(network: Network) -> CrossEncoder:
    require_loadable(network)
    with loading(network.path, "cross-encoder"):
        model = CrossEncoder(
            str(network.path),
            local_files_only=True,
            model_kwargs=dict(DTYPE),
            activation_fn=torch.nn.Identity(),
        )
    if prompt := model.prompts.get(model.default_prompt_name or ""):
        raise UserError(f"{network.path} puts {prompt!r} before every pair, which is not supported")
    return model


def _new_cross_encoder(network: Network, head_seed: int) -> CrossEncoder:
    """Makes a cross-encoder from a network, with a random head."""
    require_loadable(network)
    task: Any = "sequence-classification"
    drawn = ("classifier.", "pooler.")
    with loading(network.path, "cross-encoder", drawn), new_parameters(head_seed):
        backbone = Transformer(
            str(network.path),
            model_kwargs=NO_CODE | DTYPE,
            transformer_task=task,
            **NO_OTHER_CODE,
        )
    return CrossEncoder(modules=[backbone], activation_fn=torch.nn.Identity())
