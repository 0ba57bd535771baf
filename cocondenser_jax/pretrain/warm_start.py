"""The model that a run starts from: another run, a Hugging Face model, or a new one."""

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cocondenser_jax.convert.from_torch import load_folder, with_missing_head
from cocondenser_jax.convert.names import from_tensors, to_tensors
from cocondenser_jax.corpus.same_tokens import require_same_tokens, search_reader
from cocondenser_jax.corpus.store import TokenStore
from cocondenser_jax.corpus.tokenizer import load_tokenizer
from cocondenser_jax.errors import UserError, log_once
from cocondenser_jax.model.condenser import init_params
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model_folder.folder import ModelFolder
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.pretrain.checkpoint import load_run
from cocondenser_jax.pretrain.experiment import (
    OWN_VECTORS,
    Experiment,
    VectorSettings,
    new_network,
)
from cocondenser_jax.representation import AS_IN_PAPERS, Representation, prompts_before_texts

logger = logging.getLogger(__name__)

# Fields that a starting model does not keep.
_OF_THE_EXPERIMENT = ("late_mlm", "hidden_dropout_prob", "attention_probs_dropout_prob")


def first_model(experiment: Experiment, store: TokenStore) -> tuple[ModelConfig, Any]:
    """Returns the model that an experiment starts from, and its parameters; by default a new one.

    Raises:
      UserError: if the store was made with another tokenizer than the model's, or the model lacks
        a head and `init_head` is not set.
    """
    if not experiment.warm_start:
        return new_model(experiment, store)
    start = _open_start(experiment.warm_start)
    model_config, params = _load_for(experiment, start)
    _check_vocabulary(start, store, model_config.representation)
    return model_config, params


def planned_network(experiment: Experiment) -> ModelConfig:
    """Returns the network of an experiment: that of its warm start, if it is on this machine.

    Raises:
      UserError: if the warm start lacks a head and `init_head` is not set.
    """
    name = experiment.warm_start
    if name and Path(name).is_dir():
        return _load_for(experiment, _open_start(name))[0]
    network = new_network(experiment.network)
    if name:
        size = f"{network.num_hidden_layers} layers of {network.hidden_size}"
        log_once(
            logger,
            f"the warm start {name} is not a folder here: planned for {size}, as config.model says",
        )
    return network


def _open_start(name: str) -> ModelFolder | Path:
    """Opens a model to start from; returns the folder of a run as it is."""
    is_run = (Path(name) / "run.json").is_file()
    return Path(name) if is_run else open_model(name, plain=AS_IN_PAPERS)


def _load_for(experiment: Experiment, start: ModelFolder | Path) -> tuple[ModelConfig, Any]:
    seed = experiment.step.loss.seed if experiment.init_head else None
    trains_mlm = experiment.batches.masked
    return load_warm_start(
        start, experiment.network, seed, experiment.vectors, trains_mlm=trains_mlm
    )


def new_model(experiment: Experiment, store: TokenStore) -> tuple[ModelConfig, Any]:
    """Returns a new model, with the bias of the MLM projection at each token's log frequency.

    The projection is tied to the word embeddings. Until its bias has learned that most words are
    rare, the embeddings learn it instead: those of all rare words move in the same direction and
    become hard to tell apart.
    """
    model_config = new_network(experiment.network)
    params = init_params(model_config, experiment.step.loss.seed)
    counts_V = store.token_counts() + 1.0
    params["mlm"]["bias"] = np.log(counts_V / counts_V.sum()).astype(np.float32)
    return model_config, params


def load_warm_start(
    start: ModelFolder | Path,
    network: Mapping[str, Any],
    init_head_seed: int | None,
    vectors: VectorSettings = OWN_VECTORS,
    *,
    trains_mlm: bool = True,
) -> tuple[ModelConfig, Any]:
    """Reads the model that a run starts from: the folder of another run, or an opened model.

    It keeps its sizes and its Condenser head, if it has one; the experiment's `network` must then
    have the same `n_head_layers` and `skip_from`, or no head. If it has no head, `network` gives
    the shape of a new one; if its head does not record `skip_from`, `network` does. The dropout
    rates and `late_mlm` always come from `network`. It keeps its representation, except for what
    `vectors` overrides.

    A missing Condenser head or MLM projection is initialized from `init_head_seed`; None forbids
    it. See `with_missing_head` for `trains_mlm`.
    """
    head = {name: network[name] for name in ("n_head_layers", "skip_from")}
    if isinstance(start, Path):
        name = str(start)
        model_config, params, _ = load_run(start)
    else:
        name = start.name
        model_config, params = load_folder(
            start,
            **head,
            representation=vectors.representation,
            init_head_seed=init_head_seed,
            trains_mlm=trains_mlm,
        )
    if not (network["n_head_layers"] and model_config.n_head_layers):
        tensors = to_tensors(params, model_config)
        model_config = dataclasses.replace(model_config, late_mlm=True, **head)
        params = with_missing_head(
            name, tensors, model_config, init_head_seed, trains_mlm=trains_mlm
        )
    for setting, value in head.items():
        if getattr(model_config, setting) != value:
            raise UserError(
                f"{name}: its Condenser head has {setting}"
                f" {getattr(model_config, setting)}, but config.model.{setting} is {value}"
            )
    changes = {name: network[name] for name in _OF_THE_EXPERIMENT}
    changes["representation"] = vectors.instead_of(model_config.representation)
    changed = dataclasses.replace(model_config, **changes)
    if changed.representation.dense != model_config.representation.dense:
        params = from_tensors(to_tensors(params, model_config), changed)
    return changed, params


def _check_vocabulary(
    start: ModelFolder | Path, store: TokenStore, representation: Representation
) -> None:
    """Raises a UserError if the store was made with other tokens than the model's.

    Args:
      start: what the run starts from.
      store: of the run.
      representation: whose prompts texts of training have before them.
    """
    tokenizer = start / "tokenizer" if isinstance(start, Path) else start.network.path
    lowers_case = not isinstance(start, Path) and start.lowers_case
    # The model may have more tokens. The store's tokenizer is exported with the model.
    known = load_tokenizer(str(tokenizer)).backend.get_vocab().items()
    if not store.tokenizer.backend.get_vocab().items() <= known:
        raise UserError(
            f"the store {store.path} was made with another tokenizer than {tokenizer}:"
            " build the store with the model's own tokenizer"
        )
    search = search_reader(tokenizer, lowers_case=lowers_case)
    prompts = prompts_before_texts(dict(representation.prompts))
    require_same_tokens(tokenizer, store.tokenizer, search, prompts)
