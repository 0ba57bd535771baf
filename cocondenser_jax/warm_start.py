"""Pre-training from what an experiment names: another run, a Hugging Face model, or nothing."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from cocondenser_jax.convert.from_torch import load_folder, with_missing_head
from cocondenser_jax.convert.names import to_tensors
from cocondenser_jax.corpus.store import TokenStore
from cocondenser_jax.corpus.tokenizer import load_tokenizer
from cocondenser_jax.errors import UserError
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.pretrain.checkpoint import load_run
from cocondenser_jax.pretrain.experiment import Experiment
from cocondenser_jax.pretrain.loop import new_model, train


def pretrain(config: ConfigDict, workdir: Path, profile_dir: Path | None = None) -> None:
    """Calls `pretrain.loop.train` with `config.warm_start`; see there, and `load_warm_start`."""
    name = config.warm_start
    seed = config.seed if config.init_head else None

    def start(experiment: Experiment, store: TokenStore) -> tuple[ModelConfig, Any]:
        if not name:
            return new_model(experiment, store)
        loaded = load_warm_start(name, experiment.network, seed, experiment.representation)
        _check_vocabulary(name, store)
        return loaded

    train(config, workdir, start, profile_dir)


def load_warm_start(
    name_or_folder: str,
    network: Mapping[str, Any],
    init_head_seed: int | None,
    representation: str = "own",
) -> tuple[ModelConfig, Any]:
    """Reads what a run starts from: one of our run folders, or a Hugging Face model.

    Its sizes are its own, and so is its Condenser head where it has one: `network`, that of the
    experiment, must then have the same `n_head_layers` and `skip_from`, or no head. Where there is
    no head, `network` shapes the one that is drawn; where a head does not say what it reads,
    `skip_from` is that of `network`. The dropout rates and `late_mlm` are always those of
    `network`. Its vectors are its own, unless `representation` is another than "own".

    A Condenser head or an MLM projection that is missing is drawn from `init_head_seed`; None
    forbids it.
    """
    asked = {name: network[name] for name in ("n_head_layers", "skip_from")}
    if _is_run(name_or_folder):
        model_config, params, _ = load_run(Path(name_or_folder))
    else:
        model_config, params = load_folder(
            name_or_folder, **asked, representation=representation, init_head_seed=init_head_seed
        )
    if not (network["n_head_layers"] and model_config.n_head_layers):
        tensors = to_tensors(params, model_config)
        model_config = dataclasses.replace(model_config, late_mlm=True, **asked)
        params = with_missing_head(name_or_folder, tensors, model_config, init_head_seed)
    for setting, wanted in asked.items():
        if getattr(model_config, setting) != wanted:
            raise UserError(
                f"{name_or_folder}: its Condenser head has {setting}"
                f" {getattr(model_config, setting)}, but config.model.{setting} is {wanted}"
            )
    kept = ("late_mlm", "hidden_dropout_prob", "attention_probs_dropout_prob")
    changes = {name: network[name] for name in kept}
    if representation != "own":
        changes["representation"] = representation
    return dataclasses.replace(model_config, **changes), params


def _check_vocabulary(name_or_folder: str, store: TokenStore) -> None:
    is_run = _is_run(name_or_folder)
    tokenizer = str(Path(name_or_folder) / "tokenizer") if is_run else name_or_folder
    of_store = load_tokenizer(str(store.tokenizer_folder))
    if load_tokenizer(tokenizer).backend.get_vocab() != of_store.backend.get_vocab():
        raise UserError(
            f"the store {store.path} was made with another tokenizer than {tokenizer}:"
            " build the store with the model's own tokenizer"
        )


def _is_run(name_or_folder: str) -> bool:
    return (Path(name_or_folder) / "run.json").is_file()
