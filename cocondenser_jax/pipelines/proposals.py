"""The settings of `adapt`: what it proposes for a corpus and a machine, and what was given."""

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from cocondenser_jax.configs.adapt import MOST_EPOCHS, get_config
from cocondenser_jax.corpus.batches import batch_examples, held_out_documents, require_room
from cocondenser_jax.corpus.spans import STARTS_SENTENCE
from cocondenser_jax.corpus.store import TokenStore
from cocondenser_jax.errors import UserError
from cocondenser_jax.model_folder.folder import read_trained_sizes
from cocondenser_jax.pipelines.backends import Backend, Reading
from cocondenser_jax.pretrain.experiment import (
    Experiment,
    reading_as,
    resolve,
    resolve_without_store,
)
from cocondenser_jax.pretrain.step import check_batch
from cocondenser_jax.representation import Representation, is_falling
from cocondenser_jax.retriever.data.folder import read_split
from cocondenser_jax.settings import override

logger = logging.getLogger(__name__)

_SPANS_LOOKED_AT = 1_000
_SCALE = "--config.model.scale="
_SIZES = "--config.model.sizes="
_SET_BY_ADAPT = ("config.data.store", "config.warm_start")


def propose_pretraining(
    n_spans: int, pairs: str = "sentence", *, n_devices: int, on_cpu: bool, rate: float = 1.0
) -> ConfigDict:
    """Returns the settings of pre-training but for store and warm start.

    Args:
      n_spans: of the corpus.
      pairs: what is a pair, see `propose_pairs`.
      n_devices: that train.
      on_cpu: whether these are CPUs.
      rate: factor of the learning rate.
    """
    config = get_config().unlock()
    config.optimizer.learning_rate *= rate
    n = config.data.batch_size
    n_examples = n * config.train.steps
    if not on_cpu:
        config.train.dtype = "bfloat16"
        config.train.chunk_size = 64
        if n_spans >= 100 * 256 * n_devices:
            n = 256 * n_devices
            n_examples = 100 * n
    n = max(min(n, n_spans * 9 // 10) // n_devices, 1) * n_devices
    config.data.batch_size = n
    config.data.pairs = pairs
    config.train.steps = max(min(n_examples, MOST_EPOCHS * n_spans) // n, 1)
    return config.lock()


def propose_pairs(store: TokenStore) -> str:
    """Returns "sentence" where half of the spans have two sentences or more, else "crops"."""
    spans_N = np.linspace(0, store.n_spans - 1, min(store.n_spans, _SPANS_LOOKED_AT)).astype(int)
    _, starts_NxL, _ = store.read_spans(spans_N, store.max_tokens - 2)
    has_several_N = (starts_NxL == STARTS_SENTENCE).sum(axis=1) >= 2
    return "sentence" if has_several_N.mean() >= 0.5 else "crops"


def with_overrides(proposed: ConfigDict, overrides: Sequence[str], n_devices: int) -> ConfigDict:
    """Overrides settings; a chunk size that is not given is made to fit the batch."""
    config = override(proposed, overrides)
    n_rows = resolve_without_store(config, 1, 1, 0).batches.n_rows // n_devices
    with config.unlocked():
        config.train.chunk_size = math.gcd(n_rows, proposed.train.chunk_size)
    return override(config, overrides)


def check_given(
    overrides: Sequence[str], start: Path, backend: Backend, network: Reading
) -> ConfigDict:
    """Checks the settings that were given, as far as that needs no store.

    Args:
      overrides: of the proposed settings.
      start: the folder of the model.
      backend: that trains it.
      network: what the backend read there.

    Returns:
      The settings. Those that depend on the corpus are still to be proposed.

    Raises:
      UserError: where settings do not fit each other, the model or the devices.
    """
    for word in overrides:
        name = word.removeprefix("--").partition("=")[0]
        if name in _SET_BY_ADAPT:
            raise UserError(f"{name} cannot be given: `adapt` sets it")
    n_devices = backend.n_devices()
    proposed = _for_texts_of(network, get_config())
    # The corpus decides on a batch that is not given. Here it is one that every chunk size fits.
    chunk_size = override(proposed, overrides).train.chunk_size
    proposed.data.batch_size = n_devices * max(chunk_size, 1)
    config = with_overrides(proposed, overrides, n_devices)
    if not config.probe.every or config.probe.documents < 2:
        raise UserError(
            f"config.probe.every is {config.probe.every} and config.probe.documents is"
            f" {config.probe.documents}; expected 1 or more and 2 or more: the documents that the"
            " probe holds out decide how much of the change is kept"
        )
    if config.probe.data:
        read_split(Path(config.probe.data), config.probe.split)
    experiment = resolve_without_store(config, 1, 1, 0)
    backend.check(experiment, start)
    _check_batch(experiment, network.longest_text, n_devices)
    spec = reading_as(experiment, network.representation).batches
    require_room(spec, network.tokenizer)
    return config


def propose_scale(overrides: Sequence[str], published: Representation) -> list[str]:
    """Returns the overrides, with the scale that is known of the model unless one is given."""
    if not published.scale or any(word.startswith(_SCALE) for word in overrides):
        return [*overrides]
    logger.info(
        "adapt: scores are multiplied by %g in the loss, as is known of the model (%s...)",
        published.scale,
        _SCALE,
    )
    return [f"{_SCALE}{published.scale}", *overrides]


def propose_sizes(
    config: ConfigDict, overrides: Sequence[str], start: Path, vector_size: int
) -> list[str]:
    """Returns the overrides, with the sizes that the model's folder names unless some are given.

    Args:
      config: what `check_given` returned for the overrides.
      overrides: of the proposed settings.
      start: the folder of the model.
      vector_size: how many numbers its vectors have.

    Raises:
      UserError: for sizes that do not begin with that of the model's vectors.
    """
    sizes = config.model.sizes
    if sizes and not (sizes[0] == vector_size and is_falling(sizes)):
        raise UserError(
            f"config.model.sizes is {[*sizes]}; expected {vector_size}, the size of the vectors of"
            f" {start}, and after it smaller ones, the largest first"
        )
    smaller = [size for size in read_trained_sizes(start) if 0 < size < vector_size]
    if not smaller or any(word.startswith(_SIZES) for word in overrides):
        return [*overrides]
    named = ",".join(map(str, [vector_size, *smaller]))
    logger.info("adapt: trained and tested at the sizes that its folder names: %s numbers", named)
    return [f"{_SIZES}[{named}]", *overrides]


class Training(NamedTuple):
    """The training of a model on a store."""

    store: TokenStore
    config: ConfigDict
    experiment: Experiment
    documents_H: np.ndarray  # the numbers of those that are held out


def propose_training(
    store: TokenStore, start: Path, overrides: Sequence[str], backend: Backend, network: Reading
) -> Training:
    """Returns the training of a model on a store, with the proposed settings and those given.

    Raises:
      UserError: where settings do not fit each other or the store.
    """
    n_devices = backend.n_devices()
    proposed = propose_pretraining(
        store.n_spans,
        propose_pairs(store),
        n_devices=n_devices,
        on_cpu=backend.on_cpu(),
        rate=backend.rate,
    )
    proposed = _for_texts_of(network, proposed)
    config = with_overrides(proposed, overrides, n_devices).unlock()
    config.warm_start = str(start)
    config.data.store = str(store.path)
    experiment = resolve(config, store)
    spec = experiment.batches
    documents_H = held_out_documents(store, spec.held_out, spec.kind.is_held_out)
    if len(documents_H) < 2:
        raise UserError(
            f"{store.manifests[0]['source']} has {store.n_documents} documents: expected 20 or"
            " more, of two spans with --config.data.pairs=spans"
        )
    _check_batch(experiment, network.longest_text, n_devices)
    batch_examples(store, spec, step=0)  # raises a UserError for a batch larger than the corpus
    return Training(
        store=store,
        config=config.lock(),
        experiment=experiment,
        documents_H=documents_H,
    )


def _for_texts_of(network: Reading, proposed: ConfigDict) -> ConfigDict:
    """Returns proposed settings with rows no longer than the texts that a network reads."""
    config = proposed.copy_and_resolve_references().unlock()
    config.data.length = min(config.data.length, network.longest_text)
    return config


def _check_batch(experiment: Experiment, max_length: int, n_devices: int) -> None:
    chunk_size = experiment.step.loss.chunk_size
    check_batch(experiment.batches, chunk_size, max_length, n_devices)
