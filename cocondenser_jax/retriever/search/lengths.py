"""How many tokens a model reads of a text, and whether that is what is asked of it."""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sentence_transformers.sentence_transformer.modules import Transformer
from transformers import AutoConfig

from cocondenser_jax.backbones import first_position
from cocondenser_jax.errors import UserError
from cocondenser_jax.model_folder.folder import Network
from cocondenser_jax.model_folder.library import NO_CODE, loading, require_loadable

SHORTEST_TEXT = 3  # tokens, those around a text included
SHORTEST_PAIR = 8


def limit_tokens(
    tower: Transformer, query_length: int | None, passage_length: int | None, folder: Path
) -> None:
    """Sets the longest texts of a tower, at most what its network reads; see `load_retriever`."""
    limit = max_tokens(tower.config)
    # sentence-transformers counts all rows of the table where the tokenizer has no limit, those
    # before the first position too.
    if limit < sys.maxsize:
        tower.max_seq_length = tower.max_seq_length or limit
        for name in ("max_seq_length", "query_length", "document_length"):
            said = getattr(tower, name)
            if said is None or said <= limit:
                continue
            if not _has_position_table(tower):  # the library would read them all
                raise UserError(
                    f"{folder} says of {name} {said}, but its config.json that there are {limit}"
                    " positions"
                )
            setattr(tower, name, limit)
    for name, length in (("query_length", query_length), ("passage_length", passage_length)):
        if length is not None:
            require_within(name, length, (SHORTEST_TEXT, limit), folder)
            setattr(tower, name.replace("passage", "document"), length)


def require_lengths(
    networks: Iterable[Network], lengths: Mapping[str, int | None], least: int = SHORTEST_TEXT
) -> None:
    """Raises a UserError for texts longer than a model reads, or too short, without loading it.

    Args:
      networks: of the model; or that of a cross-encoder.
      lengths: in tokens, by the name of the flag or setting that says them; None: not said.
      least: the shortest, in tokens.
    """
    for network in networks:
        require_loadable(network.path, network.config)
        with loading(network.path, "transformer"):
            config = AutoConfig.from_pretrained(network.path, **NO_CODE)
        for name, length in lengths.items():
            require_within(name, length, (least, max_tokens(config)), network.path)


def require_within(name: str, length: int | None, limits: tuple[int, int], folder: Path) -> None:
    """Raises a UserError unless a length is within limits, both included, or not said."""
    least, most = limits
    if length is not None and not least <= length <= most:
        raise UserError(f"{name}={length}: expected {least} to {most} tokens for {folder}")


def _has_position_table(tower: Transformer) -> bool:
    """Returns whether positions are rows of a table, beyond which nothing can be read."""
    network: Any = tower.auto_model
    return any(name.endswith("position_embeddings.weight") for name in network.state_dict())


def max_tokens(config: Any) -> int:
    """Returns how many tokens the network of a config can read; with relative positions, any."""
    if not hasattr(config, "max_position_embeddings"):
        return sys.maxsize
    offset = first_position(config.model_type, getattr(config, "pad_token_id", None))
    return int(config.max_position_embeddings) - offset
