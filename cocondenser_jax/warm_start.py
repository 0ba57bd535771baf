"""What a pre-training run starts from: another run, or a Hugging Face model."""

import dataclasses
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from cocondenser_jax.convert.from_torch import load_folder
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.corpus.tokenizer import load_tokenizer
from cocondenser_jax.errors import UserError
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.pretrain.checkpoint import load_run


def load_warm_start(config: ConfigDict) -> tuple[ModelConfig, Any] | None:
    """Reads what a run begins with: one of our run folders, or a Hugging Face model.

    The head's shape and the dropout rates are the experiment's; all else is the model's own.

    Args:
      config: the experiment, see `configs/default.py`.

    Returns:
      The model's shape and parameters; None for an experiment that starts from scratch.

    Raises:
      UserError: if the model cannot be read, or its vocabulary is not that of the store.
    """
    if not config.warm_start:
        return None
    if (Path(config.warm_start) / "run.json").is_file():
        model_config, params, _ = load_run(Path(config.warm_start))
        tokenizer = str(Path(config.warm_start) / "tokenizer")
    else:
        model_config, params = load_folder(
            config.warm_start,
            n_head_layers=config.model.n_head_layers,
            skip_from=config.model.skip_from,
            init_head_seed=config.seed if config.init_head else None,
        )
        tokenizer = config.warm_start
    _require_same_vocabulary(tokenizer, config.data.store)
    return dataclasses.replace(
        model_config,
        late_mlm=config.model.late_mlm,
        hidden_dropout_prob=config.model.hidden_dropout_prob,
        attention_probs_dropout_prob=config.model.attention_probs_dropout_prob,
    ), params


def _require_same_vocabulary(name_or_folder: str, store: str) -> None:
    """Raises a UserError where the store's token ids mean other words than the model's."""
    of_store = load_tokenizer(str(open_store(Path(store)).tokenizer_folder))
    if load_tokenizer(name_or_folder).backend.get_vocab() != of_store.backend.get_vocab():
        raise UserError(
            f"the store {store} was made with another tokenizer than {name_or_folder}:"
            " build the store with the model's own tokenizer"
        )
