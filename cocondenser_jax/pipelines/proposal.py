"""Checks that JAX can train a model as search uses it, and proposes settings.

Separate from `adapt.py`, which finds missing inputs before JAX and PyTorch are loaded.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict

from cocondenser_jax.configs.adapt import fit
from cocondenser_jax.convert.from_torch import load_vectors, read_shape
from cocondenser_jax.corpus.batches import require_room
from cocondenser_jax.corpus.same_tokens import require_same_tokens
from cocondenser_jax.corpus.spans import STARTS_SENTENCE
from cocondenser_jax.corpus.store import TokenStore, open_store
from cocondenser_jax.corpus.tokenizer import SpanTokenizer, load_tokenizer
from cocondenser_jax.declare import AUTO
from cocondenser_jax.errors import UnsupportedError, UserError
from cocondenser_jax.flax_encoder import require_same_vectors
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model_folder.folder import ModelFolder
from cocondenser_jax.pretrain.devices import count_devices
from cocondenser_jax.pretrain.experiment import resolve_without_store, with_texts_as
from cocondenser_jax.pretrain.step import check_batch
from cocondenser_jax.representation import Representation, prompts_before_texts
from cocondenser_jax.retriever.search.models import load, towers
from cocondenser_jax.settings import override

# The advice for a model that the Flax network cannot compute.
_INSTEAD = "sentence-transformers' own trainer, SentenceTransformerTrainer, trains such models"
_MANY_SPANS = 1 << 40  # for a corpus of unknown size
_SPANS_LOOKED_AT = 1_000
_SET_HERE = ("config.data.store", "config.warm_start")


def require_trainable(start: ModelFolder) -> tuple[ModelConfig, SpanTokenizer]:
    """Returns the shape and tokenizer of a model that JAX computes as search does.

    Raises:
      UserError: if tokens or vectors of a few texts, or the maximum number of tokens, differ
        between training and search.
    """
    try:
        shape = read_shape(start)
    except UnsupportedError as error:
        raise UserError(f"{start.path}: {error.reason} ({_INSTEAD})") from error
    served = load(start)
    folder = start.network.path
    tokenizer = load_tokenizer(str(folder))
    shape.require_tokenizer(folder, tokenizer.vocab_size, tokenizer.pad_id)
    (tower,) = towers(served).values()
    limit = tower.max_seq_length
    if limit is not None and shape.longest_text > limit:
        raise UserError(
            f"{start.path} reads {limit} tokens of a text, but would be trained on"
            f" {shape.longest_text}: expected the same in all of its files"
        )

    def search(text: str) -> list[int]:
        ids: list[int] = tower.preprocess([text])["input_ids"][0].tolist()
        return ids

    prompts = prompts_before_texts(dict(shape.representation.prompts))
    require_same_tokens(start.path, tokenizer, search, prompts, shape.longest_text)
    require_same_vectors(
        start.path, served, tower.tokenizer, *load_vectors(start), program="in JAX"
    )
    return shape, tokenizer


def settings_for(
    proposed: ConfigDict, overrides: Sequence[str], vectors: Representation, longest: int
) -> ConfigDict:
    """Adjusts proposed settings to a model and applies the user's overrides, which win.

    Args:
      proposed: settings of `propose` or `propose_for`.
      overrides: the user's changes.
      vectors: the model's representation; its scale multiplies scores in training.
      longest: maximum number of tokens that the model reads.
    """
    for word in overrides:
        name = word.removeprefix("--").partition("=")[0]
        if name in _SET_HERE:
            raise UserError(f"{name} cannot be given: `adapt` sets it")
    with proposed.unlocked():
        proposed.data.length = min(proposed.data.length, longest)
        proposed.model.scale = vectors.scale
    config = override(proposed, overrides)
    if config.train.chunk_size == AUTO:
        return config
    n_rows = resolve_without_store(config, 1, 1, 0).batches.n_rows // count_devices()
    with config.unlocked():
        config.train.chunk_size = math.gcd(n_rows, config.train.chunk_size)
    return override(config, overrides)


def settings_to_train(
    store: Path, start: Path, overrides: Sequence[str], vectors: Representation, longest: int
) -> ConfigDict:
    """Returns the settings for training a model on a store; see `settings_for`."""
    config = settings_for(propose_for(open_store(store)), overrides, vectors, longest)
    with config.unlocked():
        config.data.store, config.warm_start = str(store), str(start)
    return config


def require_fitting(config: ConfigDict, shape: ModelConfig, tokenizer: SpanTokenizer) -> None:
    """Raises a UserError for settings that contradict each other or the model; needs no store."""
    experiment = with_texts_as(resolve_without_store(config, 1, 1, 0), shape.representation)
    loss, n_devices = experiment.step.loss, count_devices()
    check_batch(
        experiment.batches, loss.chunk_size, shape.longest_text, n_devices, loss.kept_chunks
    )
    require_room(experiment.batches, tokenizer)


def propose(n_spans: int = _MANY_SPANS) -> ConfigDict:
    """Returns settings for a store of `n_spans` spans, on this machine's devices."""
    return fit(n_spans, count_devices(), on_cpu=jax.default_backend() == "cpu")


def propose_for(store: TokenStore) -> ConfigDict:
    """Returns settings for a store; pairs are crops if most spans are single sentences."""
    proposed = propose(store.n_spans)
    spans_N = np.linspace(0, store.n_spans - 1, min(store.n_spans, _SPANS_LOOKED_AT)).astype(int)
    _, starts_NxL, _ = store.read_spans(spans_N, store.content_length)
    has_several_N = (starts_NxL == STARTS_SENTENCE).sum(axis=1) >= 2
    with proposed.unlocked():
        proposed.data.pairs = "sentence" if has_several_N.mean() >= 0.5 else "crops"
    return proposed
