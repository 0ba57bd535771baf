"""Contrastive fine-tuning of a bi-encoder, on sentence-transformers' trainer."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from ml_collections import ConfigDict
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase, TrainerCallback

from cocondenser_jax.errors import UserError
from cocondenser_jax.finetune import trainer
from cocondenser_jax.finetune.losses import SOFT_LOSSES, InBatchLoss
from cocondenser_jax.finetune.samplers import HardPlans, PlannedBatches
from cocondenser_jax.finetune.schedule import random_plan, sequential_plan
from cocondenser_jax.finetune.training_data import TrainingData, draw_negatives, read_training
from cocondenser_jax.retrieval.models import load_retriever

# Texts whose tokens are remembered: about 150 MB at 128 tokens.
_REMEMBERED = 100_000


def train_bi_encoder(config: ConfigDict, workdir: Path) -> dict[str, Any]:
    """Trains a bi-encoder on (query, relevant passage) pairs.

    A step scores B queries against all their B·G passages, s = scale · ⟨q, d⟩: each query has its
    relevant passage, sampled negatives, and the passages of the other queries. `config.loss` says
    what is computed from the scores, `config.batches` which pairs share a step.

    Arguments, result and errors as of `tasks.finetune`; see configs/finetune.py.
    """
    trainer.require_startable(config.batch_size, workdir / "retriever")
    if config.negatives_per_query and not config.negatives_run:
        raise UserError(
            f"config.negatives_per_query is {config.negatives_per_query}, but there is no "
            "config.negatives_run to draw them from: name a TREC run, or set it to 0"
        )
    is_soft = config.loss in SOFT_LOSSES
    if is_soft and not (config.teacher_run and config.negatives_per_query):
        raise UserError(
            f"config.loss is {config.loss}: expected config.teacher_run, a TREC run of a "
            "cross-encoder's scores, and config.negatives_per_query of at least 1"
        )
    data = read_training(
        Path(config.data),
        config.split,
        n_negatives=config.negatives_per_query,
        negatives_run=Path(config.negatives_run),
        negatives_depth=config.negatives_depth,
        seed=config.seed,
        n_queries=config.train_queries,
        strict=config.strict,
        teacher_run=Path(config.teacher_run) if is_soft else None,
    )
    model = load_retriever(
        Path(config.model),
        config.query_length,
        config.passage_length,
        config.pooling or None,
        two_towers=config.two_towers,
    )
    trainer.start_or_resume(config, workdir, len(data.pairs), data.files)
    # Which task a column belongs to decides how many tokens of its texts are kept.
    negatives = [f"negative_{i + 1}" for i in range(config.negatives_per_query)]
    columns = {"query": "query"} | dict.fromkeys(["positive", *negatives], "document")
    batches, planner = _plan_batches(
        config.batches, config.batch_size, config.seed, data, model, workdir / "plans"
    )
    hf_trainer = _Trainer(
        model,
        SentenceTransformerTrainingArguments(
            **trainer.arguments(config, workdir), router_mapping=columns
        ),
        data.pairs,
        loss=InBatchLoss(model, config.loss, data.judgments, config.scale, config.chunk_size),
        data_collator=SentenceTransformerDataCollator(
            remembering_tokenizer(model.tokenizer),
            router_mapping=columns,
            prompts={column: model.prompts.get(task) or "" for column, task in columns.items()},
            max_length={"query": config.query_length, "document": config.passage_length},
        ),
        callbacks=[
            trainer.EachEpoch(partial(draw_negatives, data)),
            trainer.EachEpoch(batches.start_epoch),
            *planner,
        ],
    )
    hf_trainer.batches = batches
    return trainer.run(hf_trainer, workdir, "retriever") | {"pairs": len(data.pairs)}


class _Trainer(SentenceTransformerTrainer):
    """The library's, with our batches."""

    batches: PlannedBatches

    def get_batch_sampler(self, *args: Any, **kwargs: Any) -> PlannedBatches:
        return self.batches


def _plan_batches(
    order: str,
    batch_size: int,
    seed: int,
    data: TrainingData,
    model: SentenceTransformer,
    folder: Path,
) -> tuple[PlannedBatches, list[TrainerCallback]]:
    """Returns the batches of every epoch, and for "hard" ones the callback that plans them."""
    n = len(data.pairs)
    if order == "hard":
        ids = data.pairs.with_format(None)
        pairs = list(ids["query_id"]), list(ids["positive_id"])
        planner = HardPlans(folder, model, data.texts, pairs, batch_size, seed=seed)
        return PlannedBatches(planner.plan, n, batch_size), [planner]
    if order == "sequential":
        return PlannedBatches(lambda epoch: sequential_plan(n, batch_size), n, batch_size), []
    plan = partial(random_plan, n, batch_size, seed=seed)
    return PlannedBatches(lambda epoch: plan(epoch=epoch), n, batch_size), []


def remembering_tokenizer(
    tokenizer: PreTrainedTokenizerBase,
) -> Callable[..., dict[str, torch.Tensor]]:
    """Wraps a tokenizer so that each text is tokenised once, and not in every epoch.

    Texts are much longer than what is kept of them: for a small model, tokenising would take a
    fifth of the step.

    Returns:
      f(texts, prompt, task, max_length) → `input_ids` and `attention_mask`, both BxL.
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
