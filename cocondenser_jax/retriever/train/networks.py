"""What of a bi-encoder's network is trained, and how: dropout, and adapters of low rank."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling

from cocondenser_jax.retriever.search.models import new_parameters, towers

# What families call a rate of dropout in their config.json, where they have it.
_HIDDEN = (
    "hidden_dropout_prob",
    "dropout",
    "dropout_rate",
    "embedding_dropout",
    "mlp_dropout",
    "resid_pdrop",
    "embd_pdrop",
)
_ATTENTION = ("attention_probs_dropout_prob", "attention_dropout", "attn_pdrop")
# As is usual for adapters: twice the rank (Hu et al., arXiv 2106.09685, keep it constant).
_ALPHA_PER_RANK = 2


def set_dropout(model: SentenceTransformer, hidden: float, attention: float) -> None:
    """Gives a model's networks rates of dropout, where their family has such places.

    Args:
      model: is changed.
      hidden: rate for hidden states.
      attention: rate for attention.
    """
    rates = dict.fromkeys(_HIDDEN, hidden) | dict.fromkeys(_ATTENTION, attention)
    for tower in towers(model).values():
        config = copy.deepcopy(tower.config)
        for name, rate in rates.items():
            if hasattr(config, name):
                setattr(config, name, rate)
        network: Any = tower.model
        # Modules keep the rate that they were made with.
        other = type(network)(config, **{**tower.model_kwargs}).to(network.device)
        other.load_state_dict(network.state_dict())
        tower.model = other


def pool_by_rows(model: SentenceTransformer) -> None:
    """Lets texts of different prompts share a forward pass where prompts are not pooled.

    sentence-transformers (6.2.0) leaves out as many tokens of all texts as the first one's
    `prompt_length`. Each row's own number decides afterwards.

    Args:
      model: is changed.
    """
    for layer in model:
        if isinstance(layer, Pooling) and not layer.include_prompt:
            layer.forward = functools.partial(_pool_by_rows, layer.forward)


def _pool_by_rows(
    pool: Callable[[dict[str, Any]], dict[str, Any]], features: dict[str, Any]
) -> dict[str, Any]:
    groups = [
        (features["prompt_length"] == length).nonzero()[:, 0]
        for length in features["prompt_length"].unique()
    ]
    vectors = []
    for rows_B in groups:
        names = ("token_embeddings", "attention_mask", "prompt_length")
        vectors.append(pool({name: features[name][rows_B] for name in names})["sentence_embedding"])
    in_order_S = torch.cat(groups).argsort()
    return features | {"sentence_embedding": torch.cat(vectors)[in_order_S]}


def add_adapters(model: SentenceTransformer, rank: int, seed: int) -> list[Any]:
    """Adds LoRA (Hu et al., arXiv 2106.09685) to all linear maps of a model's networks.

    Nothing but the adapters is trained from then on.

    Args:
      model: is changed.
      rank: of the adapters.
      seed: of their first parameters.

    Returns:
      What `merge_adapters` takes.
    """
    from peft import LoraConfig, get_peft_model  # of the extra [lora]

    config = LoraConfig(
        r=rank,
        lora_alpha=_ALPHA_PER_RANK * rank,
        lora_dropout=0.0,
        target_modules="all-linear",
    )
    model.requires_grad_(False)
    with new_parameters(seed):
        return [get_peft_model(tower.model, config) for tower in towers(model).values()]


def merge_adapters(adapted: list[Any]) -> None:
    """Adds adapters to the weights that they adapt: the networks are again what they were."""
    for network in adapted:
        network.merge_and_unload()
