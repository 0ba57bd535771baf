"""An experiment: its settings, resolved once into plain values for the parts of a run."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from cocondenser_jax.corpus.batches import BatchSpec
from cocondenser_jax.corpus.order import steps_per_epoch
from cocondenser_jax.corpus.store import TokenStore
from cocondenser_jax.errors import UserError
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.pretrain.objectives import OBJECTIVES
from cocondenser_jax.pretrain.optimizer import AdamW
from cocondenser_jax.pretrain.step import LossSettings, StepSettings
from cocondenser_jax.representation import (
    SPELLINGS,
    Representation,
    passage_prompt,
    query_prompt,
    title_separator,
)


class VectorSettings(NamedTuple):
    """Settings of the trained vectors that override those of the starting model."""

    representation: Representation | None = None  # None: as there
    scale: float = 0.0  # of their scores in a contrastive loss; 0: as there
    sizes: tuple[int, ...] = ()  # that are trained, see `Representation`; (): as there

    def instead_of(self, own: Representation) -> Representation:
        """Returns the representation that is trained; `own` is that of what the run starts from.

        Other vectors than its own are still made of texts that are read as its are.
        """
        chosen = self.representation.reading_as(own) if self.representation else own
        return chosen._replace(scale=self.scale or chosen.scale, sizes=self.sizes or chosen.sizes)


OWN_VECTORS = VectorSettings()


class Experiment(NamedTuple):
    """Everything that a run needs."""

    warm_start: str  # a run or Hugging Face model to start from; "": a new model
    init_head: bool  # whether to initialize a head that the warm start lacks
    network: dict[str, Any]  # fields of the `ModelConfig` of a new model
    vectors: VectorSettings
    batches: BatchSpec
    step: StepSettings
    n_steps: int
    probe_every: int  # steps between two looks at the documents of `BatchSpec.held_out`; 0: none
    save_every: int  # steps
    keep: int  # latest checkpoints
    log_every: int  # steps
    tracker: str  # see `trackers.open_tracker`
    settings: dict[str, Any]  # as they were given
    title_separator: str = " "  # between a passage's title and its text


def resolve(config: ConfigDict, store: TokenStore) -> Experiment:
    """Resolves an experiment on a store, with its number of steps, or that of its epochs."""
    n_steps = config.train.steps
    if not n_steps:
        n_steps = round(config.train.epochs * steps_per_epoch(store, _batches(config)))
        n_steps = max(n_steps, config.train.least_steps, 1)
    return resolve_without_store(config, n_steps, store.vocab_size, store.pad_id)


def with_texts_as(experiment: Experiment, representation: Representation) -> Experiment:
    """Returns the experiment with texts read as the trained representation requires."""
    prompts = dict(representation.prompts)
    batches = experiment.batches._replace(
        query_prompt=query_prompt(prompts),
        passage_prompt=passage_prompt(prompts),
        query_length=representation.query_length,
        passage_length=representation.passage_length,
    )
    return experiment._replace(batches=batches, title_separator=title_separator(prompts))


def resolve_without_store(
    config: ConfigDict, n_steps: int, vocab_size: int, pad_token_id: int
) -> Experiment:
    """Returns an experiment of `n_steps` with a vocabulary."""
    train = config.train
    loss = LossSettings(
        seed=config.seed,
        objective=train.objective,
        mlm_weight=train.mlm_weight,
        mlm_reduction=train.mlm_reduction,
        chunk_size=train.chunk_size,
        dtype=train.dtype,
        kept_chunks=train.kept_chunks,
        attention=train.attention,
    )
    return Experiment(
        warm_start=config.warm_start,
        init_head=config.init_head,
        network=_network(config, vocab_size, pad_token_id),
        vectors=_vectors(config),
        batches=_batches(config),
        step=StepSettings(loss, AdamW(**config.optimizer, n_steps=n_steps), train.skip_nonfinite),
        n_steps=n_steps,
        probe_every=config.probe.every,
        save_every=config.checkpoint.every,
        keep=config.checkpoint.keep,
        log_every=config.log_every,
        tracker=config.tracker,
        settings=config.to_dict(),
    )


def _batches(config: ConfigDict) -> BatchSpec:
    objective = OBJECTIVES[config.train.objective]
    return BatchSpec(
        seed=config.seed,
        batch_size=config.data.batch_size,
        length=config.data.length,
        example=objective.example or config.data.pairs,
        masked=objective.predicts_tokens,
        mask_probability=config.data.mask_probability,
        decoder_mask_probability=config.data.decoder_mask_probability,
        held_out=config.probe.documents if config.probe.every else 0,
    )


def _vectors(config: ConfigDict) -> VectorSettings:
    return VectorSettings(
        representation=SPELLINGS.get(config.model.representation),
        scale=config.model.scale,
        sizes=tuple(config.model.sizes),
    )


def new_network(network: Mapping[str, Any]) -> ModelConfig:
    """Makes the config of a new model of `Experiment.network`.

    Raises:
      UserError: naming the settings, if values do not go together.
    """
    try:
        return ModelConfig(**network)
    except UserError as error:
        raise UserError(f"config.model: {error}") from None


def _network(config: ConfigDict, vocab_size: int, pad_token_id: int) -> dict[str, Any]:
    """Returns the shape of a new model; only some objectives have a Condenser head."""
    network = config.model.to_dict()
    objective = OBJECTIVES[config.train.objective]
    if not objective.has_head:
        network |= {"n_head_layers": 0, "skip_from": 0, "late_mlm": True}
    if objective.n_copies > 1:
        network["skip_from"] = 0
    for name in ("scale", "sizes"):
        del network[name]
    return {
        **network,
        "representation": _vectors(config).instead_of(Representation()),
        "vocab_size": vocab_size,
        "pad_token_id": pad_token_id,
    }
