"""Contrastive fine-tuning of a bi-encoder, on sentence-transformers' trainer."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from transformers import TrainerCallback

from cocondenser_jax.errors import UserError
from cocondenser_jax.finetune import trainer
from cocondenser_jax.finetune.evaluation import DevSearch
from cocondenser_jax.finetune.losses import SOFT_LOSSES, InBatchLoss
from cocondenser_jax.finetune.samplers import HardPlans, PlannedBatches
from cocondenser_jax.finetune.schedule import random_plan, sequential_plan
from cocondenser_jax.finetune.training_data import EachEpoch, TrainingData, read_training
from cocondenser_jax.retrieval.models import load_retriever, new_parameters


def bi_encoder_trainer(config: ConfigDict, workdir: Path) -> SentenceTransformerTrainer:
    """Returns the trainer of a bi-encoder on (query, relevant passage) pairs.

    A step scores B queries against all their B·G passages, s = scale · ⟨q, d⟩: each query has its
    relevant passage, sampled negatives, and the passages of the other queries. `config.loss` says
    what is computed from the scores, `config.batches` which pairs share a step.

    Arguments and errors as of `tasks.finetune`; see configs/finetune.py.
    """
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
    data = read_training(config, Path(config.teacher_run) if is_soft else None)
    evaluator = DevSearch(config, data) if config.eval_every else None
    model = load_retriever(
        Path(config.model),
        config.query_length,
        config.passage_length,
        config.pooling or None,
        two_towers=config.two_towers,
        projection=config.projection,
        seed=config.seed,
    )
    prompts = {"query": config.query_prompt, "document": config.passage_prompt}
    model.prompts.update({task: prompt for task, prompt in prompts.items() if prompt})
    trainer.start_or_resume(config, workdir, len(data.pairs), data.files)
    # Which task a column belongs to decides how many tokens of its texts are kept.
    negatives = [f"negative_{i + 1}" for i in range(config.negatives_per_query)]
    columns = {"query": "query"} | dict.fromkeys(["positive", *negatives], "document")
    plan, planners = _planner(config, data, model, workdir / "plans")
    with new_parameters(config.seed):
        loss = InBatchLoss(model, config.loss, data.judgments, config.scale, config.chunk_size)
    hf_trainer = _Trainer(
        model,
        SentenceTransformerTrainingArguments(
            **trainer.arguments(config, workdir, evaluator.measure if evaluator else ""),
            router_mapping=columns,
            prompts={column: model.prompts.get(task) or "" for column, task in columns.items()},
        ),
        data.pairs,
        evaluator=evaluator,
        loss=loss,
        callbacks=[EachEpoch(data), *planners],
    )
    hf_trainer.batches = PlannedBatches(plan, data, config.batch_size)
    return hf_trainer


class _Trainer(SentenceTransformerTrainer):
    batches: PlannedBatches

    def get_batch_sampler(self, *args: Any, **kwargs: Any) -> PlannedBatches:
        return self.batches

    def get_eval_dataloader(self, *args: Any, **kwargs: Any) -> Any:
        # The evaluator needs none; the library's empty one would draw from the global generator,
        # and a run that evaluates would have other dropout than one that does not.
        return []


def _planner(
    config: ConfigDict, data: TrainingData, model: SentenceTransformer, folder: Path
) -> tuple[Callable[[int], np.ndarray], list[TrainerCallback]]:
    """Returns the plan of each epoch, and for "hard" ones the callback that makes it in time."""
    n, batch_size, seed = len(data.pairs), config.batch_size, config.seed
    if config.batches == "sequential":
        return lambda epoch: sequential_plan(n, batch_size), []
    if config.batches == "random":
        return partial(random_plan, n, batch_size, seed), []
    # `with_format` of datasets 5.2 would copy the collection, which the present format refers to.
    queries, positives = (data.pairs.data[name].to_pylist() for name in ("query_id", "positive_id"))
    texts = [data.queries[query] for query in queries], [data.passages[p] for p in positives]
    ids, scores, depth = (queries, positives), config.batch_scores, config.batch_depth
    planner = HardPlans(
        folder, model, texts, ids, batch_size, seed=seed, scores=scores, depth=depth
    )
    return planner.plan, [planner]
