"""Contrastive fine-tuning of a bi-encoder, on sentence-transformers' trainer."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_collections
import torch
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase, TrainerCallback

from cocondenser_jax import files
from cocondenser_jax.errors import UserError
from cocondenser_jax.finetune import trainer
from cocondenser_jax.finetune.losses import LOSSES, InBatchLoss
from cocondenser_jax.finetune.samplers import HardPlans, PlannedBatches
from cocondenser_jax.finetune.schedule import random_plan, sequential_plan
from cocondenser_jax.finetune.training_data import SOFT_LOSSES, Training, read_training
from cocondenser_jax.retrieval.models import load_retriever

_BATCHES = ("random", "sequential", "hard")
# Texts whose tokens are remembered: about 150 MB at 128 tokens.
_REMEMBERED = 100_000


def finetune(config: ml_collections.ConfigDict, workdir: Path) -> dict[str, Any]:
    """Fine-tunes a bi-encoder on (query, relevant passage) pairs; resumes an interrupted run.

    A step scores B queries against all their B·G passages, s = scale · ⟨q, d⟩: each query has its
    relevant passage, sampled negatives, and the passages of the other queries. `losses` says what
    is made of the scores, `batches` which pairs meet in a step.

    Args:
      config: see configs/finetune.py.
      workdir: gets `retriever/` (a sentence-transformers folder, whole or absent),
        `metrics.jsonl`, TensorBoard events, with `batches="hard"` the plans, and checkpoints while
        the run is not at its end.

    Returns:
      retriever (path), steps, loss (mean of the last logged steps), seconds, and pairs.

    Raises:
      UserError: for data, a model or a setting that cannot be used, or a workdir that holds
        something else.
    """
    _require_settings(config)
    files.require_absent(workdir / "retriever")
    training = read_training(config)
    model = load_retriever(
        Path(config.model),
        config.query_length,
        config.passage_length,
        config.pooling or None,
        two_towers=config.two_towers,
    )
    trainer.start_or_resume(workdir, config)
    columns = _columns(config)
    batches, planner = _plan_batches(config, workdir, training, model)
    hf_trainer = _Trainer(
        model,
        SentenceTransformerTrainingArguments(
            **trainer.arguments(config, workdir), router_mapping=columns
        ),
        training.rows,
        loss=InBatchLoss(model, config.loss, training.known, config.scale, config.chunk_size),
        data_collator=SentenceTransformerDataCollator(
            remembering_tokenizer(model.tokenizer),
            router_mapping=columns,
            prompts={column: model.prompts.get(task) or "" for column, task in columns.items()},
            max_length={"query": config.query_length, "document": config.passage_length},
        ),
        callbacks=[
            trainer.EachEpoch(training.draw),
            trainer.EachEpoch(batches.begin_epoch),
            *planner,
        ],
    )
    hf_trainer.batches = batches
    result = trainer.run(hf_trainer, workdir, "retriever")
    return result | {"pairs": len(training.rows)}


class _Trainer(SentenceTransformerTrainer):
    """The library's, with batches of ours."""

    batches: PlannedBatches

    def get_batch_sampler(self, *args: Any, **kwargs: Any) -> PlannedBatches:
        return self.batches


def _plan_batches(
    config: ml_collections.ConfigDict,
    workdir: Path,
    training: Training,
    model: SentenceTransformer,
) -> tuple[PlannedBatches, list[TrainerCallback]]:
    """Returns the batches of every epoch, and the callback that plans them if one is needed."""
    n, size, seed = len(training.rows), config.batch_size, config.seed
    if config.batches == "hard":
        ids = training.rows.with_format(None)
        planner = HardPlans(
            workdir / "plans",
            model,
            training.texts,
            (list(ids["query_id"]), list(ids["positive_id"])),
            size,
            width=config.beam_width,
            seed=seed,
        )
        return PlannedBatches(planner.plan, n, size), [planner]
    if config.batches == "sequential":
        return PlannedBatches(lambda epoch: sequential_plan(n, size), n, size), []
    return PlannedBatches(lambda epoch: random_plan(n, size, seed=seed, epoch=epoch), n, size), []


def remembering_tokenizer(
    tokenizer: PreTrainedTokenizerBase,
) -> Callable[..., dict[str, torch.Tensor]]:
    """Wraps a tokenizer so that a text that comes back is not tokenised again.

    Texts are much longer than what is kept of them and return every epoch: for a small model,
    tokenising would take a fifth of the step.

    Returns:
      f(texts, prompt, task, max_length) → `input_ids` and `attention_mask`, (texts, tokens).
    """
    known: dict[tuple[str, int], torch.Tensor] = {}

    def tokenize(
        texts: Sequence[str], prompt: str | None = None, task: str | None = None, *, max_length: int
    ) -> dict[str, torch.Tensor]:
        if len(known) > _REMEMBERED:
            known.clear()
        keys = [((prompt or "") + text, max_length) for text in texts]
        new = [key for key in dict.fromkeys(keys) if key not in known]
        if new:
            ids = tokenizer([text for text, _ in new], truncation=True, max_length=max_length)
            known.update(zip(new, map(torch.tensor, ids["input_ids"]), strict=True))
        rows = [known[key] for key in keys]
        return {
            "input_ids": pad_sequence(rows, batch_first=True, padding_value=tokenizer.pad_token_id),
            "attention_mask": pad_sequence(
                [torch.ones_like(row) for row in rows], batch_first=True
            ),
        }

    return tokenize


def _columns(config: ml_collections.ConfigDict) -> dict[str, str]:
    """Returns the column → task mapping that decides how many tokens of a text are kept."""
    negatives = [f"negative_{i + 1}" for i in range(config.negatives_per_query)]
    return {"query": "query"} | dict.fromkeys(["positive", *negatives], "document")


def _require_settings(config: ml_collections.ConfigDict) -> None:
    trainer.require_settings(config)
    if config.negatives_per_query and not config.negatives_run:
        raise UserError(
            f"config.negatives_per_query is {config.negatives_per_query}, but there is no "
            "config.negatives_run to draw them from: name a TREC run, or set it to 0"
        )
    for name, least in (("batch_size", 2), ("scale", 1e-6), ("chunk_size", 0), ("beam_width", 0)):
        if config[name] < least:
            raise UserError(f"config.{name} is {config[name]}: expected at least {least}")
    for name, choices in (("loss", LOSSES), ("batches", _BATCHES)):
        if config[name] not in choices:
            raise UserError(f"config.{name} is {config[name]!r}: expected {', '.join(choices)}")
    if config.loss in SOFT_LOSSES and not (config.teacher_run and config.negatives_per_query):
        raise UserError(
            f"config.loss is {config.loss}: expected config.teacher_run, a TREC run of a "
            "cross-encoder's scores, and config.negatives_per_query of at least 1"
        )
