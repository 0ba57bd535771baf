"""What `adapt` trains by: the Flax network in JAX, or the published one in PyTorch.

All make the same batches of the same store, and minimize the same loss by the same optimizer and
schedule.
"""

import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import jax
import numpy as np
import torch
from ml_collections import ConfigDict
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig

from cocondenser_jax.backbones import DECODERS
from cocondenser_jax.convert.from_torch import load_encoder, read_shape
from cocondenser_jax.corpus.same_tokens import require_same_tokens
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.corpus.tokenizer import SpanTokenizer, load_tokenizer
from cocondenser_jax.errors import UnsupportedError, UserError, whole_message
from cocondenser_jax.files.whole import read_object
from cocondenser_jax.flax_encoder import compare_with_flax
from cocondenser_jax.model_folder.folder import read_representation
from cocondenser_jax.pretrain.devices import count_devices
from cocondenser_jax.pretrain.experiment import Experiment, reading_as, resolve
from cocondenser_jax.pretrain.export import pretrain_model
from cocondenser_jax.pretrain.probe import measure_vectors
from cocondenser_jax.pretrain.warm_start import load_warm_start
from cocondenser_jax.representation import Representation, passage_prompt, query_prompt
from cocondenser_jax.retriever.search.lengths import max_tokens
from cocondenser_jax.retriever.search.models import towers
from cocondenser_jax.retriever.search.same_vectors import require_same_vectors
from cocondenser_jax.retriever.train.pair_losses import PAIR_LOSSES, PairLossSettings
from cocondenser_jax.retriever.train.pairs import Adam, Network, PairSettings, Probe, train_pairs
from cocondenser_jax.retriever.train.trainer import TrainerSettings

logger = logging.getLogger(__name__)

Name = Literal["jax", "torch", "lora"]
LORA_RANK = 16
# Adapters of all linear maps learn best at about ten times the rate of all weights, whatever their
# rank, if they are multiplied by 32 / rank (Schulman et al., LoRA Without Regret, 2025).
LORA_RATE = 10.0


class Reading(NamedTuple):
    """What a backend finds in the folder of a model."""

    longest_text: int  # tokens that the model reads of a text, specials included
    representation: Representation  # of the vectors that are trained
    tokenizer: SpanTokenizer


class Backend(NamedTuple):
    """What trains a model, and what `adapt` asks of it."""

    name: Name
    n_devices: Callable[[], int]  # that train
    on_cpu: Callable[[], bool]  # whether these are CPUs
    rate: float  # factor of the learning rate that is proposed
    # Reads the folder of a model, with its tokenizer; raises a UserError where the backend cannot
    # train it.
    read: Callable[[Path, SpanTokenizer], Reading]
    # Raises a UserError where an experiment does not fit the folder of a model, or the backend.
    check: Callable[[Experiment, Path], None]
    # Raises a UserError where it makes other vectors of the folder than the model that is given.
    compare: Callable[[SentenceTransformer, Path], None]
    # Trains with settings in a workdir, and writes the model to a folder; resumes.
    train: Callable[[ConfigDict, Path, Path], object]


def open_model(folder: Path, wanted: Name | None = None) -> tuple[Backend, Reading]:
    """Returns what trains the model of a folder, and what it reads there.

    Args:
      folder: of the model.
      wanted: a name of BACKENDS; None: JAX where the Flax network computes the model, else adapters
        for a decoder, and PyTorch for any other. It is logged, with the reason.
    """
    is_decoder = read_object(folder / "config.json").get("model_type") in DECODERS
    tokenizer = load_tokenizer(str(folder))
    if wanted is not None:
        return BACKENDS[wanted], BACKENDS[wanted].read(folder, tokenizer)
    try:
        reading = _JAX.read(folder, tokenizer)
    except UnsupportedError as error:
        backend = _LORA if is_decoder else _TORCH
        logger.info("adapt: trained by --backend=%s (for JAX: %s)", backend.name, error.reason)
        return backend, backend.read(folder, tokenizer)
    logger.info("adapt: trained by --backend=jax")
    return _JAX, reading


def require_same_reading(
    backend: Backend, reading: Reading, folder: Path, served: SentenceTransformer
) -> None:
    """Raises a UserError where a model is trained otherwise than it is searched with.

    The tokens and vectors of a few texts are compared, and how many tokens are read of a text.

    Args:
      backend: that trains.
      reading: of `open_model`.
      folder: of the model.
      served: the model as it encodes and searches.
    """
    (tower,) = towers(served).values()
    limit = tower.max_seq_length
    if limit is not None and reading.longest_text > limit:
        raise UserError(
            f"{folder} reads {limit} tokens of a text, but would be trained on"
            f" {reading.longest_text}: expected the same in all of its files"
        )

    def search(text: str) -> list[int]:
        ids: list[int] = tower.preprocess([text])["input_ids"][0].tolist()
        return ids

    prompts = dict(reading.representation.prompts)
    every = sorted({"", query_prompt(prompts), passage_prompt(prompts)})
    require_same_tokens(folder, reading.tokenizer, search, every, reading.longest_text)
    backend.compare(served, folder)


def _read_in_jax(start: Path, tokenizer: SpanTokenizer) -> Reading:
    network = read_shape(start, "or --backend=torch")
    if not tokenizer.kind:
        raise UnsupportedError(start, "has a tokenizer without a mask", "or --backend=torch")
    network.require_tokenizer(start, tokenizer.vocab_size, tokenizer.pad_id)
    return Reading(network.longest_text, network.representation, tokenizer)


def _compare_in_jax(served: SentenceTransformer, start: Path) -> None:
    (tower,) = towers(served).values()
    compare_with_flax(start, served, tower.tokenizer, *load_encoder(start))


def _compare_in_torch(served: SentenceTransformer, start: Path) -> None:
    """The library computes both, but training pads texts at their end."""

    def encode(ids_BxL: np.ndarray, mask_BxL: np.ndarray) -> np.ndarray:
        named = {"input_ids": ids_BxL, "attention_mask": mask_BxL}
        features = {k: torch.tensor(v, device=served.device).long() for k, v in named.items()}
        with torch.inference_mode():
            vectors_BxD: np.ndarray = served(features)["sentence_embedding"].float().cpu().numpy()
        return vectors_BxD

    (tower,) = towers(served).values()
    require_same_vectors(start, served, tower.tokenizer, encode, "in training")


def _check_in_jax(experiment: Experiment, start: Path) -> None:
    if not experiment.init_head:  # else what the model lacks is drawn
        load_warm_start(str(start), experiment.network, None, experiment.vectors)


def _read_in_torch(start: Path, tokenizer: SpanTokenizer) -> Reading:
    try:
        config = AutoConfig.from_pretrained(start, trust_remote_code=False)
    except Exception as error:  # of each kind of damage another
        raise UserError(f"{start} cannot be loaded: {whole_message(error)}") from error
    representation = read_representation(start)
    longest = max_tokens(config)
    longest = min(representation.max_length or longest, longest)
    return Reading(longest, representation, tokenizer)


def _check_in_torch(experiment: Experiment, start: Path) -> None:
    objective = experiment.step.loss.objective
    hint = "with this backend, expected"
    if objective not in PAIR_LOSSES:
        raise UserError(
            f"config.train.objective is {objective!r}: {hint} {' or '.join(PAIR_LOSSES)}"
        )
    if experiment.vectors.representation is not None:
        raise UserError(f"config.model.representation is given: {hint} the model's own")
    if experiment.step.skip_nonfinite:
        raise UserError(f"config.train.skip_nonfinite is above 0: {hint} 0")
    if experiment.probe.data:
        raise UserError(f"config.probe.data is {experiment.probe.data!r}: {hint} none")


def _check_lora(experiment: Experiment, start: Path) -> None:
    import peft  # noqa: F401  # else it would be missed only after the store was built

    _check_in_torch(experiment, start)


def _train_in_torch(lora_rank: int, config: ConfigDict, workdir: Path, out: Path) -> None:
    store = open_store(Path(config.data.store))
    experiment = resolve(config, store)
    own = read_representation(Path(experiment.warm_start))
    representation = experiment.vectors.instead_of(own)
    experiment = reading_as(experiment, representation)
    network = Network(
        folder=Path(experiment.warm_start),
        representation=representation,
        hidden_dropout=experiment.network["hidden_dropout_prob"],
        attention_dropout=experiment.network["attention_probs_dropout_prob"],
        lora_rank=lora_rank,
    )
    settings = _pair_settings(experiment, network, workdir)
    train_pairs(settings, store).rename(out)


def _pair_settings(experiment: Experiment, network: Network, workdir: Path) -> PairSettings:
    """Returns what an experiment means to a training in PyTorch."""
    loss = experiment.step.loss
    optimizer = experiment.step.optimizer
    spec = experiment.batches
    return PairSettings(
        network=network,
        batches=spec,
        loss=PairLossSettings(loss.objective, loss.chunk_size),
        adam=Adam(optimizer.b1, optimizer.b2, optimizer.eps, optimizer.clip_norm),
        trainer=TrainerSettings(
            workdir=workdir,
            seed=loss.seed,
            log_every=experiment.log_every,
            tracker=experiment.tracker,
            batch_size=spec.batch_size,
            loader_workers=0,
            epochs=1,
            max_steps=experiment.n_steps,
            precision=loss.dtype,
            learning_rate=optimizer.learning_rate,
            warmup_ratio=optimizer.warmup_ratio,
            weight_decay=optimizer.weight_decay,
            checkpoint_every=experiment.save_every,
            record={"config": experiment.settings, "lora_rank": network.lora_rank},
        ),
        probe=Probe(experiment.probe.every, functools.partial(measure_vectors, is_pair=True)),
        keep=experiment.keep,
    )


_JAX = Backend(
    name="jax",
    n_devices=count_devices,
    on_cpu=lambda: jax.default_backend() == "cpu",
    rate=1.0,
    read=_read_in_jax,
    check=_check_in_jax,
    compare=_compare_in_jax,
    train=pretrain_model,
)
_TORCH = Backend(
    name="torch",
    n_devices=lambda: 1,
    on_cpu=lambda: not torch.cuda.is_available(),
    rate=1.0,
    read=_read_in_torch,
    check=_check_in_torch,
    compare=_compare_in_torch,
    train=functools.partial(_train_in_torch, 0),
)
_LORA = _TORCH._replace(
    name="lora",
    rate=LORA_RATE,
    check=_check_lora,
    train=functools.partial(_train_in_torch, LORA_RANK),
)
BACKENDS: dict[Name, Backend] = {each.name: each for each in (_JAX, _TORCH, _LORA)}
