"""Operations per span and peak rates of devices, from which the MFU follows."""

from collections.abc import Sequence
from typing import Any

from cocondenser_jax.corpus.batches import BatchSpec
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model.flops import encode_flops, forward_flops, prediction_flops
from cocondenser_jax.pretrain.limits import CARDS, TPU_KINDS, TPUS
from cocondenser_jax.pretrain.objectives import OBJECTIVES
from cocondenser_jax.pretrain.step import LossSettings


def peak_flops(devices: Sequence[Any], dtype: str) -> float | None:
    """Returns the combined published peak of devices, in floating-point operations per second.

    None if it is unknown, or if the computation is not in bfloat16.
    """
    if dtype != "bfloat16":
        return None
    kind = devices[0].device_kind
    generation = kind.removeprefix("TPU ")
    limits = TPUS.get(TPU_KINDS.get(generation, generation))
    limits = limits or {card.kind: card.limits for card in CARDS.values()}.get(kind)
    return None if limits is None else len(devices) * limits.compute * 1e12


def model_flops(model_config: ModelConfig, settings: LossSettings, spec: BatchSpec) -> int:
    """Returns the floating-point operations of one span: one forward pass and its gradient."""
    objective = OBJECTIVES[settings.objective]
    if not objective.predicts_tokens:
        return 3 * encode_flops(model_config, spec.length)
    # Of two copies, the backbone reads the first and the head the second.
    flops = forward_flops(model_config, spec.length, spec.n_slots) // objective.n_copies
    return 3 * (flops + objective.predicts_words * prediction_flops(model_config))
